"""SBW, Stateless Bernoulli Watermarking (Ceppi and Sanchez 2026), as proposed for vLLM (pull request 56859).

KGW without a permutation: after its context, token v is green if 31 bits of one Philox call, counter ⌊v/4⌋,
word v mod 4, lie below γ·(2³¹ − 1). The Philox key is a seed that the context gives:

- ``selfhash`` (h = 4): with j the integer hash below and c the last h − 1 ids, min(key·j(c_i)·j(v),
  key·j(v)·j(v)), products of signed 64-bit numbers;
- ``lefthash`` (h = 1): key · Σ c_i, as in the proposal's sampler (its detector, as we read it, sums j(c_i)).

Green logits gain δ before temperature and filters. A seed can be the same after different contexts (with
``selfhash`` it often depends on the token alone), so each pair of seed and token counts once, and the
distribution of the number of green ones is exact. vLLM's proposal counts each distinct context once and takes
that number for normal: on text with frequent words it accuses too often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F64, I64
from dewmark.mark import Session
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.verdict import DEFAULT_FPR
from dewmark_lab.schemes.engines.engine_scheme import EngineBound, EngineScheme, IdWindows, first_rows, philox
from dewmark_lab.schemes.independent_sums import binomial_test

_INT31 = 0x7FFFFFFF
_MASK, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


class BoundVLLMSBW(EngineBound):
    """SBW under one key. A token scores 1 − γ if it is green and −γ if not."""

    tests = ("binomial",)
    filler = -1
    scheme: VLLMSBW

    def prepare(self) -> None:
        self.width = 4 if self.scheme.seeding == "selfhash" else 1
        self.limit = int(self.scheme.gamma * _INT31)
        self.share = self.limit / 2**31
        self.variance = self.share * (1.0 - self.share)

    def seeds(self, contexts: I64, tokens: I64) -> NDArray[np.uint64]:
        """The Philox keys of contexts (N, h) with tokens (N, m), (N, m)."""
        key = np.uint64(self.numbers[0])
        if self.scheme.seeding == "lefthash":
            sums = contexts.sum(axis=1, keepdims=True).astype(np.uint64)
            return np.broadcast_to(key * sums, tokens.shape)
        own = _jenkins(tokens)
        least = (key * own * own).view(np.int64)
        for before in _jenkins(contexts[:, 1:]).T:
            least = np.minimum(least, (key * before[:, None] * own).view(np.int64))
        return least.view(np.uint64)

    def green(self, contexts: I64, tokens: I64) -> NDArray[np.bool_]:
        """Whether tokens (N, m) are green after contexts (N, h)."""
        seeds, zero = self.seeds(contexts, tokens), np.zeros(1, dtype=np.uint64)
        counters = (tokens >> 2).astype(np.uint64)
        words = philox((counters, zero, zero, zero), (seeds & _MASK, seeds >> _HALF))
        found: NDArray[np.bool_] = (np.choose(tokens & 3, words) & np.uint64(_INT31)) < self.limit
        return found

    def open_session(self, windows: IdWindows, seeds: Sequence[int]) -> Session:
        return _GreenSession(windows, self)

    def scored(self, contexts: I64, tokens: I64, before: int) -> I64:
        seeds = self.seeds(contexts, tokens[:, None]).view(np.int64)
        return first_rows(np.column_stack((seeds, tokens)))

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """1 − γ if green, −γ if not, (N,)."""
        return self.green(contexts, tokens[:, None])[:, 0].astype(np.float64) - self.share

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """The exact distribution of the number of green tokens."""
        return binomial_test(evidence, share=self.share)


@dataclass(frozen=True)
class VLLMSBW(EngineScheme):
    """Stateless Bernoulli watermarking."""

    name: ClassVar[str] = "vllm-sbw"
    summary: ClassVar[str] = "green lists by one Philox call per token (SBW), as proposed for vLLM"
    bound = BoundVLLMSBW

    gamma: Annotated[float, "in (0, 1)"] = 0.5
    """Share γ of the vocabulary that is green."""
    delta: Annotated[float, "at least 0"] = 2.0
    """Bias δ added to green logits."""
    seeding: Literal["selfhash", "lefthash"] = "selfhash"
    """What the green list depends on besides the key."""


class _GreenSession(Session):
    def __init__(self, windows: IdWindows, bound: BoundVLLMSBW) -> None:
        self._windows, self._bound = windows, bound

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with δ added to green tokens."""
        contexts = self._windows(input_ids, scores).cpu().numpy()
        tokens = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
        green = torch.from_numpy(self._bound.green(contexts, tokens))
        return scores + self._bound.scheme.delta * green.to(scores)


def _jenkins(ids: I64) -> NDArray[np.uint64]:
    """Jenkins' hash of ids + 1 as signed 32-bit numbers, sign-extended to 64 bits."""
    x = (ids + 1).astype(np.int32)
    x = x - (x << 6)
    x = x ^ (x >> 17)
    x = x - (x << 9)
    x = x ^ (x << 4)
    x = x - (x << 3)
    x = x ^ (x << 10)
    x = x ^ (x >> 15)
    return x.astype(np.int64).view(np.uint64)
