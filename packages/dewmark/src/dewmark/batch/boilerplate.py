"""Boilerplate: passages that many rows of a corpus share, such as a form's wording or a page's footer.

Copies of one template are called marked together or not at all, under any scheme: hundreds of form letters
are one piece of evidence, not hundreds. Rows can therefore be scored without what they share (``drop``), or
count once together where false discoveries are counted (``once``). Both depend on the texts alone and not on
the key, so p-values stay valid.

A passage is shared if each run of `RUN` words of it occurs in at least `ROWS` rows. Up to `SAMPLE` rows,
evenly spread over the corpus, are read to find out.

**Counting once.** Benjamini-Hochberg bounds the share of false positives *among texts*, and if a template is
falsely called marked, then all its copies are. With weights that give all copies of one template together
the weight of one text, it bounds the share among different pieces of text. Both are proved for one-sided
normal tests without negative correlations (`dewmark.stats.multiple_testing`); texts under one key have
slightly negative ones among others.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F64
from dewmark.batch.inputs import TextRow
from dewmark.batch.scorers import Scored, Scorer
from dewmark.batch.sources import Source
from dewmark.text.words import Word, words

RUN = 8
ROWS = 5
SAMPLE = 20_000
_MOSTLY = 0.5  # share of a text's words from which it is a copy of its template
_BASE = np.uint64(0x9E3779B97F4A7C15)

U64 = NDArray[np.uint64]


class Mode(enum.StrEnum):
    """What to do with boilerplate."""

    KEEP = "keep"
    ONCE = "once"
    DROP = "drop"


@dataclass(frozen=True, eq=False)
class Boilerplate:
    """The runs of words that a corpus shares, as hashes (N,) in ascending order."""

    runs: U64 = field(repr=False)
    mode: Mode = Mode.DROP

    @classmethod
    def find(cls, texts: Iterable[str], *, mode: Mode = Mode.DROP) -> Boilerplate:
        """The boilerplate of these texts."""
        rows = [np.unique(_runs(words(text))) for text in texts]
        if not rows:
            return cls(np.zeros(0, dtype=np.uint64), mode)
        runs, counts = np.unique(np.concatenate(rows), return_counts=True)
        return cls(runs[counts >= ROWS], mode)

    @classmethod
    def of_source(cls, source: Source, mode: Mode) -> Boilerplate | None:
        """The boilerplate of the rows of a file; None if it is to be kept."""
        if mode is Mode.KEEP:
            return None
        blocks = source.blocks(SAMPLE)
        step = -(-sum(block.rows for block in blocks) // SAMPLE)
        return cls.find((row.text for row in islice(source.rows(blocks), 0, None, max(step, 1))), mode=mode)

    @property
    def identity(self) -> str:
        """Identifies mode and runs."""
        return f"{self.mode} {hashlib.sha256(self.runs.tobytes()).hexdigest()[:16]}"

    def scored(self, scorer: Scorer, batch: Sequence[TextRow]) -> list[Scored]:
        """Score a batch without boilerplate, or with the name of each text's template in its row."""
        if self.mode is Mode.DROP:
            return scorer([replace(row, text=self.without(row.text)) for row in batch])
        found = scorer(batch)
        for row, each in zip(batch, found, strict=True):
            each.row["template"] = self.template(row.text)
        return found

    def without(self, text: str) -> str:
        """A text without the words of shared runs."""
        found = words(text)
        covered = self._covered(_runs(found), len(found))
        kept: list[str] = []
        start = 0  # of the characters after the last word that was left out
        for word, shared in zip(found, covered.tolist(), strict=True):
            if shared:
                kept.append(text[start : word.start])
                start = word.end
        kept.append(text[start:])
        return " ".join(part for part in kept if part.strip()) if covered.any() else text

    def template(self, text: str) -> str | None:
        """A name for the template that most of the text is copied from, or None."""
        found = words(text)
        runs = _runs(found)
        if self._covered(runs, len(found)).sum() < _MOSTLY * max(len(found), 1):
            return None
        # copies share the runs that no blank interrupts, so the smallest of these is the same in all of them
        return f"{int(runs[self._shared(runs)].min()):016x}"

    def _shared(self, runs: U64) -> NDArray[np.bool_]:
        if not len(self.runs):
            return np.zeros(len(runs), dtype=bool)
        place = np.minimum(np.searchsorted(self.runs, runs), len(self.runs) - 1)
        return np.asarray(self.runs[place] == runs)

    def _covered(self, runs: U64, count: int) -> NDArray[np.bool_]:
        """Which of ``count`` words lie in a shared run, (count,)."""
        covered = np.zeros(count, dtype=bool)
        for start in np.flatnonzero(self._shared(runs)):
            covered[start : start + RUN] = True
        return covered


def template_weights(templates: Sequence[str | None]) -> F64:
    """A weight for each text (N,): all copies of one template together weigh as much as one text."""
    copies = Counter(templates)
    return np.array([1.0 if name is None else 1.0 / copies[name] for name in templates])


def _runs(found: Sequence[Word]) -> U64:
    """A hash of each run of `RUN` words, (words − RUN + 1,)."""
    if len(found) < RUN:
        return np.zeros(0, dtype=np.uint64)
    digests = (hashlib.blake2b(word.form.encode(), digest_size=8).digest() for word in found)
    codes = np.frombuffer(b"".join(digests), dtype=np.uint64)
    total = np.zeros(len(found) - RUN + 1, dtype=np.uint64)
    for i in range(RUN):
        total = total * _BASE + codes[i : len(total) + i]
    return total
