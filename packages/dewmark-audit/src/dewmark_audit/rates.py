"""A share with its exact confidence interval."""

from __future__ import annotations

from dataclasses import dataclass

from dewmark.errors import ConfigError, InputError
from dewmark.types import Plain


@dataclass(frozen=True, slots=True)
class Rate(Plain):
    """``hits`` of ``trials``, with the exact (Clopper-Pearson) confidence interval."""

    hits: float
    trials: int
    rate: float
    low: float
    high: float
    confidence: float


def rate(hits: float, trials: int, *, confidence: float = 0.95) -> Rate:
    """A share with its exact two-sided (Clopper-Pearson) confidence interval; hits may be fractions."""
    from scipy.special import betaincinv

    check_confidence(confidence)
    if not 0 <= hits <= trials or trials < 1:
        raise InputError(f"a rate needs 0 <= hits <= trials and at least one trial, got {hits} of {trials}")
    tail, misses = (1.0 - confidence) / 2.0, trials - hits
    low = float(betaincinv(hits, misses + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, misses, 1.0 - tail)) if misses else 1.0
    return Rate(hits, trials, hits / trials, low, high, confidence)


def check_confidence(confidence: float) -> None:
    """Raise `ConfigError` unless the confidence lies in (0, 1)."""
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"confidence must lie in (0, 1), got {confidence}")
