"""Philox4x32-10 (Salmon et al. 2011) on numpy arrays: a keyed bijection of four 32-bit words.

Checked against the published test vectors. Boundary: arithmetic only; what is hashed is up to the schemes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]
"""Four words of 32 bits each, kept in uint64 so that a product of two fits."""

ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: Words, key: tuple[NDArray[np.uint64], NDArray[np.uint64]]) -> Words:
    """The output words of counters under keys; all shapes broadcast."""
    a, b, c, d = counter
    for i in range(ROUNDS):
        k0, k1 = ((k + np.uint64(i * step)) & _MASK for k, step in zip(key, _KEY_STEPS, strict=True))
        left, right = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (right >> _HALF) ^ b ^ k0, right & _MASK, (left >> _HALF) ^ d ^ k1, left & _MASK
    return a, b, c, d


def select(words: Words, which: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Word 0, 1, 2 or 3 of each output, as ``which`` says."""
    return np.choose(which.astype(np.intp), np.broadcast_arrays(*words))
