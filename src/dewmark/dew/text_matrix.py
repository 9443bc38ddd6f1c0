"""A text as one public matrix M = Σ_i w_i t_i c_iᵀ, and how to flatten it.

Under one key two unrelated texts are correlated as far as their matrices point the same way. The expected
pair of a language or a kind of text, E[t cᵀ], grows with the length of the text, its fluctuation only with
the root. It lies in few directions, so it stands out among the singular values of M; a mark, which follows
the key's W, lies in all directions alike. So no singular value may exceed ``limit`` times their root mean
square; what does is cut down to that:

    f(M) = M − Σ_j (s_j − b)₊ l_j r_jᵀ,    b = limit · ‖f(M)‖/√min(L, d)

A text with many more pairs than the space has dimensions d can spare evidence, and has more in common with
others: from L = 2d on the limit falls with ∛L, down to `_LEAST_LIMIT`.

f(M) is a function of the text alone, so the key test stays exact. (Measured figures are in the statistics
page of the documentation.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dewmark.arrays import F32, F64
from dewmark.stats.evidence import Evidence, Factor

__all__ = ["Cuts", "flatten", "text_matrix"]

_DIRECTIONS, _OF_LONG = 24, 64  # at most so many are cut, of texts with up to 2d pairs and of longer ones
_ITERATIONS = 3  # of the search for them
_ROUNDS = 30  # until the bound settles
_LEAST_LIMIT = 1.05  # where nearly all directions are cut alike


@dataclass(frozen=True)
class Cuts:
    """The q directions of a text's matrix that stand out, and by how much.

    ``left`` (q, d_T) and ``right`` (q, d_C) are unit rows, ``sizes`` (q,) what is cut from each singular
    value. left_j = Σ_i shares_ji t_i with ``shares`` (q, N), so that it is known under a key as soon as the
    units are.
    """

    left: F32
    right: F32
    sizes: F64
    shares: F32


def text_matrix(evidence: Evidence) -> F32:
    """M (d_T, d_C): under a key with matrix W the sum of a text's linear scores is ⟨M, W⟩.

    The pairs that `flatten` adds are in it, so it is f(M) where a scheme flattens.
    """
    weighted = np.asarray(evidence.C, dtype=np.float32) * evidence.weights.astype(np.float32)[:, None]
    return np.asarray(evidence.T, dtype=np.float32).T @ weighted


def flatten(T: Factor, C: Factor, weights: F64, *, limit: float) -> Cuts | None:
    """Find what to cut from Σ_i w_i t_i c_iᵀ, rows t_i (N, d_T) and c_i (N, d_C); None if nothing is."""
    t, c = np.asarray(T, dtype=np.float32), np.asarray(C, dtype=np.float32)
    weighted = c * weights.astype(np.float32)[:, None]
    square = _squared_norm(t, weighted)
    if square <= 1e-12:
        return None
    length, d = float(weights.sum()), min(t.shape[1], c.shape[1])
    directions = _DIRECTIONS if length <= 2 * d else _OF_LONG
    right, _ = np.linalg.qr(_start(c.shape[1], min(directions, len(t), c.shape[1])))
    for _ in range(_ITERATIONS):
        right, _ = np.linalg.qr(weighted.T @ (t @ (t.T @ (weighted @ right))))
    left, values, turn = np.linalg.svd(t.T @ (weighted @ right), full_matrices=False)
    limit = max(limit * min(2.0 * d / length, 1.0) ** (1 / 3), min(limit, _LEAST_LIMIT))
    bound = _bound(values, square, limit, rank=min(length, d))
    out = values > bound
    if not np.any(out):
        return None
    right = right @ turn[out].T
    shares = (weighted @ right) / values[out]
    return Cuts(
        left=np.ascontiguousarray(left[:, out].T),
        right=np.ascontiguousarray(right.T),
        sizes=(values[out] - bound).astype(np.float64),
        shares=np.ascontiguousarray(shares.T),
    )


def _bound(values: F32, square: float, limit: float, *, rank: float) -> float:
    """b for a matrix of this squared norm with these singular values (q,) at the top."""
    rest = max(square - float(np.sum(np.square(values), dtype=np.float64)), 0.0)
    bound = limit * math.sqrt(square / rank)
    for _ in range(_ROUNDS):
        flat = rest + float(np.sum(np.square(np.minimum(values, bound)), dtype=np.float64))
        bound = limit * math.sqrt(flat / rank)
    return bound


def _squared_norm(t: F32, weighted: F32) -> float:
    """‖Σ_i t_i c_iᵀ‖², the cheaper of two ways."""
    if len(t) < t.shape[1]:
        return max(float(np.sum((t @ t.T) * (weighted @ weighted.T), dtype=np.float64)), 0.0)
    return float(np.sum(np.square(t.T @ weighted), dtype=np.float64))


def _start(rows: int, columns: int) -> F32:
    """Fixed random columns from which the search for directions starts, (rows, columns)."""
    return np.random.default_rng(0).standard_normal((rows, columns), dtype=np.float32)
