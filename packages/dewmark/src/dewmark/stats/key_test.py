"""The key test: fix the text, let the key be random.

Under H0 the text does not depend on the key, so over keys its scores s_i have mean 0 and a covariance f(ρ_ij)
that depends on the text alone (`dewmark.stats.evidence`). S = Σ_i w_i s_i has variance Σ_ij w_i w_j f(ρ_ij),
and

    z = S / √Σ_ij w_i w_j f(ρ_ij),    p = 1 − Φ(z),    L_eff = L² f(1) / Σ_ij w_i w_j f(ρ_ij)

hold for every text, in any language, of any length and with any repetition, without a calibration set. A pair
that occurs several times enters once, with a weight, and L_eff never exceeds the number of distinct pairs.
The sum runs over square blocks, so memory does not grow with L².
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from dewmark.arrays import F32, I64
from dewmark.stats.evidence import Evidence, Factor

__all__ = ["NOTHING", "Statistic", "cross_variance", "key_test", "one_sided_p", "score_variance"]

Index = slice | I64

BLOCK = 2048
TINY = 1e-9
LINEAR_LIMIT = 400  # beyond this, a norm of d_T x d_C numbers is cheaper than all pairs


@dataclass(frozen=True, slots=True)
class Statistic:
    """A standardised sum of scores."""

    z: float
    p_value: float
    effective_length: float


NOTHING = Statistic(z=0.0, p_value=1.0, effective_length=0.0)


def key_test(evidence: Evidence, *, variance: float | None = None) -> Statistic:
    """Test one text against random keys; ``variance`` is its `score_variance`, if already known."""
    if len(evidence) == 0:
        return NOTHING
    variance = score_variance(evidence) if variance is None else variance
    if variance <= TINY:  # no unit differs from the others: nothing to test
        return NOTHING
    z = evidence.total / math.sqrt(variance)
    return Statistic(z, one_sided_p(z), evidence.effective_length(variance))


def one_sided_p(z: float) -> float:
    """P(N(0,1) > z)."""
    return float(ndtr(-z))


def gaussian_test(evidence: Evidence, *, effective_length: float | None = None) -> Statistic:
    """The paper's test (appendix A.3), which treats tokens as independent: L_eff = L unless given."""
    if len(evidence) == 0:
        return NOTHING
    effective = float(evidence.length) if effective_length is None else effective_length
    z = evidence.total / evidence.length * math.sqrt(effective / evidence.variance)
    return Statistic(z, one_sided_p(z), effective)


def power_series(rho: F32, coefficients: tuple[float, ...]) -> F32:
    """Σ_j coefficients[j] ρ^(j+1), elementwise (by Horner, in ρ² if all powers are odd)."""
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


def covariance(evidence: Evidence, rows: Index, columns: Index) -> F32:
    """The covariance over keys between the scores of two sets of distinct pairs, (rows, columns)."""
    found = _common(evidence, rows, columns)
    if evidence.own is not None:
        every = np.arange(len(evidence))
        pairs, i, j = np.intersect1d(every[rows], every[columns], assume_unique=True, return_indices=True)
        found[i, j] += evidence.own[pairs]
    return found


def _common(evidence: Evidence, rows: Index, columns: Index) -> F32:
    """The covariance without the variances that pairs have of their own."""
    T, C = evidence.T, evidence.C
    rho = _gram(T[rows], T[columns])
    rho *= _gram(C[rows], C[columns])
    return power_series(rho, evidence.kernel)


def cross_variance(a: Evidence, b: Evidence) -> float:
    """Σ_ij w_i w_j f(ρ_ij) over pairs i of one text and j of another: the covariance of their sums."""
    w, v = a.weights, b.weights.astype(np.float32)
    total = 0.0
    for i in range(0, len(a), BLOCK):
        rows = slice(i, i + BLOCK)
        for j in range(0, len(b), BLOCK):
            columns = slice(j, j + BLOCK)
            rho = _gram(a.T[rows], b.T[columns]) * _gram(a.C[rows], b.C[columns])
            total += float(w[rows] @ (power_series(rho, a.kernel) @ v[columns]))
    return total


def score_variance(evidence: Evidence) -> float:
    """Σ_ij w_i w_j f(ρ_ij), and w_i² for each pair's own: the variance over keys of the sum of scores.

    If f is linear, it is a norm, ‖Σ_i w_i t_i ⊗ c_i‖², and costs O(N); otherwise it takes all pairs.
    """
    w = evidence.weights.astype(np.float32)
    total = 0.0 if evidence.own is None else float(np.square(evidence.weights) @ evidence.own)
    if len(evidence) > LINEAR_LIMIT and not any(evidence.kernel[1:]):
        return total + evidence.kernel[0] * _linear(w, evidence.T, evidence.C)
    for i in range(0, len(w), BLOCK):
        rows = slice(i, i + BLOCK)
        for j in range(i, len(w), BLOCK):
            columns = slice(j, j + BLOCK)
            block = float(evidence.weights[rows] @ (_common(evidence, rows, columns) @ w[columns]))
            total += block if i == j else 2.0 * block
    return total


def _gram(a: Factor, b: Factor) -> F32:
    if a.ndim == 1:
        return np.equal(a[:, None], b[None, :]).astype(np.float32)
    return np.asarray(a @ b.T, dtype=np.float32)


def _linear(w: F32, T: Factor, C: Factor) -> float:
    """Σ_ij w_i w_j ρ_ij = ‖Σ_i w_i t_i ⊗ c_i‖², with labels as orthogonal unit vectors."""
    if T.ndim == 1 and C.ndim == 1:
        return float(w.astype(np.float64) @ w)  # pairs are distinct, so no two share both labels
    if T.ndim == 1 or C.ndim == 1:
        labels, rows = (T, C) if T.ndim == 1 else (C, T)
        _, group = np.unique(labels, return_inverse=True)
        sums = np.zeros((int(group.max()) + 1, rows.shape[1]))
        np.add.at(sums, group, rows * w[:, None])
        return float(np.sum(sums**2))
    total = np.zeros((T.shape[1], C.shape[1]))
    for i in range(0, len(w), BLOCK):
        total += (T[i : i + BLOCK] * w[i : i + BLOCK, None]).T @ C[i : i + BLOCK]
    return float(np.sum(total**2))
