"""Multiple testing: p-values adjusted for the number of tests.

Benjamini-Hochberg bounds the share of false positives among the texts called marked (for independent or
positively dependent tests); Holm and Šidák bound the probability of a single false positive, Holm under any
dependence, Šidák for independent tests. An adjusted p-value of at most α is a rejection at level α.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F64
from dewmark.errors import ConfigError, NumericalError

__all__ = ["benjamini_hochberg", "holm", "sidak_min"]

PValues = Sequence[float] | NDArray[np.floating]


def benjamini_hochberg(p_values: PValues) -> F64:
    """Adjusted p-values (m,) in the given order: q_(i) = min over k ≥ i of min(1, p_(k) m / k)."""
    p = _checked(p_values)
    order = np.argsort(p, kind="stable")
    adjusted = np.minimum.accumulate((p[order] * (len(p) / np.arange(1, len(p) + 1)))[::-1])[::-1]
    return np.minimum(adjusted, 1.0)[np.argsort(order)]


def holm(p_values: PValues) -> F64:
    """Adjusted p-values (m,) in the given order: max over k ≤ i of min(1, p_(k) (m − k + 1))."""
    p = _checked(p_values)
    order = np.argsort(p, kind="stable")
    adjusted = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(adjusted, 1.0)[np.argsort(order)]


def sidak_min(p_value: float, *, tests: int) -> float:
    """The p-value of the smallest of ``tests`` independent p-values, 1 − (1 − p)^tests."""
    if tests < 1:
        raise ConfigError(f"a correction needs at least one test, got {tests}")
    (p,) = _checked([p_value]).tolist()
    # by logarithms: 1 - 1e-20 rounds to 1
    return 1.0 if p == 1.0 else -math.expm1(tests * math.log1p(-p))


def _checked(p_values: PValues) -> F64:
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1:
        raise ConfigError(f"p-values must be a list of numbers, got an array of shape {p.shape}")
    if np.isnan(p).any():
        raise NumericalError(f"p-value {int(np.isnan(p).argmax())} is NaN: leave out untested texts")
    outside = (p < 0.0) | (p > 1.0)
    if outside.any():
        raise ConfigError(f"a p-value must lie in [0, 1], got {p[outside][0]:g}")
    return p
