"""The null distribution of the paper's scores: unmarked text, over random keys.

**One token** (the paper's appendix A.2). For unit vectors p_T, p_C in R^n, one of them uniform on the sphere,
(1 + p_T·p_C)/2 follows Beta((n−1)/2, (n−1)/2). So the alignment u = √n p_T·p_C has density
∝ (1 − u²/n)^((n−3)/2) on [−√n, √n], mean 0, variance 1, and the standard normal as its limit. The score is
b = λ tanh(γu).

**Two tokens.** Taking u as normal, scores whose alignments have correlation ρ have covariance λ² κ(ρ) with

    κ(ρ) = E[tanh(γU) tanh(γV)],  corr(U, V) = ρ
         = Σ_{j odd} c_j² ρ^j,    c_j = E[tanh(γU) He_j(U)] / √j!     (Mehler's formula)

because tanh is odd. The coefficients come from Gauss-Hermite quadrature. The series is truncated after
`TERMS` odd powers and the remainder of κ(1) is added to the last one, so κ(1) is exact and κ(ρ) is never too
small for 0 ≤ ρ ≤ 1: truncation can only make the test more conservative.

**A sum of L independent scores** has no closed form. Its distribution is computed to full relative precision
by an FFT of the exponentially tilted distribution of one score: with q_θ(x) ∝ q(x) e^{θx} and
M(θ) = E e^{θX},

    P(S ≥ s) = M(θ)^L Σ_{x ≥ s} q_θ^{*L}(x) e^{−θx},

where θ puts the mean of q_θ^{*L} at s, so that rounding loses nothing that matters.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.polynomial import hermite_e
from scipy import special

from dewmark.arrays import F64
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic, gaussian_test

TERMS = 5
_NODES = 200
_CELLS = 4096
_LONGEST = 2000  # beyond this, the sum is normal to far more digits than its terms deserve


@functools.cache
def tanh_kernel(gamma: float) -> tuple[float, ...]:
    """The coefficients of ρ, ρ², ρ³, … in κ: c_1², 0, c_3², …; their sum is κ(1) = E[tanh²(γU)]."""
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


def saturate(gamma: float, u: F64) -> F64:
    """tanh(γu)."""
    return np.asarray(np.tanh(gamma * u))


def alignment_sf(u: float, n: int) -> float:
    """P(U > u) for the alignment of one token in n dimensions."""
    x = min(max((1.0 - u / math.sqrt(n)) / 2.0, 0.0), 1.0)
    return float(special.betainc((n - 1) / 2.0, (n - 1) / 2.0, x))


def tanh_variance(gamma: float, n: int) -> float:
    """E[tanh²(γU)] under the exact distribution in n dimensions (remark in appendix A.3), by quadrature."""
    x, mass = _null_distribution(gamma, n)
    return float(mass @ x**2)


def sum_sf(total: float, length: int, *, gamma: float, n: int) -> float:
    """P(Σ_{i ≤ length} tanh(γU_i) ≥ total) for independent U_i."""
    from scipy import fft

    if length == 1:
        return alignment_sf(math.atanh(max(min(total, 1.0 - 1e-15), -1.0 + 1e-15)) / gamma, n)
    x, mass = _null_distribution(gamma, n)
    inside = length * float(x[-1]) * (1.0 - 1e-9)
    if total >= inside:
        return 0.0
    if total < 0.0:
        return 1.0 - sum_sf(-total, length, gamma=gamma, n=n)  # the distribution is symmetric
    theta = _tilt(x, mass, total / length)
    tilted = mass * np.exp(theta * (x - x[-1]))
    log_M = math.log(float(tilted.sum())) + theta * float(x[-1])
    size = fft.next_fast_len(length * (len(x) - 1) + 1, real=True)
    power = fft.irfft(fft.rfft(tilted / tilted.sum(), size) ** length, size)[: length * (len(x) - 1) + 1]
    step = float(x[1] - x[0])
    sums = length * float(x[0]) + step * np.arange(len(power))
    first = max(int((total - sums[0]) / step - 0.5), 0)
    sums, power = sums[first:], np.maximum(power[first:], 0.0)
    # the cell that contains the total counts by its share above it
    share = np.clip((sums - total) / step + 0.5, 0.0, 1.0)
    tail = float(np.sum(share * power * np.exp(-theta * (sums - total))))
    return min(1.0, math.exp(length * log_M - theta * total) * tail)


def beta_test(evidence: Evidence, *, gamma: float, n: int) -> Statistic:
    """The paper's test with the exact distribution of the sum instead of its Gaussian limit; L_eff = L."""
    if len(evidence) == 0:
        return NOTHING
    normal = gaussian_test(evidence)
    if evidence.length > _LONGEST:
        return normal
    z = evidence.total / math.sqrt(evidence.length * tanh_variance(gamma, n))
    p_value = sum_sf(evidence.total, evidence.length, gamma=gamma, n=n)
    return Statistic(z=z, p_value=p_value, effective_length=normal.effective_length)


@functools.lru_cache(maxsize=16)
def _null_distribution(gamma: float, n: int) -> tuple[F64, F64]:
    """The distribution of tanh(γU) on `_CELLS` equal cells: midpoints (cells,) and probabilities (cells,)."""
    top = math.tanh(gamma * math.sqrt(n))
    edges = np.linspace(-top, top, _CELLS + 1)
    u = np.arctanh(edges[1:-1]) / (gamma * math.sqrt(n))
    half = (n - 1) / 2.0
    cdf = np.concatenate(([0.0], special.betainc(half, half, (1.0 + u) / 2.0), [1.0]))
    mass = np.diff(cdf)
    mass = (mass + mass[::-1]) / 2.0  # exactly symmetric, so that the mean is exactly 0
    return (edges[1:] + edges[:-1]) / 2.0, mass


def _tilt(x: F64, mass: F64, mean: float) -> float:
    """θ ≥ 0 for which the tilted distribution of one score has the given mean, which is at least 0."""
    from scipy.optimize import brentq  # slow to import, and the key test does without

    def excess(theta: float) -> float:
        weights = mass * np.exp(theta * (x - x[-1]))
        return float(weights @ x / weights.sum()) - mean

    reach = 1.0
    while excess(reach) < 0.0:
        reach *= 2.0
    return float(brentq(excess, 0.0, reach, xtol=1e-10))
