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

import functools
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
_ALIKE = 1e-5  # of two columns, relative to the first: too near for half the digits


@dataclass(frozen=True)
class Cuts:
    """The q directions of a text's matrix that stand out, and by how much.

    ``left`` (q, d_T) and ``right`` (q, d_C) are unit rows, ``sizes`` (q,) what is cut from each singular
    value. left_j = Σ_i shares_ji t_i with ``shares`` (q, N), so that it is known under a key as soon as the
    units are. ``square`` is ‖f(M)‖², the variance over keys of the flattened sum.
    """

    left: F32
    right: F32
    sizes: F64
    shares: F32
    square: float


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
    matrix = _Product(t, weighted)
    square = matrix.square
    if square <= 1e-12:
        return None
    length, d = float(weights.sum()), min(t.shape[1], c.shape[1])
    directions = _DIRECTIONS if length <= 2 * d else _OF_LONG
    right = _start(c.shape[1], min(directions, len(t), c.shape[1]))
    for _ in range(_ITERATIONS):
        right = _orthonormal(matrix.transposed(matrix.times(right)))
    image = matrix.times(right).astype(np.float64)
    squares, turn = np.linalg.eigh(image.T @ image)
    squares, turn = squares[::-1], turn[:, ::-1]
    values = np.sqrt(np.maximum(squares, 0.0))
    limit = max(limit * min(2.0 * d / length, 1.0) ** (1 / 3), min(limit, _LEAST_LIMIT))
    bound = _bound(values, square, limit, rank=min(length, d))
    count = int(np.count_nonzero(values > bound))
    if not count:
        return None
    turn, values = turn[:, :count], values[:count]
    along = (right @ turn).astype(np.float32)
    sizes = values - bound
    return Cuts(
        left=np.ascontiguousarray((image @ turn / values).T, dtype=np.float32),
        right=np.ascontiguousarray(along.T),
        sizes=sizes,
        shares=np.ascontiguousarray((weighted @ along / values.astype(np.float32)).T),
        # ⟨M, l_j r_jᵀ⟩ = s_j, and both the l_j and the r_j are orthonormal
        square=square - float(np.sum(sizes * (values + bound))),
    )


class _Product:
    """M = tᵀ c with rows t (N, d_T) and c (N, d_C), as one matrix or as two factors: the cheaper of both."""

    def __init__(self, t: F32, c: F32) -> None:
        self._t, self._c = t, c
        whole = 2 * len(t) >= c.shape[1]
        self._matrix: F32 | None = t.T @ c if whole else None

    @property
    def square(self) -> float:
        """‖M‖²."""
        if self._matrix is not None:
            # in double precision: what is cut is subtracted from it, and may be nearly all
            return float(np.einsum("ij,ij->", self._matrix, self._matrix, dtype=np.float64))
        products = (self._t @ self._t.T) * (self._c @ self._c.T)
        return max(float(np.sum(products, dtype=np.float64)), 0.0)

    def times(self, x: F32) -> F32:
        """M x."""
        return self._t.T @ (self._c @ x) if self._matrix is None else self._matrix @ x

    def transposed(self, x: F32) -> F32:
        """Mᵀ x."""
        return self._c.T @ (self._t @ x) if self._matrix is None else self._matrix.T @ x


def _orthonormal(columns: F32) -> F32:
    """An orthonormal basis (d, q) of the space of columns (d, q)."""
    wide = columns.astype(np.float64)
    gram = wide.T @ wide
    try:  # in double precision this is a QR decomposition at a third of the time, unless some are alike
        factor = np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:
        factor = None
    if factor is None or np.min(np.diag(factor)) < _ALIKE * factor[0, 0]:
        return np.asarray(np.linalg.qr(wide)[0], dtype=np.float32)
    return np.asarray(wide @ np.linalg.inv(factor).T, dtype=np.float32)


def _bound(values: F64, square: float, limit: float, *, rank: float) -> float:
    """b for a matrix of this squared norm with these singular values (q,) at the top, the largest first."""
    ordered = values.tolist()
    rest = [max(square - float(inner), 0.0) for inner in (0.0, *np.cumsum(np.square(values)))]
    bound, cut = limit * math.sqrt(square / rank), 0
    for _ in range(_ROUNDS):
        while cut < len(ordered) and ordered[cut] > bound:
            cut += 1
        last, bound = bound, limit * math.sqrt((rest[cut] + cut * bound * bound) / rank)
        if bound == last:
            break
    return bound


@functools.cache
def _start(rows: int, columns: int) -> F32:
    """Fixed random columns from which the search for directions starts, (rows, columns)."""
    return np.random.default_rng(0).standard_normal((rows, columns), dtype=np.float32)
