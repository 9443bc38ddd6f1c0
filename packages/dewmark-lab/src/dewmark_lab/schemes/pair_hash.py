"""A pseudo-random function: 32 bits (a *word*) per key, context and token, equal on every machine and device.

Keyed BLAKE2b hashes a context (h ids) to two words (a, b); each token has a word t from an AES keystream; the
word of the pair is

    x = (t ⊕ a) · (b | 1),    x ← x ⊕ (x >> 16),    x ← x · M,    x ← x ⊕ (x >> 16)          (mod 2³²)

Every step is a bijection of x. Over keys the word of a pair is therefore uniform, and two words are jointly
uniform: different tokens have independent t, different contexts independent a. The words of two contexts with
two tokens would still be linearly related; the context's multiplier and the steps after it break that.
Scoring a token needs one pair. Marking hashes one context per row and passes once over the candidates: with
numpy on a CPU (row by row, so that the data stays in cache), with torch elsewhere. Torch has no unsigned
arithmetic of 32 bits: it computes the same bits in int32 and gives the words as int64.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from dewmark.arrays import F64, I64, U32
from dewmark.core.keys import KeyStream

SECRET_BYTES = 32
MULTIPLIER = 0x7FEB352D  # odd, with good avalanche
_HALF = np.uint32(16)
_SIGN = -(1 << 31)


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


class VocabularyHash:
    """A keyed pair hash that keeps a copy of the tokens' words on each device it is used on."""

    def __init__(self, pair_hash: PairHash) -> None:
        self._hash = pair_hash
        self._token_words: dict[torch.device, torch.Tensor] = {}

    def words(self, contexts: torch.Tensor, candidates: torch.Tensor | None = None) -> torch.Tensor:
        """Hash contexts (batch, h) with each row's candidates (batch, m): words (batch, m), int64.

        Without candidates, hash them with every token: (batch, vocab). The numbers are `PairHash.words`.
        """
        if contexts.device.type != "cpu":
            return self.words_on_device(contexts, candidates)
        table = self._hash.token_words
        width = len(table) if candidates is None else candidates.shape[1]
        words = np.empty((len(contexts), width), dtype=np.uint32)
        spare = np.empty(width, dtype=np.uint32)
        for i, (a, b) in enumerate(self._hash.seeds(contexts.numpy())):
            row = table if candidates is None else table[candidates[i].numpy()]
            combine(a, b, row, out=words[i], spare=spare)
        return torch.from_numpy(words.astype(np.int64))

    def below(self, contexts: torch.Tensor, limit: np.uint32) -> torch.Tensor:
        """Whether each token's word after each context (batch, h) is below a limit: (batch, vocab) bool."""
        if contexts.device.type != "cpu":
            return below_on_device(self.signed_words(contexts), np.array([[limit]]))
        table = self._hash.token_words
        words, spare = np.empty_like(table), np.empty_like(table)
        found = np.empty((len(contexts), len(table)), dtype=bool)
        for i, (a, b) in enumerate(self._hash.seeds(contexts.numpy())):
            np.less(combine(a, b, table, out=words, spare=spare), limit, out=found[i])
        return torch.from_numpy(found)

    def uniforms(self, contexts: torch.Tensor, candidates: torch.Tensor | None = None) -> torch.Tensor:
        """The words as uniform numbers in (0, 1), float64."""
        return torch_uniforms(self.words(contexts, candidates))

    def words_on_device(self, contexts: torch.Tensor, candidates: torch.Tensor | None = None) -> torch.Tensor:
        """The same as `words`, computed with torch."""
        return self.signed_words(contexts, candidates).to(torch.int64).bitwise_and_(0xFFFFFFFF)

    def signed_words(self, contexts: torch.Tensor, candidates: torch.Tensor | None = None) -> torch.Tensor:
        """The bits of `words` in int32, computed with torch."""
        device = contexts.device
        seeds = torch.from_numpy(self._hash.seeds(contexts.cpu().numpy()).view(np.int32)).to(device)
        if device not in self._token_words:
            self._token_words[device] = torch.from_numpy(self._hash.token_words.view(np.int32)).to(device)
        table = self._token_words[device]
        tokens = table.unsqueeze(0) if candidates is None else table[candidates]
        return combine_torch(seeds[:, :1], seeds[:, 1:], tokens)


def combine_torch(a: torch.Tensor, b: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """The words of pairs, from two words per context and one per token, all int32; shapes broadcast."""
    x = (t ^ a).mul_(b | 1)
    x ^= _upper_half(x)
    x.mul_(MULTIPLIER)
    x ^= _upper_half(x)
    return x


def below(words: torch.Tensor, limits: U32) -> torch.Tensor:
    """Whether words (batch or 1, m), int32 read as unsigned, are below their row's limit (batch, 1)."""
    if words.device.type == "cpu":  # numpy compares several times as fast
        return torch.from_numpy(words.numpy().view(np.uint32) < limits)
    return below_on_device(words, limits)


def below_on_device(words: torch.Tensor, limits: U32) -> torch.Tensor:
    """The same with torch: flipping the sign bit turns the unsigned order into the signed one."""
    signed = torch.from_numpy((limits ^ np.uint32(1 << 31)).view(np.int32)).to(words.device)
    return (words ^ _SIGN) < signed


def torch_uniforms(words: torch.Tensor) -> torch.Tensor:
    """Words (int64) to numbers in the open interval (0, 1), float64, on a grid of 2⁻³²."""
    return words.to(torch.float64).add_(0.5).mul_(2.0**-32)


def _upper_half(x: torch.Tensor) -> torch.Tensor:
    """x >> 16 as if unsigned: torch's shift repeats the sign bit."""
    return (x >> 16).bitwise_and_(0xFFFF)
