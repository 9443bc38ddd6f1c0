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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dewmark.arrays import F32, F64
from dewmark.stats.evidence import Evidence

__all__ = ["Cuts", "Stack", "cut_sizes", "flatten", "leading_directions", "most_directions", "text_matrix"]

Array = Any  # of numpy or of torch
Library = Any  # numpy or torch

_DIRECTIONS, _OF_LONG = 24, 64  # at most so many are cut, of texts with up to 2d pairs and of longer ones
_ITERATIONS = 3  # of the search for them
_ROUNDS = 30  # until the bound settles
_LEAST_LIMIT = 1.05  # where nearly all directions are cut alike
_NOTHING = 1e-12  # ‖M‖² of a text that says nothing
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


def flatten(texts: Sequence[tuple[F32, F32, F64]], *, limit: float) -> list[Cuts | None]:
    """What to cut from Σ_i w_i t_i c_iᵀ of each text, None if nothing is.

    A text is rows t_i (N, d_T) and c_i (N, d_C) and weights w_i (N,). Texts that search for equally many
    directions do so together.
    """
    found: list[Cuts | None] = [None] * len(texts)
    alike: dict[tuple[int, int], list[int]] = {}
    for i, (t, c, weights) in enumerate(texts):
        whole = 2 * len(t) >= c.shape[1]  # otherwise two factors are cheaper than their product
        most = most_directions(len(t), float(weights.sum()), d=min(t.shape[1], c.shape[1]))
        alike.setdefault((most, -1 if whole else i), []).append(i)
    for (most, alone), members in alike.items():
        if not most:
            continue
        rows = [(texts[i][0], _weighted(*texts[i][1:])) for i in members]
        matrices = Stack.of(rows) if alone < 0 else _Factors(*rows[0])
        squares = matrices.squares
        values, left, right = leading_directions(matrices, most)
        for j, i in enumerate(members):
            length, d = float(texts[i][2].sum()), min(left.shape[1], right.shape[1])
            sizes, square = cut_sizes(values[j], squares[j], length, d=d, limit=limit)
            count = len(sizes)
            if count:
                along = right[j, :, :count].astype(np.float32)
                shares = rows[j][1] @ along / values[j, :count].astype(np.float32)
                found[i] = Cuts(
                    left=np.ascontiguousarray(left[j, :, :count].T, dtype=np.float32),
                    right=np.ascontiguousarray(along.T),
                    sizes=sizes,
                    shares=np.ascontiguousarray(shares.T),
                    square=square,
                )
    return found


def most_directions(pairs: int, length: float, *, d: int) -> int:
    """How many directions to look for in a text of so many pairs, whose weights sum to ``length``."""
    return min(_DIRECTIONS if length <= 2 * d else _OF_LONG, pairs, d)


def cut_sizes(values: F64, square: float, length: float, *, d: int, limit: float) -> tuple[F64, float]:
    """What is cut from those of a matrix's singular values (q,) that stand out, and ‖f(M)‖².

    ``square`` is ‖M‖², ``length`` the sum of the text's weights, and the largest value comes first.
    """
    if square <= _NOTHING:
        return values[:0], square
    limit = max(limit * min(2.0 * d / length, 1.0) ** (1 / 3), min(limit, _LEAST_LIMIT))
    bound = _bound(values, square, limit, rank=min(length, d))
    values = values[: int(np.count_nonzero(values > bound))]
    sizes = values - bound
    # ⟨M, l_j r_jᵀ⟩ = s_j, and both the l_j and the r_j are orthonormal
    return sizes, square - float(np.sum(sizes * (values + bound)))


@dataclass(frozen=True)
class Stack:
    """The matrices M = tᵀ c of B texts, (B, d_T, d_C), as an array of numpy or of torch."""

    matrices: Array

    @classmethod
    def of(cls, texts: Sequence[tuple[F32, F32]]) -> Stack:
        """From the rows t (N, d_T) and c (N, d_C) of each text."""
        stack = np.empty((len(texts), *(rows.shape[1] for rows in texts[0])), dtype=np.float32)
        for out, (t, c) in zip(stack, texts, strict=True):
            np.matmul(t.T, c, out=out)
        return cls(stack)

    def start(self, columns: int) -> Array:
        """Fixed random columns (d_C, columns), an array like the matrices."""
        drawn = _start(self.matrices.shape[-1], columns)
        return drawn if isinstance(self.matrices, np.ndarray) else self.matrices.new_tensor(drawn)

    @property
    def squares(self) -> list[float]:
        """‖M‖² of each matrix."""
        # in double precision: what is cut is subtracted from it, and may be nearly all
        return [float(np.einsum("ij,ij->", M, M, dtype=np.float64)) for M in self.matrices]

    def times(self, x: Array) -> Array:
        """M x (B, d_T, q)."""
        return self.matrices @ x

    def transposed(self, x: Array) -> Array:
        """Mᵀ x (B, d_C, q)."""
        return self.matrices.mT @ x


@dataclass(frozen=True)
class _Factors:
    """The matrix M = tᵀ c of one text, as its factors (N, d_T) and (N, d_C)."""

    t: F32
    c: F32

    def start(self, columns: int) -> F32:
        return _start(self.c.shape[-1], columns)

    @property
    def squares(self) -> list[float]:
        products = (self.t @ self.t.T) * (self.c @ self.c.T)
        return [max(float(np.sum(products, dtype=np.float64)), 0.0)]

    def times(self, x: F32) -> F32:
        return self.t.T @ (self.c @ x.reshape(x.shape[-2:]))[None]

    def transposed(self, x: F32) -> F32:
        return self.c.T @ (self.t @ x)


def _weighted(c: F32, weights: F64) -> F32:
    return c if np.all(weights == 1.0) else c * weights.astype(np.float32)[:, None]


def leading_directions(
    matrices: Stack | _Factors, count: int, *, xp: Library = np
) -> tuple[Array, Array, Array]:
    """The leading singular values (B, q) of B matrices, and their directions (B, d_T, q) and (B, d_C, q).

    ``xp`` is the library of the arrays: numpy, or torch on any device.
    """
    right = matrices.start(count)
    for _ in range(_ITERATIONS):
        right = _orthonormal(matrices.transposed(matrices.times(right)), xp)
    image, right = (xp.asarray(each, dtype=xp.float64) for each in (matrices.times(right), right))
    squares, turn = xp.linalg.eigh(image.mT @ image)
    squares, turn = xp.flip(squares, (-1,)), xp.flip(turn, (-1,))
    values = xp.sqrt(squares * (squares > 0.0))
    return values, image @ turn / (values + (values == 0.0))[:, None], right @ turn


def _orthonormal(columns: Array, xp: Library) -> Array:
    """An orthonormal basis (B, d, q) of each space of columns (B, d, q), float32."""
    wide = xp.asarray(columns, dtype=xp.float64)
    try:  # in double precision this is a QR decomposition at a third of the time, unless some are alike
        factor = xp.linalg.cholesky(wide.mT @ wide)
    except xp.linalg.LinAlgError:
        if half := len(wide) // 2:
            return xp.concatenate([_orthonormal(part, xp) for part in (columns[:half], columns[half:])])
        return xp.asarray(xp.linalg.qr(wide)[0], dtype=xp.float32)
    basis = wide @ xp.linalg.inv(factor).mT
    alike = xp.amin(xp.linalg.diagonal(factor), -1) < _ALIKE * factor[:, 0, 0]
    for i, replaced in enumerate(alike.tolist()):
        if replaced:
            basis[i] = xp.linalg.qr(wide[i])[0]
    return xp.asarray(basis, dtype=xp.float32)


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
