"""Alignment under a public sign group: guess the message of every text, and learn one W from all.

If messages are W_m = D_a W D_b with rows a, b of Hadamard matrices in a *public* basis, an attacker need not
treat them as unrelated keys: D_a M D_b of a text with message (a, b) is a text of the one W. All messages of
a text are scored by one two-dimensional Walsh-Hadamard transform,

    s_i(a, b) = ⟨D_a M_i D_b, Ŵ⟩ = H (M_i∘Ŵ) H,

the texts whose best message stands out most are aligned first, Ŵ becomes their sum, and the share of texts
that take part grows from round to round (a text's own part is left out of its score). The start is one text,
whose own signs are arbitrary: Ŵ is known up to one common message, which forges as well.

In a basis that is rotated by the key this does not apply: the attacker does not know H.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dewmark.arrays import F32, I64
from dewmark.errors import ConfigError

__all__ = ["Aligned", "align", "walsh"]

_ROUNDS = 12


@dataclass(frozen=True)
class Aligned:
    """``W`` (a, b), the sum of the aligned texts; each text's ``message`` (N, 2); the mean best ``score``."""

    W: F32
    message: I64
    score: float


def walsh(x: F32) -> F32:
    """The Walsh-Hadamard transform of the last two axes (…, a, b), powers of two; natural order."""
    *batch, a, b = x.shape
    if a & (a - 1) or b & (b - 1):
        raise ConfigError(f"a Walsh transform needs powers of two, got {a} x {b}")
    out = x.reshape(-1, a, b)
    for size, columns in ((a, b), (b, 1)):
        step = 1
        while step < size:
            pairs = out.reshape(-1, 2, step * columns)
            out = np.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), axis=1)
            step *= 2
    return out.reshape(*batch, a, b)


def sign_rows(size: int, rows: I64) -> F32:
    """Rows (N,) of the Hadamard matrix of this size, (N, size)."""
    bits = np.bitwise_count(np.arange(size) & rows[:, None])
    return np.where(bits % 2 == 0, 1.0, -1.0).astype(np.float32)


def align(matrices: F32, *, starts: int = 4, block: int = 256, seed: int = 0) -> Aligned:
    """Align texts (N, a, b), given in the basis in which the group acts; the best of several starts."""
    M = matrices / np.linalg.norm(matrices, axis=(1, 2), keepdims=True)
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(M), size=min(starts, len(M)), replace=False)
    return max((_grow(M, int(start), block) for start in chosen), key=lambda found: found.score)


def _grow(M: F32, start: int, block: int) -> Aligned:
    W, own = M[start].copy(), np.zeros(len(M), dtype=bool)
    own[start] = True
    message = np.zeros((len(M), 2), dtype=np.int64)
    scores = np.zeros(len(M))
    shares = np.geomspace(min(2.0 / len(M), 1.0), 1.0, _ROUNDS)
    for share in shares:
        for first in range(0, len(M), block):
            part = slice(first, first + block)
            mine = _signed(M[part], message[part]) * own[part, None, None]
            others = W - mine
            norms = np.maximum(np.linalg.norm(others, axis=(1, 2)), 1e-9)
            found = walsh(M[part] * others / norms[:, None, None]).reshape(len(mine), -1)
            best = found.argmax(axis=1)
            scores[part] = found[np.arange(len(best)), best]
            message[part] = np.stack(np.divmod(best, M.shape[2]), axis=1)
        number = max(math.ceil(share * len(M)), 2)
        own = np.zeros(len(M), dtype=bool)
        own[np.argsort(-scores)[:number]] = True
        W = _sum(M, message, own, block)
    return Aligned(W, message, float(scores.mean()))


def _signed(M: F32, message: I64) -> F32:
    """D_a M D_b of each text."""
    signs = (
        sign_rows(M.shape[1], message[:, 0])[:, :, None] * sign_rows(M.shape[2], message[:, 1])[:, None, :]
    )
    return np.asarray(M * signs)


def _sum(M: F32, message: I64, own: np.ndarray, block: int) -> F32:
    picked = np.flatnonzero(own)
    parts = [picked[i : i + block] for i in range(0, len(picked), block)]
    sums = [_signed(M[part], message[part]).sum(axis=0) for part in parts]
    return np.asarray(np.sum(sums, axis=0), dtype=np.float32)
