"""What one configuration does: continuations of the same prompts with the same seeds, and their measures.

A configuration's texts and numbers under one key are one JSON file, named by a hash of all that decides them,
so a run that was stopped goes on with the configuration it was at. The keys are made for measuring only: they
are the same in every run, so that runs agree, and therefore no secret; no text of yours is marked with them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import dewmark
from dewmark import config, storage
from dewmark.arrays import F64
from dewmark.core.keys import Key
from dewmark.errors import ConfigError
from dewmark.evaluation.quality import distinct
from dewmark.hosts.base import Host
from dewmark.registry import SCHEMES
from dewmark.scheme import BoundScheme
from dewmark.tuning.grid import Settings
from dewmark.types import Generation
from dewmark.watermark import bind_scheme
from dewmark.workspace import Progress, silent

__all__ = ["DELETED", "Measured", "Sample", "delete_words", "measure"]

Row = dict[str, Any]  # one text and its measures

DELETED = 0.3  # the share of words that the attack takes out
_FORMAT = 1
_QUALITY, _STRENGTH = ("perplexity", "distinct_3"), ("z", "p_value", "z_deleted")


@dataclass(frozen=True)
class Sample:
    """What is written: every prompt once unmarked and once per key, text i always with seed ``seed + i``."""

    prompts: Sequence[str]
    tokens: int = 120
    keys: int = 1
    seed: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    no_repeat_ngram: int = 4

    def __post_init__(self) -> None:
        if len(self.prompts) < 2:
            raise ConfigError(f"measuring needs at least 2 prompts, got {len(self.prompts)}")
        if self.keys < 1:
            raise ConfigError(f"keys must be at least 1, got {self.keys}")


@dataclass(frozen=True)
class Measured:
    """The measures of each text: all arrays (keys, prompts), the last three without rows if unmarked."""

    settings: Settings
    perplexity: F64
    distinct_3: F64
    z: F64
    p_value: F64
    z_deleted: F64


def measure(
    host: Host,
    configurations: Sequence[Settings],
    sample: Sample,
    *,
    scheme: str = "dew",
    batch_size: int = 8,
    out: Path | None = None,
    progress: Progress = silent,
) -> tuple[Measured, list[Measured]]:
    """The unmarked texts' measures, and those of each configuration; ``out`` keeps them for the next run."""
    if not configurations:
        raise ConfigError("there is no configuration to measure: the grid is empty")
    host.check_prompts(sample.prompts, sample.tokens)
    work = _Work(host, sample, scheme, batch_size, out, progress)
    work.total = len(sample.prompts) * (1 + sample.keys * len(configurations))
    work.tell(0)
    unmarked = work.measured(None)
    return unmarked, [work.measured(settings) for settings in configurations]


def delete_words(text: str, share: float, *, seed: int) -> str:
    """The text without a random share of its words, each taken out by itself; one always stays."""
    words = text.split(" ")
    stays = np.random.default_rng(seed).random(len(words)) >= share
    return " ".join(word for word, kept in zip(words, stays, strict=True) if kept) or text


@dataclass
class _Work:
    host: Host
    sample: Sample
    scheme: str
    batch_size: int
    out: Path | None
    progress: Progress
    done: int = 0
    total: int = 0

    def tell(self, texts: int) -> None:
        """Some more texts are there."""
        self.done += texts
        self.progress("writing and scoring texts", self.done, self.total)

    def measured(self, settings: Settings | None) -> Measured:
        """One configuration's measures, under each key."""
        keys = [None] if settings is None else _keys(self.sample.keys)
        rows = [row for key in keys for row in self._rows(settings or {}, key)]

        def column(name: str) -> F64:
            values = [row[name] for row in rows if name in row]
            return np.array(values, dtype=np.float64).reshape(-1, len(self.sample.prompts))

        measures = {name: column(name) for name in (*_QUALITY, *_STRENGTH)}
        return Measured(settings or {}, **measures)

    def _rows(self, settings: Settings, key: Key | None) -> list[Row]:
        """Texts under one key with their measures, from their file or made now; unmarked without a key."""
        file = None if self.out is None else self.out / "configurations" / f"{self._name(settings, key)}.json"
        rows = None if file is None else _read(file, len(self.sample.prompts))
        if rows is not None:
            self.tell(len(rows))
            return rows
        rows = self._written(settings, key)
        if file is not None:
            content = {"format": _FORMAT, "settings": None if key is None else settings, "rows": rows}
            with storage.atomic_write(file) as stream:
                stream.write((json.dumps(content, indent=1) + "\n").encode())
        return rows

    def _name(self, settings: Settings, key: Key | None) -> str:
        """Hashes all that decides the texts and their numbers."""
        sample = {**dataclasses.asdict(self.sample), "prompts": list(self.sample.prompts), "keys": None}
        parts: list[object] = [_FORMAT, dewmark.__version__, self.host.info.identity, DELETED, sample]
        if key is not None:
            whole = SCHEMES[self.scheme]().with_settings(dict(settings)).to_dict()
            parts += [self.scheme, whole, key.fingerprint]
        return config.config_hash(*parts)

    def _written(self, settings: Settings, key: Key | None) -> list[Row]:
        sample, bound = self.sample, None
        if key is not None:
            bound = bind_scheme(
                key,
                scheme=self.scheme,
                settings=dict(settings),
                host=self.host.info,
                progress=self.progress,
            )

        def tell(batch: list[Generation]) -> None:
            self.tell(len(batch))

        made = self.host.generate(
            sample.prompts,
            scheme=bound,
            seeds=range(sample.seed, sample.seed + len(sample.prompts)),
            max_new_tokens=sample.tokens,
            min_new_tokens=sample.tokens,
            temperature=sample.temperature,
            top_p=sample.top_p,
            no_repeat_ngram=sample.no_repeat_ngram,
            batch_size=self.batch_size,
            on_batch=tell,
        )
        texts = [each.text for each in made]
        rows: list[Row] = [
            {"text": text, "perplexity": math.exp(-total / max(count, 1)), "distinct_3": distinct(text, 3)}
            for text, (total, count) in zip(
                texts, self.host.log_likelihood(sample.prompts, texts), strict=True
            )
        ]
        if bound is not None:
            deleted = [delete_words(text, DELETED, seed=sample.seed + i) for i, text in enumerate(texts)]
            scores = zip(_scores(bound, texts), _scores(bound, deleted), strict=True)
            for row, ((z, p_value), (z_deleted, _)) in zip(rows, scores, strict=True):
                row |= {"z": z, "p_value": p_value, "z_deleted": z_deleted}
        return rows


def _scores(bound: BoundScheme, texts: Sequence[str]) -> list[tuple[float, float]]:
    """z and p of each text, found without its prompt; a blank text carries no evidence."""
    found = iter(bound.detect_batch([text for text in texts if text.strip()]))
    pairs = ((one.z, one.p_value) for one in found)
    return [next(pairs) if text.strip() else (0.0, 1.0) for text in texts]


def _keys(number: int) -> list[Key]:
    return [Key(hashlib.sha256(f"dewmark tune, key {i}".encode()).digest()) for i in range(number)]


def _read(file: Path, number: int) -> list[Row] | None:
    """The rows that an earlier run left, if they are all there."""
    try:
        rows: list[Row] = json.loads(file.read_text(encoding="utf-8"))["rows"]
        whole = len(rows) == number and all(set(_QUALITY) <= row.keys() for row in rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return rows if whole else None
