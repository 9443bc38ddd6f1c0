"""Power by length: the share of marked texts that the key test finds, and how long a text must be.

Evidence adds up, so z grows like √L; texts differ in how strongly they can be marked, so the slope differs:

    z_i(L) = m_i √L + e,   m_i ~ N(μ, τ²),   e ~ N(0, σ²)    hence   z(L) ~ N(μ√L, σ² + τ²L)
    TPR(L) = Φ((μ√L − z_α) / √(σ² + τ²L)) · G(L),   z_α = −Φ⁻¹(fpr)

G(L) is the share of texts of length L that the detector judges at all. μ is fitted by least squares, σ² and
τ² by non-negative least squares on the variance at each length, relative to that variance.

Where only what detection computes is known, `Strength` is the same model in effective tokens with σ = 1: μ is
the mean of m_i = z_i/√L_i, and τ² the variance of m_i minus the part that e explains, the mean of 1/L_i; the
error of μ, s²/n, is added to τ².
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from dewmark.arrays import F64
from dewmark.errors import InputError
from dewmark_audit.strength import Strength

TARGETS = (0.5, 0.9, 0.99)
FEWEST_TEXTS = 4
_ROUNDS = 4  # of reweighting the variance fit; more change nothing


@dataclass(frozen=True, slots=True)
class PowerModel:
    """z(L) ~ N(``slope`` √L, ``noise`` + ``between`` L); text i is judged from the length ``judged_from[i]``.

    ``judged_from`` is ascending, and infinite for texts that are never long enough.
    """

    slope: float
    noise: float
    between: float
    judged_from: tuple[float, ...] = (0.0,)

    def tpr(self, lengths: ArrayLike, *, fpr: float) -> F64:
        """The expected detection rate at each length, same shape."""
        L = np.asarray(lengths, dtype=np.float64)
        spread = np.sqrt(np.maximum(self.noise + self.between * L, 1e-12))
        judged = np.searchsorted(self.judged_from, L, side="right") / len(self.judged_from)
        share: F64 = ndtr((self.slope * np.sqrt(L) + ndtri(fpr)) / spread) * judged
        return share

    def length_for(self, tpr: float, *, fpr: float) -> int | None:
        """The smallest length at which the rate reaches ``tpr``, or None if it takes more than a million."""
        if self.tpr(1_000_000, fpr=fpr) < tpr:
            return None
        low, high = 0, 1_000_000  # the rate rises with length if the slope is positive
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.tpr(middle, fpr=fpr) >= tpr else (middle, high)
        return high


def fit_model(z: F64, cuts: Sequence[int]) -> PowerModel:
    """Fit the model to z-scores (texts, cuts), NaN where a text is too short."""
    from scipy.optimize import nnls  # slow to import

    L = np.asarray(cuts, dtype=np.float64)
    known = ~np.isnan(z)
    slope = float(np.nansum(z * np.sqrt(L)) / (known * L).sum())
    count = known.sum(axis=0)
    enough = count >= 2
    left = (z - slope * np.sqrt(L))[:, enough]
    variance = np.nansum(left**2, axis=0) / (count[enough] - 1)
    # the error of a sample variance is proportional to the variance, so errors count relative to the fit
    columns = np.column_stack([np.ones(len(variance)), L[enough]])
    fitted = columns.sum(axis=1)
    for _ in range(_ROUNDS):
        (noise, between), _ = nnls(columns / fitted[:, None], variance / fitted)
        fitted = np.maximum(columns @ (noise, between), 1e-9)
    return PowerModel(slope=slope, noise=float(noise), between=float(between))


def measure_strength(z: F64, effective_lengths: F64) -> Strength:
    """The strength from z-scores (texts,) of marked texts and their effective lengths (texts,)."""
    known = effective_lengths > 0.0
    z, L = z[known], effective_lengths[known]
    if len(z) < FEWEST_TEXTS:
        raise InputError(f"the strength of a mark needs {FEWEST_TEXTS} marked texts, got {len(z)}")
    m = z / np.sqrt(L)
    variance = float(m.var(ddof=1))
    between = max(0.0, variance - float((1.0 / L).mean()))
    return Strength(float(m.mean()), math.sqrt(between + variance / len(m)), len(m))
