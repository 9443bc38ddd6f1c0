"""A text as one public matrix M = Σ_i w_i t_i c_iᵀ, and how to flatten it.

Under one key two unrelated texts are correlated as far as their matrices point the same way. The expected
pair of a language or a kind of text, E[t cᵀ], grows with the length of the text, its fluctuation only with
the root. It lies in few directions, so it stands out among the singular values of M; a mark, which follows
the key's W, lies in all directions alike. So no singular value may exceed ``limit`` times their root mean
square; what does is cut down to that:

    f(M) = M − Σ_j (s_j − b)₊ l_j r_jᵀ,    b = limit · ‖f(M)‖/√min(L, d)

A text with many more pairs than the space has dimensions d can spare evidence, and has more in common with
others: from L = 2d on the limit falls with ∛L, down to `_LEAST_LIMIT`.

f(M) is a function of the text alone, so the key test stays exact. The variance over keys of the score is
‖f(M)‖², computed in double precision from f(M) itself: as a difference of two norms it would lose its digits
where little is left of M. That happens to texts of few directions (drills, lists, the same words over and
over): b then shrinks towards 0. Below `LEAST_SHARE` of the evidence there is nothing to test. (Measured
figures are in the statistics page of the documentation.)
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
from dewmark.stats.key_test import TINY

__all__ = ["Cuts", "cut_sizes", "flatten", "leading_directions", "most_directions", "testable", "text_matrix"]

Array = Any  # of numpy or of torch
Library = Any  # numpy or torch

_DIRECTIONS, _OF_LONG = 24, 64  # at most so many are cut, of texts with up to 2d pairs and of longer ones
_ITERATIONS = 3  # of the search for them
_ROUNDS = 30  # until the bound settles
_LEAST_LIMIT = 1.05  # where nearly all directions are cut alike
LEAST_SHARE = 0.01
"""A text is tested if at least this share of its evidence is left after flattening; ordinary ones keep 5% or
more."""
_ALIKE = 1e-5  # of two columns, relative to the first: too near for half the digits


@dataclass(frozen=True)
class Cuts:
    """The q directions of a text's matrix that stand out, and by how much.

    ``left`` (q, d_T) and ``right`` (q, d_C) are unit rows, ``sizes`` (q,) what is cut from each singular
    value. left_j = Σ_i shares_ji t_i with ``shares`` (q, N), so that it is known under a key as soon as the
    units are. ``square`` is ‖f(M)‖², the variance over keys of the flattened sum; 0 if the text is not to be
    tested.
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


def flatten(texts: Sequence[tuple[F32, F32, F64]], *, limit: float) -> list[Cuts]:
    """What to cut from Σ_i w_i t_i c_iᵀ of each text.

    A text is rows t_i (N, d_T) and c_i (N, d_C) and weights w_i (N,). Texts that search for equally many
    directions do so together.
    """
    found: list[Cuts | None] = [None] * len(texts)
    alike: dict[int, list[int]] = {}
    for i, (t, c, weights) in enumerate(texts):
        most = most_directions(len(t), float(weights.sum()), d=min(t.shape[1], c.shape[1]))
        alike.setdefault(most, []).append(i)
    for most, members in alike.items():
        T = [texts[i][0].astype(np.float64) for i in members]
        C = [texts[i][1] * texts[i][2][:, None] for i in members]
        matrices = np.stack([t.T @ c for t, c in zip(T, C, strict=True)])
        values, left, right = leading_directions(matrices.astype(np.float32), most)
        for i, *rows in zip(members, T, C, matrices, values, left, right, strict=True):
            found[i] = _cuts(*rows, length=float(texts[i][2].sum()), limit=limit)
    return [each for each in found if each is not None]


def _cuts(t: F64, c: F64, M: F64, values: F64, left: F64, right: F64, *, length: float, limit: float) -> Cuts:
    """The cuts of M = tᵀ c, from its leading singular values (q,) and directions (d_T, q) and (d_C, q)."""
    square = float(np.sum(np.square(M)))
    sizes = cut_sizes(values, square, length, d=min(M.shape), limit=limit)
    left, right = left[:, : len(sizes)], right[:, : len(sizes)]
    kept = float(np.sum(np.square(M - (left * sizes) @ right.T)))
    energy = float(np.sum(np.square(np.linalg.norm(t, axis=1) * np.linalg.norm(c, axis=1))))
    return Cuts(
        left=np.ascontiguousarray(left.T, dtype=np.float32),
        right=np.ascontiguousarray(right.T, dtype=np.float32),
        sizes=sizes,
        shares=((c @ right) / values[: len(sizes)]).T.astype(np.float32),
        square=kept if testable(kept, square, energy) else 0.0,
    )


def testable(kept: float, *energies: float) -> bool:
    """Whether ‖f(M)‖² is large enough beside ‖M‖² and Σ_i ‖w_i t_i c_iᵀ‖²."""
    return kept > max(TINY, *(LEAST_SHARE * energy for energy in energies))


def most_directions(pairs: int, length: float, *, d: int) -> int:
    """How many directions to look for in a text of so many pairs, whose weights sum to ``length``."""
    return min(_DIRECTIONS if length <= 2 * d else _OF_LONG, pairs, d)


def cut_sizes(values: F64, square: float, length: float, *, d: int, limit: float) -> F64:
    """What is cut from those of a matrix's singular values (q,) that stand out.

    ``square`` is ‖M‖², ``length`` the sum of the text's weights, and the largest value comes first.
    """
    if square <= TINY:
        return values[:0]
    limit = max(limit * min(2.0 * d / length, 1.0) ** (1 / 3), min(limit, _LEAST_LIMIT))
    bound = _bound(values, square, limit, rank=min(length, d))
    return values[values > bound] - bound


def leading_directions(matrices: Array, count: int, *, xp: Library = np) -> tuple[Array, Array, Array]:
    """The leading singular values (B, q) of matrices (B, d_T, d_C), float32, and their directions.

    These are (B, d_T, q) and (B, d_C, q). ``xp`` is the library of the arrays: numpy, or torch.
    """
    start = _start(matrices.shape[-1], count)
    right = start if xp is np else matrices.new_tensor(start)
    if not count:
        return matrices[:, 0, :0], matrices[..., :0], matrices.mT[..., :0]
    for _ in range(_ITERATIONS):
        right = _orthonormal(matrices.mT @ (matrices @ right), xp)
    image, right = (xp.asarray(each, dtype=xp.float64) for each in (matrices @ right, right))
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
