"""Lazy tables of names: a name maps to ``module:attribute`` and is imported when it is first asked for."""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

from dewmark.errors import UnknownNameError

__all__ = ["SCHEMES", "TRAINERS", "Registry", "unknown_name"]


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Build the error for a name that no table knows, with the nearest known name."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return UnknownNameError(f"unknown {kind} {name!r}; {hint}")


@functools.cache  # looking through all installed packages takes milliseconds
def _published(group: str) -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=group)}


class Registry(Mapping[str, Any]):
    """Names of one kind, built in or published by another package's entry points."""

    def __init__(self, kind: str, built_in: Mapping[str, str], *, group: str | None = None) -> None:
        self.kind = kind
        self._targets = dict(built_in)
        self._group = group

    def _table(self) -> dict[str, str]:
        if self._group is None:
            return self._targets
        return {**_published(self._group), **self._targets}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - whatever the table names
        table = self._table()
        if name not in table:
            raise unknown_name(self.kind, name, table)
        module, _, attribute = table[name].partition(":")
        return getattr(importlib.import_module(module), attribute)

    def __contains__(self, name: object) -> bool:
        return name in self._table()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._table()))

    def __len__(self) -> int:
        return len(self._table())


SCHEMES = Registry(
    "scheme",
    {
        "atw": "dewmark.baselines.learned.atw:ATW",
        "dew": "dewmark.dew.scheme:DEW",
        "dipmark": "dewmark.baselines.reweight.dipmark:DiPmark",
        "ewd": "dewmark.baselines.green.ewd:EWD",
        "exp": "dewmark.baselines.sampling.exp:EXP",
        "kgw": "dewmark.baselines.green.kgw:KGW",
        "ksemstamp": "dewmark.baselines.sentence.ksemstamp:KSemStamp",
        "morphmark": "dewmark.baselines.green.morphmark:MorphMark",
        "pasa": "dewmark.baselines.sampling.pasa:PASA",
        "simkey": "dewmark.baselines.sampling.simkey:SimKey",
        "sir": "dewmark.baselines.learned.sir:SIR",
        "semstamp": "dewmark.baselines.sentence.semstamp:SemStamp",
        "sweet": "dewmark.baselines.green.sweet:SWEET",
        "synthid": "dewmark.baselines.sampling.synthid:SynthID",
        "ts": "dewmark.baselines.learned.ts:TS",
        "unbiased": "dewmark.baselines.reweight.unbiased:Unbiased",
        "unigram": "dewmark.baselines.green.unigram:Unigram",
        "waterpool": "dewmark.baselines.retrieval.waterpool:WaterPool",
        "xsir": "dewmark.baselines.learned.xsir:XSIR",
    },
    group="dewmark.schemes",
)

# What ``dewmark train`` can train: scheme name to its ``train(job)``.
TRAINERS = Registry(
    "trainable scheme",
    {
        "atw": "dewmark.lab.training.atw:train",
        "ksemstamp": "dewmark.lab.training.ksemstamp:train",
        "semstamp": "dewmark.lab.training.semstamp:train",
        "sir": "dewmark.lab.training.sir:train",
        "ts": "dewmark.lab.training.ts:train",
        "xsir": "dewmark.lab.training.xsir:train",
    },
    group="dewmark.trainers",
)
