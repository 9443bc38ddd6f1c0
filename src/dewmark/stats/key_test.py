"""The key test: fix the text, let the key be random.

Under H0 the text does not depend on the key, so over keys its token alignments u_i are standard normal with
covariance ρ_ij = ⟨ê_T,i, ê_T,j⟩⟨ê_C,i, ê_C,j⟩, and S = Σ_i tanh(γ u_i) has mean 0 and variance Σ_ij κ(ρ_ij).
Then

    z = S / √Σ_ij κ(ρ_ij),    p = 1 − Φ(z),    L_eff = L² κ(1) / Σ_ij κ(ρ_ij)

hold for every text, language, length and repetition, with no calibration set. Pairs that occur several
times enter once, with a weight. The sum runs over square blocks, so memory does not grow with L².

Each factor of ρ is given either as unit rows (N, d) or, where an ablation has removed the semantics and two
entries are correlated only if they are the same, as integer labels (N,).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dewmark.stats.nulls import kappa, kappa_coefficients, one_sided_p

__all__ = ["Statistic", "gaussian_test", "key_test", "score_variance"]

F32 = NDArray[np.float32]
Factor = NDArray[np.floating] | NDArray[np.integer]

BLOCK = 2048
EXACT_LIMIT = 65_536


@dataclass(frozen=True, slots=True)
class Statistic:
    """A standardised sum of scores."""

    z: float
    p_value: float
    effective_length: float


def key_test(
    u: NDArray[np.floating], weights: NDArray[np.floating], T: Factor, C: Factor, *, gamma: float
) -> Statistic:
    """Test alignments u (N,) of N distinct (context, token) pairs, pair i seen weights[i] times.

    T and C are the token and context factors of the pairs' key correlations.
    """
    length = float(weights.sum())
    if length == 0.0:
        return Statistic(z=0.0, p_value=1.0, effective_length=0.0)
    total = float(np.dot(weights, np.tanh(gamma * np.asarray(u, dtype=np.float64))))
    variance = score_variance(weights, T, C, gamma=gamma)
    z = total / math.sqrt(variance)
    return Statistic(z=z, p_value=one_sided_p(z), effective_length=length**2 * kappa_one(gamma) / variance)


def gaussian_test(
    u: NDArray[np.floating],
    weights: NDArray[np.floating],
    *,
    gamma: float,
    effective_length: float | None = None,
) -> Statistic:
    """The paper's test (appendix A.3): tokens taken as independent, L_eff = L unless given."""
    length = float(weights.sum())
    if length == 0.0:
        return Statistic(z=0.0, p_value=1.0, effective_length=0.0)
    effective = length if effective_length is None else effective_length
    mean = float(np.dot(weights, np.tanh(gamma * np.asarray(u, dtype=np.float64)))) / length
    z = mean * math.sqrt(effective / kappa_one(gamma))
    return Statistic(z=z, p_value=one_sided_p(z), effective_length=effective)


def kappa_one(gamma: float) -> float:
    """κ(1) = E[tanh²(γU)], the variance of one saturated score over λ²."""
    return math.fsum(kappa_coefficients(gamma))


def score_variance(weights: NDArray[np.floating], T: Factor, C: Factor, *, gamma: float) -> float:
    """Σ_ij w_i w_j κ(ρ_ij) over N distinct pairs.

    Up to `EXACT_LIMIT` pairs the sum is exact. Beyond, the term linear in ρ is still exact (it is a norm and
    costs O(N)), κ's higher terms are exact on the diagonal, and off it they are estimated on a subsample.
    """
    w = np.asarray(weights, dtype=np.float32)
    if len(w) <= EXACT_LIMIT:
        return _pairwise(w, T, C, gamma=gamma)
    chosen = np.random.default_rng(0).choice(len(w), size=EXACT_LIMIT // 4, replace=False)
    c1 = kappa_coefficients(gamma)[0]
    higher = kappa_one(gamma) - c1
    ws, Ts, Cs = w[chosen], T[chosen], C[chosen]
    off_diagonal = _pairwise(ws, Ts, Cs, gamma=gamma) - c1 * _linear(ws, Ts, Cs) - higher * float(ws @ ws)
    scale = (len(w) / len(chosen)) ** 2
    return c1 * _linear(w, T, C) + higher * float(w @ w) + scale * max(off_diagonal, 0.0)


def _pairwise(w: F32, T: Factor, C: Factor, *, gamma: float) -> float:
    total = 0.0
    for i in range(0, len(w), BLOCK):
        rows = slice(i, i + BLOCK)
        for j in range(i, len(w), BLOCK):
            columns = slice(j, j + BLOCK)
            rho = _gram(T[rows], T[columns]) * _gram(C[rows], C[columns])
            block = float(w[rows].astype(np.float64) @ (kappa(rho, gamma) @ w[columns]))
            total += block if i == j else 2.0 * block
    return total


def _gram(a: Factor, b: Factor) -> F32:
    if a.ndim == 1:
        return np.equal(a[:, None], b[None, :]).astype(np.float32)
    return np.asarray(a @ b.T, dtype=np.float32)


def _linear(w: F32, T: Factor, C: Factor) -> float:
    """Σ_ij w_i w_j ρ_ij = ‖Σ_i w_i t_i ⊗ c_i‖², with labels standing for orthogonal unit vectors."""
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
