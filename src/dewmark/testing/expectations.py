"""How a check says what it expected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom

from dewmark.errors import DewmarkError

__all__ = ["expect", "expect_close", "expect_refusal", "expect_valid"]

LEVELS = (0.01, 0.05, 0.1, 0.25, 0.5)
CERTAINTY = 1e-4  # how rarely a valid p-value may fail one comparison


def expect(holds: object, message: str) -> None:
    """Fail with what was expected."""
    if not holds:
        raise AssertionError(message)


def expect_close(found: ArrayLike, expected: ArrayLike, what: str, *, within: float) -> None:
    """Two arrays of numbers that differ by at most ``within``."""
    a, b = np.asarray(found, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    expect(a.shape == b.shape, f"{what}: expected shape {b.shape}, got {a.shape}")
    expect(not (np.isnan(a).any() or np.isnan(b).any()), f"{what}: expected numbers, got NaN")
    worst = float(np.max(np.abs(a - b), initial=0.0))
    expect(worst <= within, f"{what}: expected the same within {within:g}, they differ by {worst:.3g}")


def expect_refusal(call: Callable[[], object], error: type[DewmarkError], what: str) -> None:
    """A call that must raise one of dewmark's own errors."""
    with suppress(error):
        call()
        raise AssertionError(f"{what}: expected {error.__name__}, it was accepted")


def expect_valid(p_values: Iterable[float], what: str) -> None:
    """Independent p-values of a true null hypothesis: P(p ≤ a) ≤ a.

    The number of p-values up to a is compared with the quantile of Binomial(n, a) that a valid test passes
    once in 1/`CERTAINTY` times at most.
    """
    p: Sequence[float] = list(p_values)
    expect(all(0.0 <= value <= 1.0 for value in p), f"{what}: expected p-values in [0, 1]")
    for level in LEVELS:
        found, most = sum(value <= level for value in p), int(binom.ppf(1.0 - CERTAINTY, len(p), level))
        expect(
            found <= most,
            f"{what}: expected at most {most} of {len(p)} p-values up to {level:g}, got {found}: "
            "the test accuses too often",
        )
