"""The strength of a mark per effective token, and how often a marked text of some length is found.

A text's z is its mean score times the square root of its effective length L. Marked texts differ in how much
mark they carry, so

    z = m √L + e,   m ~ N(μ, τ²),   e ~ N(0, 1)    hence    P(z > z_α) = Φ((μ√L − z_α) / √(1 + τ²L))

A sample of marked texts gives μ as the mean of m_i = z_i/√L_i, and τ² as the variance of m_i minus the part
that e explains, the mean of 1/L_i. The error of μ, s²/n, is added to τ².

Unlike `dewmark.stats.power`, which asks for a length in tokens, this needs only what detection computes for
any text. Boundary: z-scores in, numbers out. It holds for texts like the sample: other hosts or decoding
settings mark more weakly or strongly, and rewriting weakens a mark.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from dewmark.arrays import F64
from dewmark.errors import InputError

__all__ = ["Strength", "measure_strength"]

FEWEST_TEXTS = 4


@dataclass(frozen=True, slots=True)
class Strength:
    """m ~ N(``mean``, ``spread``²) per effective token, measured on ``texts`` marked texts."""

    mean: float
    spread: float
    texts: int

    def found(self, effective_length: float, *, fpr: float) -> float:
        """The share of marked texts of this effective length with p < ``fpr``."""
        L = max(effective_length, 0.0)
        return float(ndtr((self.mean * math.sqrt(L) + ndtri(fpr)) / math.sqrt(1.0 + self.spread**2 * L)))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


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
