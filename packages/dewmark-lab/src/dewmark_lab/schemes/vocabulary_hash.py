"""The pair hash of `pair_hash` over a whole vocabulary, on the device that holds the logits.

Each step hashes one context per row and then passes once over the candidates: with numpy on a CPU (row by
row, so that the data stays in cache), with torch elsewhere. A word is 32 keyed pseudo-random bits; torch has
no unsigned arithmetic, so its words are int32 with the same bits.
"""

from __future__ import annotations

import numpy as np
import torch

from dewmark.arrays import U32
from dewmark_lab.schemes.pair_hash import MULTIPLIER, PairHash
from dewmark_lab.schemes.pair_hash import combine as combine_rows

_SIGN = -(1 << 31)


class VocabularyHash:
    """A keyed pair hash that keeps a copy of the tokens' words on each device it is used on."""

    def __init__(self, pair_hash: PairHash) -> None:
        self._hash = pair_hash
        self._token_words: dict[torch.device, torch.Tensor] = {}

    def words(self, contexts: torch.Tensor, candidates: torch.Tensor | None = None) -> torch.Tensor:
        """Hash contexts (batch, h) with each row's candidates (batch, m): words (batch, m), int32.

        Without candidates, hash them with every token: (batch, vocab).
        """
        if contexts.device.type != "cpu":
            return self.words_on_device(contexts, candidates)
        table = self._hash.token_words
        width = len(table) if candidates is None else candidates.shape[1]
        words = np.empty((len(contexts), width), dtype=np.uint32)
        spare = np.empty(width, dtype=np.uint32)
        for i, (a, b) in enumerate(self._hash.seeds(contexts.numpy())):
            row = table if candidates is None else table[candidates[i].numpy()]
            combine_rows(a, b, row, out=words[i], spare=spare)
        return torch.from_numpy(words.view(np.int32))

    def below(self, contexts: torch.Tensor, limit: np.uint32) -> torch.Tensor:
        """Whether each token's word after each context (batch, h) is below a limit: (batch, vocab) bool."""
        if contexts.device.type != "cpu":
            return below_on_device(self.words_on_device(contexts), np.array([[limit]]))
        table = self._hash.token_words
        words, spare = np.empty_like(table), np.empty_like(table)
        found = np.empty((len(contexts), len(table)), dtype=bool)
        for i, (a, b) in enumerate(self._hash.seeds(contexts.numpy())):
            np.less(combine_rows(a, b, table, out=words, spare=spare), limit, out=found[i])
        return torch.from_numpy(found)

    def uniforms(self, contexts: torch.Tensor, candidates: torch.Tensor | None = None) -> torch.Tensor:
        """The words as uniform numbers in (0, 1), float64."""
        return to_uniforms(self.words(contexts, candidates))

    def words_on_device(self, contexts: torch.Tensor, candidates: torch.Tensor | None = None) -> torch.Tensor:
        """The same as `words`, computed with torch."""
        device = contexts.device
        seeds = torch.from_numpy(self._hash.seeds(contexts.cpu().numpy()).view(np.int32)).to(device)
        if device not in self._token_words:
            self._token_words[device] = torch.from_numpy(self._hash.token_words.view(np.int32)).to(device)
        table = self._token_words[device]
        tokens = table.unsqueeze(0) if candidates is None else table[candidates]
        return combine(seeds[:, :1], seeds[:, 1:], tokens)


def combine(a: torch.Tensor, b: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
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


def to_uniforms(words: torch.Tensor) -> torch.Tensor:
    """Words (int32) to numbers in the open interval (0, 1), float64, on a grid of 2⁻³²."""
    unsigned = words.to(torch.int64).bitwise_and_(0xFFFFFFFF)
    return unsigned.to(torch.float64).add_(0.5).mul_(2.0**-32)


def _upper_half(x: torch.Tensor) -> torch.Tensor:
    """x >> 16 as if unsigned: torch's shift repeats the sign bit."""
    return (x >> 16).bitwise_and_(0xFFFF)
