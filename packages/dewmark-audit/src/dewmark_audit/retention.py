"""How much of a mark a rewrite keeps, measured without a key or a marked text.

Over random keys the total scores of a text x and of its rewrite y have a known covariance, and their
correlation

    Σ_ij w_i v_j f(ρ_ij(x, y)) / √(Var S_x · Var S_y)

is the expected share of x's z-score that y retains. For unrelated texts it must be near 0: anything else is a
standing preference shared by all texts, which no honest test counts as a mark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dewmark.batch.inputs import Document
from dewmark.capabilities import evidence_of
from dewmark.errors import InputError
from dewmark.scheme import BoundScheme
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import cross_variance, score_variance
from dewmark.types import Plain
from dewmark.workspace import Progress, silent
from dewmark_audit.intervals import Interval, bootstrap

NEAR_ZERO = 0.05


@dataclass(frozen=True, slots=True)
class Retention(Plain):
    """The mean share of z that rewrites retain, and the same for unrelated texts."""

    pairs: int
    kept: Interval
    unrelated: Interval

    @property
    def sound(self) -> bool:
        """Whether unrelated texts share next to nothing, as they should."""
        return abs(self.unrelated.value) <= NEAR_ZERO

    def to_dict(self) -> dict[str, Any]:
        return {**Plain.to_dict(self), "sound": self.sound}


def pair_retentions(
    originals: Sequence[Evidence], rewritten: Sequence[Evidence]
) -> tuple[list[float], list[float]]:
    """The retention of each original in its own rewrite, and in the rewrite of the next original.

    All must come from one call of `BoundScheme.evidence`, so that labels are comparable.
    """
    x, y = ([math.sqrt(score_variance(text)) for text in texts] for texts in (originals, rewritten))

    def correlation(i: int, j: int) -> float:
        return cross_variance(originals[i], rewritten[j]) / (x[i] * y[j])

    count = len(originals)
    return [correlation(i, i) for i in range(count)], [correlation(i, (i + 1) % count) for i in range(count)]


def summarise(kept: Sequence[float], unrelated: Sequence[float]) -> Retention:
    """The means with bootstrap intervals; pairs are resampled."""
    if len(kept) < 2:
        raise InputError(f"retention needs at least two pairs of texts with scored units, got {len(kept)}")
    return Retention(
        pairs=len(kept),
        kept=bootstrap(lambda own, _: float(own.mean()), kept, unrelated),
        unrelated=bootstrap(lambda _, other: float(other.mean()), kept, unrelated),
    )


_PAIRS_PER_BATCH = 32


def match_rewrites(
    originals: Sequence[Document], rewrites: Sequence[Document], *, files: tuple[Path, Path]
) -> list[tuple[str, str]]:
    """(original, rewrite) texts, matched by id if every row has one, otherwise by order."""
    if len(originals) != len(rewrites):
        raise InputError(
            f"{files[0]} has {len(originals)} rows and {files[1]} has {len(rewrites)}: "
            "each text needs a rewrite"
        )
    if any(each.id is None for each in (*originals, *rewrites)):
        return [(before.text, after.text) for before, after in zip(originals, rewrites, strict=True)]
    by_id = {each.id: each.text for each in rewrites}
    if len(by_id) < len(rewrites) or len({each.id for each in originals}) < len(originals):
        raise InputError(f"{files[0]} or {files[1]} has an id twice: make the ids unique, or leave them out")
    missing = [each.id for each in originals if each.id not in by_id]
    if missing:
        raise InputError(f"{files[1]} has no row with the id {missing[0]!r} of {files[0]}")
    return [(each.text, by_id[each.id]) for each in originals]


def retention_of_pairs(
    bound: BoundScheme, pairs: Sequence[tuple[str, str]], *, progress: Progress = silent
) -> Retention:
    """How much of a mark rewrites keep over random keys, with unrelated pairs as a control."""
    # neighbours in a file may share a topic, so shuffle
    order = np.random.default_rng(0).permutation(len(pairs)).tolist()
    kept: list[float] = []
    unrelated: list[float] = []
    done = 0
    for part in np.array_split(order, max(1, len(order) // _PAIRS_PER_BATCH)):
        texts = bound.tokenize([text for i in part for text in pairs[i]])
        evidence = evidence_of(bound, texts, bound.tokenize([""] * len(texts)))
        scored = [(a, b) for a, b in zip(evidence[::2], evidence[1::2], strict=True) if len(a) and len(b)]
        if len(scored) > 1:
            own, other = pair_retentions([a for a, _ in scored], [b for _, b in scored])
            kept += own
            unrelated += other
        done += len(part)
        progress("comparing texts", done, len(pairs))
    return summarise(kept, unrelated)
