"""SBW, Stateless Bernoulli Watermarking (Ceppi and Sanchez 2026), as proposed for vLLM (pull request 56859).

KGW without a permutation: after its context, token v is green if 31 bits of one Philox call, counter ⌊v/4⌋,
word v mod 4, lie below γ·(2³¹ − 1). The Philox key is a seed that the context gives:

- ``selfhash`` (h = 4): with j the integer hash below and c the last h − 1 ids, min(key·j(c_i)·j(v),
  key·j(v)·j(v)), products of signed 64-bit numbers;
- ``lefthash`` (h = 1): key · Σ c_i.

Green logits gain δ before temperature and filters. A seed can be the same after different contexts (with
``selfhash`` it often depends on the token alone), so it is the pair of seed and token that counts once.
vLLM's proposal counts each distinct context once instead, and takes the number of green tokens for normal
(test ``vllm``): on text with frequent words that accuses too often.

In the proposal's ``lefthash``, as we read it, the detector sums j(c_i) where the sampler sums c_i; here both
follow the sampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F64, I64
from dewmark.config import check_rules
from dewmark.engine_marks.engine_scheme import (
    EngineBound,
    EngineScheme,
    IdWindows,
    first_rows,
    id_windows,
    philox,
    select,
)
from dewmark.sampling import Session
from dewmark.stats.evidence import Evidence
from dewmark.stats.independent_sums import binomial_test, z_test
from dewmark.stats.key_test import Statistic
from dewmark.workspace import HostInfo, Tokenized

NO_ID = -1
_INT31 = 0x7FFFFFFF
_MASK = np.uint64(0xFFFFFFFF)
_WIDTHS = {"selfhash": 4, "lefthash": 1}


@dataclass(frozen=True)
class VLLMSBW(EngineScheme):
    """Stateless Bernoulli watermarking."""

    name: ClassVar[str] = "vllm-sbw"
    summary: ClassVar[str] = "green lists by one Philox call per token (SBW), as proposed for vLLM"

    gamma: float = 0.5
    """Share γ of the vocabulary that is green."""
    delta: float = 2.0
    """Bias δ added to green logits."""
    seeding: Literal["selfhash", "lefthash"] = "selfhash"
    """What the green list depends on besides the key."""
    context_width: int | None = None
    """Context width h; by default 4 for selfhash and 1 for lefthash."""

    def validate(self) -> None:
        """Check that all values are in range."""
        check_rules(
            (0.0 < self.gamma < 1.0, "gamma", "lie in (0, 1)", self.gamma),
            (self.delta >= 0.0, "delta", "not be negative", self.delta),
            (self.width >= 1, "context_width", "be at least 1", self.context_width),
        )

    @property
    def width(self) -> int:
        """The context width h."""
        return _WIDTHS[self.seeding] if self.context_width is None else self.context_width

    def bind_numbers(self, numbers: tuple[int, ...], host: HostInfo, fingerprint: str) -> BoundVLLMSBW:
        """Bind the scheme to the server's key."""
        return BoundVLLMSBW(self, host, fingerprint, numbers)


class BoundVLLMSBW(EngineBound):
    """SBW under one key. A token scores 1 − γ if it is green and −γ if not."""

    tests = ("binomial", "vllm")
    scheme: VLLMSBW

    def __init__(self, scheme: VLLMSBW, host: HostInfo, fingerprint: str, numbers: tuple[int, ...]) -> None:
        super().__init__(scheme, host, fingerprint, numbers)
        self.width = scheme.width
        self.limit = int(scheme.gamma * _INT31)
        self.share = self.limit / 2**31
        self.variance = self.share * (1.0 - self.share)

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking prompts (batch, length)."""
        windows = IdWindows(
            vocab_size=self.host.vocab_size, width=self.width, filler=NO_ID, start=prompt_ids.shape[1]
        )
        return _GreenSession(windows, self)

    def seeds(self, contexts: I64, tokens: I64) -> NDArray[np.uint64]:
        """The Philox keys of contexts (N, h) with tokens (N, m), (N, m)."""
        key = np.uint64(self.numbers[0])
        if self.scheme.seeding == "lefthash":
            seeds = (key * contexts.sum(axis=1).astype(np.uint64))[:, None]
            return np.broadcast_to(seeds, (len(contexts), tokens.shape[1]))
        own = _jenkins(tokens)
        least = (key * own * own).view(np.int64)
        for before in _jenkins(contexts[:, 1:]).T:
            least = np.minimum(least, (key * before[:, None] * own).view(np.int64))
        return least.view(np.uint64)

    def green(self, contexts: I64, tokens: I64) -> NDArray[np.bool_]:
        """Whether tokens (N, m) are green after contexts (N, h)."""
        seeds, ids = self.seeds(contexts, tokens), tokens.astype(np.uint64)
        zero = np.zeros(1, dtype=np.uint64)
        words = philox((ids >> np.uint64(2), zero, zero, zero), (seeds & _MASK, seeds >> np.uint64(32)))
        found: NDArray[np.bool_] = (select(words, ids & np.uint64(3)) & np.uint64(_INT31)) < self.limit
        return found

    def cut(self, text: Tokenized, prompt: Tokenized) -> tuple[I64, I64]:
        """The ids of the answer before each token, and where a pair of seed and token first occurs."""
        contexts = id_windows((), text.ids, width=self.width, filler=NO_ID)
        tokens = np.array(text.ids, dtype=np.int64)
        seeds = self.seeds(contexts, tokens[:, None])[:, 0].view(np.int64)
        return contexts, first_rows(np.column_stack((seeds, tokens)))

    def evidence_for(
        self, test: str, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]
    ) -> list[Evidence]:
        """``vllm`` counts the first occurrence of each context, other tests each pair once."""
        if test != "vllm":
            return self.evidence(texts, prompts)
        found = []
        for text in texts:
            contexts = id_windows((), text.ids, width=self.width, filler=NO_ID)
            found.append(self.evidence_of(text, contexts, first_rows(contexts)))
        return found

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """1 − γ if green, −γ if not, (N,)."""
        return self.green(contexts, tokens[:, None])[:, 0].astype(np.float64) - self.share

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``binomial``: the exact distribution of the number of green tokens; ``vllm``: normal."""
        return z_test(evidence) if test == "vllm" else binomial_test(evidence, share=self.share)


class _GreenSession(Session):
    def __init__(self, windows: IdWindows, bound: BoundVLLMSBW) -> None:
        self._windows, self._green, self._delta = windows, bound.green, bound.scheme.delta

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with δ added to green tokens."""
        contexts = self._windows(input_ids, scores).cpu().numpy()
        tokens = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
        green = torch.from_numpy(self._green(contexts, tokens)).to(scores.device)
        return scores + self._delta * green.to(scores.dtype)


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
