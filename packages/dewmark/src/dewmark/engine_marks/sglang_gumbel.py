"""The Gumbel-max mark of SGLang (0.5.22 and later, ``--enable-watermark``), with its MurmurHash3.

The number of token v after the h ids before it, prompt included, is

    c = murmur(ids),   u = (murmur(key₀, key₁, c, v) + 1/2) / 2³²,

and the next token is the largest log(u)/p: EXP (`keyed_sampling.exp`) with another hash. ``murmur`` is
MurmurHash3 (x86, 32 bits, seed 0) over words of 32 bits. Near the beginning of a prompt fewer ids are hashed.
A context that occurred before in the answer is sampled without the mark, and not scored; neither is anything
after the first 4,096 contexts. Without the prompt the first h tokens are not scored.

With a second key, a keyed coin murmur(A₀, A₁, B₀, B₁, c) decides for each context whose turn it is: A's if it
lies below ``mixing_probability`` · 2³².
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F32, F64, I64
from dewmark.config import check_rules
from dewmark.engine_marks.engine_scheme import EngineBound, EngineScheme, IdWindows, first_rows, id_windows
from dewmark.engine_marks.vllm_gumbel import NO_ID, GumbelSession
from dewmark.errors import KeyFileError
from dewmark.sampling import fresh_seeds, left_padding
from dewmark.scheme import Needs
from dewmark.stats.evidence import Evidence
from dewmark.stats.independent_sums import gamma_test, z_test
from dewmark.stats.key_test import Statistic
from dewmark.workspace import HostInfo, Tokenized

_MOST = 4096  # contexts of a text that are marked
_MASK = np.uint64(0xFFFFFFFF)

U64 = NDArray[np.uint64]


@dataclass(frozen=True)
class SGLangGumbel(EngineScheme):
    """SGLang's mark, with one key or two."""

    name: ClassVar[str] = "sglang-gumbel"
    summary: ClassVar[str] = "SGLang's own Gumbel-max mark, found with the server's key"
    needs: ClassVar[Needs] = Needs(final_distribution=True)

    context_window: int = 4
    """The server's ``context_window``: the number of preceding ids that key the choice."""
    mixing_probability: float = 0.5
    """The server's ``mixing_probability`` of key A; for two keys."""

    def validate(self) -> None:
        """Check that all values are in range."""
        check_rules(
            (1 <= self.context_window <= 64, "context_window", "lie in 1 to 64", self.context_window),
            (
                0.0 < self.mixing_probability < 1.0,
                "mixing_probability",
                "lie in (0, 1)",
                self.mixing_probability,
            ),
        )

    def check_numbers(self, numbers: tuple[int, ...]) -> None:
        """A key is one number, or two for ``key`` and ``key_b``."""
        if len(numbers) > 2:
            raise KeyFileError(f"the key of {self.name} is one number or two, got {len(numbers)} numbers")

    def bind_numbers(self, numbers: tuple[int, ...], host: HostInfo, fingerprint: str) -> BoundSGLangGumbel:
        """Bind the scheme to the server's key."""
        return BoundSGLangGumbel(self, host, fingerprint, numbers)


class BoundSGLangGumbel(EngineBound):
    """The mark under the server's key. A token scores −ln(1 − u) − 1."""

    tests = ("gamma", "z")
    scheme: SGLangGumbel

    def __init__(
        self, scheme: SGLangGumbel, host: HostInfo, fingerprint: str, numbers: tuple[int, ...]
    ) -> None:
        super().__init__(scheme, host, fingerprint, numbers)
        self.width = scheme.context_window
        self.hash = MurmurHash(numbers, int(scheme.mixing_probability * 2**32))

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> GumbelSession:
        """Start marking prompts (batch, length)."""
        padding = left_padding(prompt_ids, attention_mask, pad_id=self.host.tokenizer.pad_id)
        windows = IdWindows(vocab_size=self.host.vocab_size, width=self.width, filler=NO_ID, start=padding)
        seeds = fresh_seeds(len(prompt_ids), seeds)
        return GumbelSession(windows, [self.hash], [1.0], memory=None, seeds=seeds)

    def cut(self, text: Tokenized, prompt: Tokenized) -> tuple[I64, I64]:
        """The ids before each token (L, h), and where a context occurs for the first time."""
        contexts = id_windows(prompt.ids, text.ids, width=self.width, filler=NO_ID)
        unknown = 0 if prompt.ids else self.width
        return contexts, (first_rows(contexts[unknown:]) + unknown)[:_MOST]

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """−ln(1 − u) − 1, (N,)."""
        words = self.hash.words(contexts, tokens[:, None])[:, 0]
        return -np.log1p(-(words.astype(np.float64) + 0.5) / 2**32) - 1.0

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``gamma``: the exact distribution of the sum; ``z``: its normal approximation."""
        return gamma_test(evidence) if test == "gamma" else z_test(evidence)


class MurmurHash:
    """The numbers of (context, token) pairs under one key, or under two of which a coin chooses."""

    def __init__(self, keys: Sequence[int], threshold: int) -> None:
        self._keys = np.array([[key & 0xFFFFFFFF, key >> 32] for key in keys], dtype=np.uint64)
        self._threshold = threshold

    def words(self, contexts: I64, tokens: I64) -> U64:
        """32 bits for contexts (N, h) and the tokens (N or 1, m) after each, (N, m)."""
        known = contexts >= 0
        state = np.zeros(len(contexts), dtype=np.uint64)
        for column, real in zip(contexts.astype(np.uint64).T & _MASK, known.T, strict=True):
            state = np.where(real, _mixed(state, column), state)
        hashed = _finished(state, known.sum(axis=1).astype(np.uint64))
        keys = self._keys[0]
        if len(self._keys) > 1:
            coin = _murmur([*self._keys.ravel(), hashed])
            keys = np.where((coin < self._threshold)[:, None], self._keys[0], self._keys[1]).T[..., None]
        return _murmur([keys[0], keys[1], hashed[:, None], tokens.astype(np.uint64)])

    def uniforms(self, contexts: I64, tokens: I64) -> F32:
        """u of contexts (N, h) and tokens (N or 1, m), (N, m), below 1 after rounding."""
        uniforms = ((self.words(contexts, tokens).astype(np.float64) + 0.5) / 2**32).astype(np.float32)
        return np.minimum(uniforms, np.nextafter(np.float32(1.0), np.float32(0.0)))


def _murmur(words: Sequence[U64 | np.uint64]) -> U64:
    """MurmurHash3 of words of 32 bits; all shapes broadcast."""
    state: U64 = np.zeros(1, dtype=np.uint64)
    for word in words:
        state = _mixed(state, np.asarray(word))
    return _finished(state, np.uint64(len(words)))


def _mixed(state: U64, word: U64) -> U64:
    word = _rotated(word * np.uint64(0xCC9E2D51) & _MASK, 15) * np.uint64(0x1B873593) & _MASK
    return _rotated(state ^ word, 13) * np.uint64(5) + np.uint64(0xE6546B64) & _MASK


def _finished(state: U64, words: U64 | np.uint64) -> U64:
    state = state ^ (words * np.uint64(4))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor) & _MASK
    return state ^ (state >> np.uint64(16))


def _rotated(word: U64, left: int) -> U64:
    return (word << np.uint64(left) | word >> np.uint64(32 - left)) & _MASK
