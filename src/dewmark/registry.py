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
        "atw": "dewmark.baselines.atw:ATW",
        "dew": "dewmark.dew.scheme:DEW",
        "dipmark": "dewmark.baselines.dipmark:DiPmark",
        "ewd": "dewmark.baselines.ewd:EWD",
        "exp": "dewmark.baselines.exp:EXP",
        "kgw": "dewmark.baselines.kgw:KGW",
        "ksemstamp": "dewmark.baselines.ksemstamp:KSemStamp",
        "morphmark": "dewmark.baselines.morphmark:MorphMark",
        "pasa": "dewmark.baselines.pasa:PASA",
        "simkey": "dewmark.baselines.simkey:SimKey",
        "sir": "dewmark.baselines.sir:SIR",
        "semstamp": "dewmark.baselines.semstamp:SemStamp",
        "sweet": "dewmark.baselines.sweet:SWEET",
        "synthid": "dewmark.baselines.synthid:SynthID",
        "ts": "dewmark.baselines.ts:TS",
        "unbiased": "dewmark.baselines.unbiased:Unbiased",
        "unigram": "dewmark.baselines.unigram:Unigram",
        "waterpool": "dewmark.baselines.waterpool:WaterPool",
        "xsir": "dewmark.baselines.xsir:XSIR",
    },
    group="dewmark.schemes",
)

# What ``dewmark train`` can train: scheme name to its ``train(job)``.
TRAINERS = Registry(
    "trainable scheme",
    {
        "atw": "dewmark.training.atw:train",
        "ksemstamp": "dewmark.training.ksemstamp:train",
        "semstamp": "dewmark.training.semstamp:train",
        "sir": "dewmark.training.sir:train",
        "ts": "dewmark.training.ts:train",
        "xsir": "dewmark.training.xsir:train",
    },
    group="dewmark.trainers",
)
