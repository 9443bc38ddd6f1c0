"""Alignment under a public sign group: guess the signs of every text, and learn one W from many.

If the members of a ring, or the messages of a payload, are W_m = D_a W D_b with *public* signs, an attacker
need not treat them as unrelated keys: D_a M D_b of a text with signs (a, b) is a text of the one W. All signs
of a text are scored by one product,

    s_i(a, b) = ⟨D_a M_i D_b, Ŵ⟩ = A (M_i∘Ŵ) Bᵀ,        rows of A and B: the possible diagonals,

the texts whose best signs stand out most are aligned first, Ŵ becomes their posterior mean, and the number of
texts that take part grows from round to round (a text's own part is left out of its score). The start is one
text, whose own signs are arbitrary: Ŵ is known up to common signs, which forges as well. Several starts are
tried, and the one whose texts agree best is kept; with several independent W it finds the texts of one of
them. Without any signs (one row of ones on each side) it collects the texts of one member of a plain ring.

In a basis that is rotated by the key this does not apply: nobody else knows A and B.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dewmark.arrays import F32, I64
from dewmark.errors import ConfigError
from dewmark_lab.attacks.stealing.regression import Observed

_GROWTH = 1.3


@dataclass(frozen=True)
class AlignedTexts:
    """Texts brought to common signs.

    ``W`` (a, b) is the posterior mean from those that took part, ``used`` (n,) their places, ``signs`` (N, 2)
    the rows of A and B of every text, and ``score`` the mean agreement of a text with the others, as a z.
    """

    W: F32
    used: I64
    signs: I64
    score: float


def sign_rows(size: int, rows: I64) -> F32:
    """Rows (N,) of the Hadamard matrix of this size, (N, size)."""
    bits = np.bitwise_count(np.arange(size) & rows[:, None])
    return np.where(bits % 2 == 0, 1.0, -1.0).astype(np.float32)


def align(
    seen: Observed,
    left: F32,
    right: F32,
    *,
    members: int = 1,
    tilt: float = 1.0,
    starts: int = 8,
    seed: int = 0,
) -> AlignedTexts:
    """Align texts under the public signs ``left`` (G, a) and ``right`` (H, b).

    ``members`` is the number of independent W: the start grows to that share of the texts. ``tilt`` is the
    mark's strength β, which anyone can measure by marking texts with a key of one's own.
    """
    if left.shape[1:] != seen.variances.shape[:1] or right.shape[1:] != seen.variances.shape[1:]:
        raise ConfigError(
            f"signs of {left.shape[1]} x {right.shape[1]} coordinates for matrices of {seen.variances.shape}"
        )
    chosen = np.random.default_rng(seed).choice(len(seen), size=min(starts, len(seen)), replace=False)
    most = max(len(seen) // members, 2)
    grown = (_grow(seen, left, right, int(start), most, tilt) for start in chosen)
    return max(grown, key=lambda found: found.score)


def _grow(seen: Observed, left: F32, right: F32, start: int, most: int, tilt: float) -> AlignedTexts:
    M, v = seen.matrices, seen.variances.astype(np.float32)
    total, used, signs = M[start].copy(), np.array([start]), np.zeros((len(M), 2), dtype=np.int64)
    size, last, now = 2.0, 0.0, 1.0
    everyone = np.arange(len(M))
    while abs(now - last) > 0.01 or len(used) < most:
        shrink = tilt / (1.0 + tilt * tilt * float(seen.counts[used].sum()) * v)
        W = total * shrink
        found = _all_signs(M * W, left, right)
        if len(used) > 1:  # leave out what a text itself put into W
            squares = np.einsum("nab,nab,ab->n", M[used], M[used], shrink)
            found[used, signs[used, 0] * len(right) + signs[used, 1]] -= squares
        else:
            found[start] = -np.inf
        best = found.argmax(axis=1)
        scores = found[everyone, best] / np.sqrt(seen.counts * float((v * np.square(W)).sum()))
        signs = np.stack(np.divmod(best, len(right)), axis=1)
        used = np.argsort(-scores)[: min(int(size), most)]
        total = np.einsum(
            "nab,na,nb->ab", M[used], left[signs[used, 0]], right[signs[used, 1]], optimize=True
        )
        last, now = now, float(scores[used].mean())
        size *= _GROWTH
        if size > 1e3 * most:  # two alternatives take turns
            break
    return AlignedTexts(total * shrink, used, signs, now)


def _all_signs(products: F32, left: F32, right: F32) -> F32:
    """A P Bᵀ of each P (N, a, b), (N, G·H)."""
    N, a, b = products.shape
    once = (products.reshape(N * a, b) @ right.T).reshape(N, a, len(right))
    return np.asarray(np.einsum("ga,nah->ngh", left, once, optimize=True).reshape(N, -1))
