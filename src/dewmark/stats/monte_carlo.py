"""The key test by simulation: score the same text under many simulated keys and rank the real one among them.

Under H0 the real key is exchangeable with fresh ones, so

    p = (1 + #{k : S_k ≥ S}) / (K + 1)

is an exactly valid p-value for every n, γ and text: no normality, no series, no limit. It is the oracle
against which the closed form is tested.

For Gaussian projections the projected rows X = ÊR are normal over keys with row covariance ÊÊᵀ, so with
AAᵀ = ÊÊᵀ and standard normal N the rows of A N have exactly the same law. For orthogonal projections the same
holds with blocks of orthonormal rows in place of N. A has as many columns as the text has distinct tokens (or
contexts), which is less work than drawing keys. Labels, which carry no semantics, are independent: A = I.

The simulated keys come from a hash of the text, so the same text always gets the same p-value.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from dewmark.arrays import F32, F64, I64
from dewmark.stats.evidence import Evidence, Factor
from dewmark.stats.key_test import NOTHING, Statistic, effective_length

__all__ = ["KEYS", "monte_carlo_sums", "monte_carlo_test"]

Score = Callable[[F64], F64]
Kind = Literal["gaussian", "orthogonal"]

KEYS = 999


def monte_carlo_test(
    evidence: Evidence, score: Score, *, n: int, kind: Kind = "gaussian", keys: int = KEYS
) -> Statistic:
    """Rank a text's sum among those of ``keys`` simulated keys; ``score`` maps alignments to scores."""
    if len(evidence) == 0:
        return NOTHING
    sums = monte_carlo_sums(evidence, score, n=n, kind=kind, keys=keys)
    variance = float(np.mean(sums**2))  # the mean over keys is 0 by symmetry
    p_value = (1 + int(np.count_nonzero(sums >= evidence.total))) / (keys + 1)
    return Statistic(
        z=evidence.total / math.sqrt(variance),
        p_value=p_value,
        effective_length=effective_length(evidence, variance),
    )


def monte_carlo_sums(
    evidence: Evidence, score: Score, *, n: int, kind: Kind = "gaussian", keys: int = KEYS
) -> F64:
    """Σ_i w_i score(u_i) under simulated keys, (keys,)."""
    rng = np.random.default_rng(_seed(evidence))
    tokens, t = _side(evidence.T)
    contexts, c = _side(evidence.C)
    d_T, d_C = _width(evidence.T, n), _width(evidence.C, n)
    sums = np.empty(keys)
    for i in range(keys):
        P_T = _project(tokens, d_T, n, kind, rng)
        P_C = _project(contexts, d_C, n, kind, rng)
        u = math.sqrt(n) * np.einsum("ij,ij->i", P_T[t], P_C[c], dtype=np.float64)
        sums[i] = float(evidence.weights @ score(u))
    return sums


def _side(factor: Factor) -> tuple[F32 | int, I64]:
    """A (N, r) with AAᵀ the Gram matrix of distinct rows (or the number of labels), and each pair's row."""
    if factor.ndim == 1:
        labels, index = np.unique(factor, return_inverse=True)
        return len(labels), index
    rows, index = np.unique(factor, axis=0, return_inverse=True)
    if len(rows) >= rows.shape[1]:
        return np.asarray(rows, dtype=np.float32), index
    values, vectors = np.linalg.eigh(rows.astype(np.float64) @ rows.T.astype(np.float64))
    kept = values > 1e-9
    return (vectors[:, kept] * np.sqrt(values[kept])).astype(np.float32), index


def _width(factor: Factor, n: int) -> int:
    return n if factor.ndim == 1 else int(factor.shape[1])


def _project(side: F32 | int, d: int, n: int, kind: Kind, rng: np.random.Generator) -> F32:
    """Unit rows of A N for fresh N, (N, n)."""
    if isinstance(side, int):
        projected = rng.standard_normal((side, n), dtype=np.float32)
    elif kind == "gaussian":
        projected = side @ rng.standard_normal((side.shape[1], n), dtype=np.float32)
    else:
        blocks = [_orthonormal_rows(side.shape[1], d, rng) for _ in range(n // d)]
        projected = side @ np.concatenate(blocks, axis=1)
    projected /= np.linalg.norm(projected, axis=1, keepdims=True)
    return projected


def _orthonormal_rows(rows: int, d: int, rng: np.random.Generator) -> F32:
    """A uniform random matrix (rows, d) with orthonormal rows."""
    q, r = np.linalg.qr(rng.standard_normal((d, rows)))
    return np.asarray((q * np.sign(np.diag(r))).T, dtype=np.float32)


def _seed(evidence: Evidence) -> list[int]:
    """A seed from the parts of the evidence that do not depend on the key."""
    digest = hashlib.sha256()
    for array in (evidence.T, evidence.C, evidence.weights):
        digest.update(np.ascontiguousarray(array).tobytes())
    return list(np.frombuffer(digest.digest(), dtype=np.uint32))
