"""A pseudo-random function: 32 bits (a *word*) per key, context and token, equal on every machine and device.

Keyed BLAKE2b hashes a context (h ids) to two words (a, b); each token has a word t from an AES keystream; the
word of the pair is

    x = (t ⊕ a) · (b | 1),    x ← x ⊕ (x >> 16),    x ← x · M,    x ← x ⊕ (x >> 16)          (mod 2³²)

Every step is a bijection of x. Over keys the word of a pair is therefore uniform, and two words are jointly
uniform: different tokens have independent t, different contexts independent a. The words of two contexts with
two tokens would still be linearly related; the context's multiplier and the steps after it break that.
Marking hashes one context per row and applies the formula to every candidate token; scoring a token needs one
pair.

Boundary: numpy only. `vocabulary_hash` computes the same words on other devices.
"""

from __future__ import annotations

import hashlib

import numpy as np

from dewmark.arrays import F64, I64, U32
from dewmark.core.keys import KeyStream

SECRET_BYTES = 32
MULTIPLIER = 0x7FEB352D  # odd, with good avalanche
_HALF = np.uint32(16)


def combine(
    a: U32 | np.uint32, b: U32 | np.uint32, t: U32, *, out: U32 | None = None, spare: U32 | None = None
) -> U32:
    """The words of pairs from the words (a, b) of contexts and t of tokens; shapes broadcast.

    The result goes to ``out`` and ``spare`` is overwritten, both of the result's shape: a loop that passes
    both allocates no memory.
    """
    x = np.bitwise_xor(t, a, out=out)
    x *= b | np.uint32(1)
    x ^= np.right_shift(x, _HALF, out=spare)
    x *= np.uint32(MULTIPLIER)
    x ^= np.right_shift(x, _HALF, out=spare)
    return x


def to_uniforms(words: U32) -> F64:
    """Words to uniforms in the open interval (0, 1), on a grid of 2⁻³²."""
    return (words.astype(np.float64) + 0.5) * 2.0**-32


class PairHash:
    """The words of (context, token) pairs under a 32-byte secret, for ids 0 … vocab_size - 1."""

    def __init__(self, secret: bytes, vocab_size: int) -> None:
        self._secret = secret
        self.token_words = self.table("words", vocab_size)

    def table(self, purpose: str, size: int) -> U32:
        """Uniform words (size,) from the secret and a purpose of up to 16 letters."""
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

    def uniforms(self, contexts: I64, tokens: I64) -> F64:
        """Pairs of contexts (N, h) and tokens (N,) to uniforms (N,) in (0, 1)."""
        return to_uniforms(self.words(contexts, tokens))
