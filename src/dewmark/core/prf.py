"""Keyed words: 32 pseudo-random bits per (context, token), the same on every machine and device.

A context (h ids) is hashed by keyed BLAKE2b to two words (a, b); each token has a word t of an AES keystream;
and their pair gets

    x = (t ⊕ a) · (b | 1),    x ← x ⊕ (x >> 16),    x ← x · M,    x ← x ⊕ (x >> 16)          (mod 2³²)

Every step is a bijection of x. Over keys the word of a pair is therefore uniform, and so are two words
together: different tokens have independent t, different contexts independent a. Four pairs of two contexts
and two tokens would still be linearly related; the context's own multiplier and what follows it break that.
Marking hashes one context per row and does the last line once per candidate; scoring a token needs one pair.

Boundary: numpy only. `dewmark.baselines.keyed_words` computes the same words on other devices.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import I64, U32
from dewmark.core.keys import KeyStream

__all__ = ["MULTIPLIER", "SECRET_BYTES", "PairHash", "combine", "to_uniforms"]


SECRET_BYTES = 32
MULTIPLIER = 0x7FEB352D  # odd, and its multiples spread well
_HALF = np.uint32(16)


def combine(
    a: U32 | np.uint32, b: U32 | np.uint32, t: U32, *, out: U32 | None = None, spare: U32 | None = None
) -> U32:
    """The words of pairs, from their contexts' two words and their tokens' word; shapes broadcast.

    ``out`` receives them and ``spare`` is written over, both of the words' shape: a loop over rows that gives
    them asks for no memory.
    """
    x = np.bitwise_xor(t, a, out=out)
    x *= b | np.uint32(1)
    x ^= np.right_shift(x, _HALF, out=spare)
    x *= np.uint32(MULTIPLIER)
    x ^= np.right_shift(x, _HALF, out=spare)
    return x


def to_uniforms(words: U32) -> NDArray[np.float64]:
    """Words to numbers in the open interval (0, 1), on a grid of 2⁻³²."""
    return (words.astype(np.float64) + 0.5) * 2.0**-32


class PairHash:
    """The words of (context, token) pairs for one secret of 32 bytes and ids 0 … vocab_size - 1."""

    def __init__(self, secret: bytes, vocab_size: int) -> None:
        self._secret = secret
        self.token_words = self.table("words", vocab_size)

    def table(self, purpose: str, size: int) -> U32:
        """Uniform words (size,) that depend on the secret and on a purpose of up to 16 letters."""
        seed = hashlib.blake2b(key=self._secret, person=purpose.encode(), digest_size=32).digest()
        return (KeyStream(seed).words(size) >> np.uint64(32)).astype(np.uint32)

    def seeds(self, contexts: I64) -> U32:
        """Contexts (N, h) to their words a and b, (N, 2)."""
        data = np.ascontiguousarray(contexts, dtype="<i8").tobytes()
        size = 8 * contexts.shape[1]
        digests = [
            hashlib.blake2b(data[i * size : (i + 1) * size], key=self._secret, digest_size=8).digest()
            for i in range(len(contexts))
        ]
        return np.frombuffer(b"".join(digests), dtype="<u4").astype(np.uint32).reshape(-1, 2)

    def words(self, contexts: I64, tokens: I64) -> U32:
        """Pairs of contexts (N, h) and tokens (N,) to words (N,)."""
        seeds = self.seeds(contexts)
        return combine(seeds[:, 0], seeds[:, 1], self.token_words[tokens])

    def uniforms(self, contexts: I64, tokens: I64) -> NDArray[np.float64]:
        """Pairs of contexts (N, h) and tokens (N,) to uniforms (N,) in (0, 1)."""
        return to_uniforms(self.words(contexts, tokens))
