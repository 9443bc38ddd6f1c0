"""How much of the mark survives a rewrite, measured without a key or a marked text.

Over random keys the total scores of a text x and of its rewrite y have a known covariance. Their correlation

    Σ_ij w_i v_j f(ρ_ij(x, y)) / √(Var S_x · Var S_y)

is the expected share of x's z-score that y retains. For unrelated texts it must be near 0: anything else is a
standing preference shared by all texts, which no honest test counts as a mark.

Boundary: evidence in, numbers out; the evidence may come from any key, because only its covariance is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dewmark.errors import InputError
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import cross_variance, score_variance
from dewmark.stats.rates import Interval
from dewmark_lab.metrics import bootstrap

NEAR_ZERO = 0.05


@dataclass(frozen=True, slots=True)
class Retention:
    """The mean share of z that rewrites retain, and the same for unrelated texts."""

    pairs: int
    kept: Interval
    unrelated: Interval

    @property
    def sound(self) -> bool:
        """Whether unrelated texts share next to nothing, as they should."""
        return abs(self.unrelated.value) <= NEAR_ZERO

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "pairs": self.pairs,
            "kept": self.kept.to_dict(),
            "unrelated": self.unrelated.to_dict(),
            "sound": self.sound,
        }


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
