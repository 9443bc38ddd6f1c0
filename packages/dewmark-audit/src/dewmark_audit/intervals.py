"""An estimate with its interval, and the bootstrap for a statistic of two samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F64
from dewmark.errors import ConfigError, InputError, NumericalError
from dewmark.types import Plain

Scores = Sequence[float] | NDArray[np.floating]
Statistic = Callable[[F64, F64], float]


@dataclass(frozen=True, slots=True)
class Interval(Plain):
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float
    confidence: float


def bootstrap(
    statistic: Statistic, positives: Scores, negatives: Scores, *, resamples: int = 2000, seed: int = 0
) -> Interval:
    """A 95% percentile interval of ``statistic(positives, negatives)``; the two are resampled separately.

    A statistic at the end of its range (an AUROC of 1) gets an interval of zero width, which says nothing
    about unseen texts: for shares use `rate`, whose interval is exact.
    """
    if resamples < 1:
        raise ConfigError(f"resamples must be at least 1, got {resamples}")
    high, low = checked(positives, "positives"), checked(negatives, "negatives")
    rng = np.random.default_rng(seed)
    sizes = len(high), len(low)
    drawn = [statistic(rng.choice(high, sizes[0]), rng.choice(low, sizes[1])) for _ in range(resamples)]
    level = 0.95
    ends = np.quantile(drawn, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return Interval(float(statistic(high, low)), float(ends[0]), float(ends[1]), level)


def checked(scores: Scores, what: str) -> F64:
    """Scores as an array (N,), which holds at least one number and no NaN."""
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise InputError(f"{what} must be a list of at least one number, got shape {values.shape}")
    if np.isnan(values).any():
        raise NumericalError(f"{what} {int(np.isnan(values).argmax())} is NaN: leave out unscored texts")
    return values
