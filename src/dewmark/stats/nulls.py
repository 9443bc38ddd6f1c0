"""What DEW's scores do on unmarked text, one token at a time.

Write u = √n p_T·p_C for a token's alignment and b = λ tanh(γu) for its score. Over keys u is standard
normal (to order 1/n), so the saturated score has variance λ² κ(1), and two tokens whose alignments have
correlation ρ have score covariance λ² κ(ρ) with

    κ(ρ) = E[tanh(γU) tanh(γV)],  corr(U, V) = ρ
         = Σ_{j odd} c_j² ρ^j,    c_j = E[tanh(γU) He_j(U)] / √j!     (Mehler's formula)

because tanh is odd. The coefficients come from Gauss-Hermite quadrature. The series is cut after ``TERMS``
odd powers and what is left of κ(1) is put on the last one, so κ(1) is exact and κ(ρ) is never too small
for 0 ≤ ρ ≤ 1: the cut can only make the test more cautious.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.polynomial import hermite_e
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

__all__ = ["gaussian_threshold", "one_sided_p", "power_series", "tanh_kernel"]

TERMS = 5
_NODES = 200


@functools.cache
def tanh_kernel(gamma: float) -> tuple[float, ...]:
    """κ's coefficients of ρ, ρ², ρ³, …: c_1², 0, c_3², …; their sum is κ(1) = E[tanh²(γU)]."""
    x, w = hermite_e.hermegauss(_NODES)
    w = w / math.sqrt(2.0 * math.pi)
    f = np.tanh(gamma * x)
    squares = []
    for term in range(TERMS):
        j = 2 * term + 1
        he = hermite_e.hermeval(x, [0.0] * j + [1.0])
        squares.append(float(np.dot(w, f * he)) ** 2 / math.factorial(j))
    squares[-1] += float(np.dot(w, f * f)) - math.fsum(squares)
    return tuple(square for odd in squares for square in (odd, 0.0))[:-1]


def power_series(rho: NDArray[np.float32], coefficients: tuple[float, ...]) -> NDArray[np.float32]:
    """Σ_j coefficients[j] ρ^(j+1), elementwise (Horner; in ρ² where only odd powers occur)."""
    odd = not any(coefficients[1::2])
    terms = coefficients[::2] if odd else coefficients
    if len(terms) == 1:
        return rho * np.float32(terms[0])
    step = rho * rho if odd else rho
    total = np.full_like(rho, terms[-1])
    for c in reversed(terms[:-1]):
        total *= step
        total += np.float32(c)
    total *= rho
    return total


def one_sided_p(z: float) -> float:
    """P(N(0,1) > z)."""
    return float(ndtr(-z))


def gaussian_threshold(fpr: float, *, variance: float, effective_length: float) -> float:
    """τ_α of appendix A.3: the mean score that unmarked text exceeds with probability ``fpr``."""
    return -float(ndtri(fpr)) * math.sqrt(variance / effective_length)
