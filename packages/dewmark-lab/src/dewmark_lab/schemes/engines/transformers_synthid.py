"""The SynthID-Text mark of transformers (``SynthIDTextWatermarkingConfig``), with its hash and its bit table.

The bit of token v in layer l after its context is a table's entry at (((1·ids…)·v)·key_l) modulo the table's
size, where x·y stands for one step of a linear congruential generator, (x + y)·6364136223846793005 + 1 modulo
2⁶⁴. The key is the list of key_l, one per layer. Contexts hold the answer alone, with id 0 before
its first token; a context that occurred within the last 1,024 steps is not marked.

The authors' repository (synthid-text) has since had another function without a table (``bits="hash"``): the
chain starts from a hash of the keys instead of 1, and twelve more steps, each shifted right by five bits,
give the bit. Which one wrote a text must be known.

Like transformers' detector, ours leaves out the first ngram_len − 1 tokens. Over keys an entry is uniform in
the table, so a bit is 1 with the table's own share of ones, not exactly 1/2; the tests here use that share.

**The tournament** is played in closed form. In one layer with N leaves, of N tokens drawn independently from
p, one with bit 1 wins if there is any. With G = Σ g p this multiplies a token's probability by

    1 + (1 − G) + … + (1 − G)^(N−1)   if its bit is 1 (for N = 2: 2 − G),
    (1 − G)^(N−1)                     if its bit is 0 (for N = 2: 1 − G),

and the layers are applied in turn. A token's factor over ten consecutive layers depends on its ten bits
alone, so ten layers are played at once between the 1,024 patterns of ten bits, each with the total
probability of its tokens: the same numbers exactly, with three passes over the vocabulary instead of thirty.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F64, I64
from dewmark.mark import Session
from dewmark.models.devices import torch_device
from dewmark.scheme import Needs
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.verdict import DEFAULT_FPR
from dewmark_lab.schemes.engines.engine_scheme import (
    EngineBound,
    EngineScheme,
    IdWindows,
    RepeatedContexts,
    first_rows,
    support,
)
from dewmark_lab.schemes.independent_sums import binomial_test

__all__ = ["tournament"]

_MULTIPLIER = np.uint64(6364136223846793005)
_LAYERS_AT_ONCE = 10


@functools.cache
def _bit_table(size: int, seed: int, device: str) -> NDArray[np.uint8]:
    source = torch.Generator(torch_device(device)).manual_seed(seed)
    drawn = torch.randint(low=0, high=2, size=(size,), generator=source, device=device)
    return drawn.cpu().numpy().astype(np.uint8)


class BoundTransformersSynthID(EngineBound):
    """The mark under one key. A token scores the mean of its bits over layers, less their share."""

    tests = ("mean",)
    scheme: TransformersSynthID

    def prepare(self) -> None:
        """The bit table, or the start of the hash."""
        scheme = self.scheme
        self.width = scheme.ngram_len - 1
        self.depth = len(self.numbers)
        self._keys = np.array(self.numbers, dtype=np.uint64)
        self._start = np.uint64(1)
        self._table: NDArray[np.uint8] | None = None
        if scheme.bits == "table":
            size, seed = scheme.sampling_table_size, scheme.sampling_table_seed
            self._table = _bit_table(size, seed, scheme.device)
        else:
            digest = hashlib.sha256(self._keys.astype("<i8").tobytes()).digest()
            self._start = np.uint64(int.from_bytes(digest, "big") % (2**63 - 1))
        self.share = 0.5 if self._table is None else float(self._table.mean())
        self.variance = self.share * (1.0 - self.share) / self.depth

    def bits(self, contexts: I64, tokens: I64) -> NDArray[np.uint8]:
        """The bits of contexts (N, h) and tokens (N, m): (N, m, depth)."""
        hashed = np.full(len(contexts), self._start, dtype=np.uint64)
        for column in contexts.astype(np.uint64).T:
            hashed = _step(hashed, column)
        pairs = _step(hashed[:, None], tokens.astype(np.uint64))
        found = _step(pairs[..., None], self._keys).view(np.int64)
        if self._table is not None:
            return self._table[found % len(self._table)]
        for _ in range(12):
            found = _step(found.view(np.uint64), np.uint64(1)).view(np.int64) >> 5
        return ((found >> 30) & 1).astype(np.uint8)

    def open_session(self, windows: IdWindows, seeds: Sequence[int]) -> Session:
        return _TournamentSession(windows, self, rows=len(seeds))

    def scored(self, contexts: I64, tokens: I64, before: int) -> I64:
        return first_rows(contexts[self.width :]) + self.width

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """The mean over layers of the bits less their share, (N,)."""
        mean: F64 = self.bits(contexts, tokens[:, None])[:, 0].mean(axis=1)
        return mean - self.share

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """The exact distribution of the number of ones."""
        return binomial_test(evidence, share=self.share, trials=self.depth)


@dataclass(frozen=True)
class TransformersSynthID(EngineScheme):
    """The mark of ``SynthIDTextWatermarkingConfig``."""

    name: ClassVar[str] = "transformers-synthid"
    summary: ClassVar[str] = "transformers' own SynthID mark (SynthIDTextWatermarkingConfig)"
    needs: ClassVar[Needs] = Needs(final_distribution=True)
    key_bits: ClassVar[int] = 63
    key_length: ClassVar[int] = 30
    most_numbers: ClassVar[int] = 32  # one per layer
    bound = BoundTransformersSynthID

    ngram_len: Annotated[int, "at least 2"] = 5
    """Number of ids in an n-gram: the token and the ids before it."""
    sampling_table_size: Annotated[int, "at least 2"] = 65536
    """Number of bits in the table."""
    sampling_table_seed: Annotated[int, "at least 0"] = 0
    """Seed of the table."""
    context_history_size: Annotated[int, "at least 1"] = 1024
    """Number of steps for which a context counts as seen."""
    bits: Literal["table", "hash"] = "table"
    """Where bits come from: transformers' table, or the hash of synthid-text's repository since 2025."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device on which the text was written: torch draws another table on a GPU."""


class _TournamentSession(Session):
    def __init__(self, windows: IdWindows, bound: BoundTransformersSynthID, *, rows: int) -> None:
        self._windows, self._bound = windows, bound
        self._repeated = RepeatedContexts(rows, memory=bound.scheme.context_history_size)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) after the tournament, unchanged where a context recurs."""
        contexts = self._windows(input_ids, scores).cpu()
        logits = scores.float()
        candidates = support(logits)
        if candidates is None:
            ids = np.broadcast_to(np.arange(logits.shape[1]), logits.shape)
        else:
            ids, logits = candidates.cpu().numpy(), logits.gather(1, candidates)
        layers = np.arange(self._bound.depth, dtype=np.uint32)
        bits = self._bound.bits(contexts.numpy(), ids).astype(np.uint32)
        words = np.bitwise_or.reduce(bits << layers, axis=-1)
        packed = torch.from_numpy(words.view(np.int32)).to(scores.device)
        marked = tournament(logits.softmax(dim=1), packed, depth=self._bound.depth).log_()
        if candidates is not None:
            marked = torch.full_like(scores.float(), -float("inf")).scatter_(1, candidates, marked)
        repeated = torch.tensor(self._repeated(contexts), device=scores.device).unsqueeze(1)
        return torch.where(repeated, scores, marked.to(scores))


def _step(state: NDArray[np.uint64], data: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """One step of the generator, modulo 2⁶⁴."""
    return (state + data) * _MULTIPLIER + np.uint64(1)


def tournament(
    probabilities: torch.Tensor, words: torch.Tensor, *, depth: int, leaves: int = 2
) -> torch.Tensor:
    """Probabilities (batch, m) after ``depth`` layers; bit l of words (batch, m) is layer l's g."""
    for start in range(0, depth, _LAYERS_AT_ONCE):
        layers = min(_LAYERS_AT_ONCE, depth - start)
        patterns = (words >> start).bitwise_and_((1 << layers) - 1).to(torch.int64)
        zeros = probabilities.new_zeros((len(probabilities), 1 << layers))
        masses = zeros.scatter_add_(1, patterns, probabilities)
        # small and sequential: numpy on the CPU avoids torch's overhead at each step
        factors = torch.from_numpy(pattern_factors(masses.cpu().double().numpy(), leaves))
        probabilities = probabilities * factors.to(probabilities).gather(1, patterns)
    return probabilities


def pattern_factors(masses: F64, leaves: int) -> F64:
    """The factors (batch, 2^layers) of all patterns, from their probabilities (batch, 2^layers).

    Layer by layer from the lowest bit: play it, then sum it out, which leaves the patterns of the higher
    bits.
    """
    left = masses / masses.sum(axis=1, keepdims=True)
    factors = np.ones((len(masses), 1))
    while left.shape[1] > 1:
        zeros, ones = left[:, 0::2], left[:, 1::2]
        rest = np.maximum(1.0 - ones.sum(axis=1, keepdims=True), 0.0)  # 1 − G
        lose, win = rest, 1.0 + rest
        for _ in range(leaves - 2):
            lose, win = lose * rest, 1.0 + win * rest
        left = zeros * lose + ones * win
        factors = np.concatenate((factors * lose, factors * win), axis=1)  # the new bit is the highest so far
    return factors
