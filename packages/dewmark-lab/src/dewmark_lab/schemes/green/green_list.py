"""Green lists: a keyed share γ of the vocabulary for each context, and tests that count green tokens.

A token is green after a context if the pair's keyed word is below γ·2³², so a pair costs one hash and no list
is ever built. Fix the text and let the key be random: the number of green pairs among N distinct ones follows
Binomial(N, γ) exactly. Here are the two schemes that add δ to the logits of green tokens wherever they are:

- `KGW` (Kirchenbauer et al. 2023: A Watermark for Large Language Models; On the Reliability of Watermarks)
makes a list after each context. With ``hashing=left`` the h preceding ids decide; with ``self`` the id with
the lowest keyed rank among h − 1 preceding ids and the candidate itself. (Algorithm 3 of the first paper
multiplies each rank by the candidate's own before taking the minimum. Either way one id of the window and the
candidate decide; here all candidates of a step are judged in one pass.) Ranks and green lists are independent
over keys: given the ranks, the distribution of green tokens is exact. - `Unigram` (Zhao et al. 2023: Provable
Robust Watermarking) has one list for all contexts, so each token counts once per text (the paper's test over
unique tokens).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F64, I64, U32
from dewmark.config import check_rules
from dewmark.mark import Session
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import Workspace
from dewmark_lab.schemes.independent_sums import binomial_test, z_test
from dewmark_lab.schemes.pair_hash import below
from dewmark_lab.schemes.token_schemes import PromptBatch, TokenBound, TokenScheme, TokenSession


class GreenBound(TokenBound):
    """A green-list scheme with a field γ, bound. A pair scores 1 − γ if it is green, else −γ."""

    tests = ("binomial", "z")
    scheme: Any

    def prepare(self, workspace: Workspace) -> None:
        self.gamma: float = self.scheme.gamma
        self.width = getattr(self.scheme, "prefix", 0)
        self.variance = self.gamma * (1.0 - self.gamma)
        self.limit = np.uint32(min(max(round(self.gamma * 2**32), 1), 2**32 - 1))

    def start_session(self, prompts: PromptBatch) -> Session:
        return GreenListSession(prompts, self)

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """1 − γ for green pairs, −γ for the others, (N,)."""
        green = self.pair_hash.words(contexts, tokens) < self.limit
        return green.astype(np.float64) - self.gamma

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """``binomial``: the exact distribution of the green pairs' number; ``z``: its normal limit."""
        return binomial_test(evidence, share=self.gamma) if test == "binomial" else z_test(evidence)


class GreenSession(TokenSession):
    """Knows which tokens are green after each row's window."""

    def __init__(self, prompts: PromptBatch, bound: GreenBound) -> None:
        super().__init__(prompts, bound)
        self._limit = bound.limit

    def green(self, windows: torch.Tensor) -> torch.Tensor:
        """The green tokens after each window (batch, h): (batch, vocab) bool. Special tokens never are."""
        return self.listed(windows).logical_and_(self._markable)

    def listed(self, windows: torch.Tensor) -> torch.Tensor:
        """The tokens on each window's green list, special or not: (batch, vocab) bool."""
        return self._hash.below(windows, self._limit)


class GreenListSession(GreenSession):
    """Adds δ to the logits of green tokens."""

    def __init__(self, prompts: PromptBatch, bound: GreenBound) -> None:
        super().__init__(prompts, bound)
        self._delta: float = bound.scheme.delta

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with δ added to those of green tokens."""
        return scores.add(as_numbers(self.green(windows), scores), alpha=self._delta)


def as_numbers(chosen: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Booleans to 0 and 1 in another tensor's type; going through bytes is several times faster."""
    return chosen.view(torch.uint8).to(like.dtype)


class BoundKGW(GreenBound):
    """KGW for one key and one vocabulary. Contexts that share a green list are the same context."""

    scheme: KGW

    def prepare(self, workspace: Workspace) -> None:
        """Of a window that includes the candidate, one id less lies before it."""
        super().prepare(workspace)
        self.width = self.scheme.h - (self.scheme.hashing == "self")

    def start_session(self, prompts: PromptBatch) -> Session:
        if self.scheme.hashing == "self":
            return SelfHashSession(prompts, self)
        return super().start_session(prompts)

    def contexts_of(self, windows: I64, tokens: I64) -> I64:
        """The windows (N, h), or for ``self`` the lowest rank in each and of its token (N,): (N, 1)."""
        if self.scheme.hashing == "left":
            return windows
        lowest = self.ranks[windows].min(axis=1, keepdims=True)
        return np.asarray(np.minimum(lowest, self.ranks[tokens, None]), dtype=np.int64)

    @functools.cached_property
    def ranks(self) -> U32:
        """The keyed ranks of all ids and last of `ABSENT`, (vocab + 1,)."""
        return self.pair_hash.table("ranks", self.host.vocab_size + 1)

    @functools.cached_property
    def green_alone(self) -> NDArray[np.bool_]:
        """Whether each id is green where, in self-hashing, it ranks below its whole context: (vocab,)."""
        ids = np.arange(self.host.vocab_size)
        return self.pair_scores(self.ranks[ids, None].astype(np.int64), ids) > 0.0


@dataclass(frozen=True)
class KGW(TokenScheme):
    """The green-list watermark."""

    name: ClassVar[str] = "kgw"
    summary: ClassVar[str] = "a keyed green list after every context, and a bias towards it"
    bound = BoundKGW

    gamma: Annotated[float, "in (0, 1)"] = 0.5
    """Share γ of the vocabulary that is green."""
    delta: Annotated[float, "positive"] = 2.0
    """Bias δ added to green logits."""
    hashing: Literal["left", "self"] = "left"
    """Whether the preceding ids alone decide the green list, or the candidate too."""
    prefix: Annotated[int | None, "at least 1"] = None
    """Context width h; by default 3 for left and 4 for self."""

    def validate(self) -> None:
        wide = self.hashing == "left" or self.h >= 2
        check_rules((wide, "prefix", "be at least 2 for self hashing", self.h))

    @property
    def h(self) -> int:
        """The context width in use."""
        return (4 if self.hashing == "self" else 3) if self.prefix is None else self.prefix


class SelfHashSession(GreenListSession):
    """Looks up the lists of the lowest ranks; a token below all preceding ids is its own context."""

    def __init__(self, prompts: PromptBatch, bound: BoundKGW) -> None:
        super().__init__(prompts, bound)
        self._all_ranks = bound.ranks
        self._ranks = torch.from_numpy(bound.ranks[None, :-1].view(np.int32))
        self._alone = torch.from_numpy(bound.green_alone[None])

    def listed(self, windows: torch.Tensor) -> torch.Tensor:
        device = windows.device
        contexts = self._all_ranks[windows.cpu().numpy()].min(axis=1, keepdims=True)
        listed = super().listed(torch.from_numpy(contexts.astype(np.int64)).to(device))
        self._ranks, self._alone = self._ranks.to(device), self._alone.to(device)
        lowest = below(self._ranks, contexts)
        # the same as where(lowest, alone, listed), but faster
        return (listed ^ self._alone).logical_and_(lowest).logical_xor_(listed)


@dataclass(frozen=True)
class Unigram(TokenScheme):
    """One fixed green list."""

    name: ClassVar[str] = "unigram"
    summary: ClassVar[str] = "one keyed green list for all contexts, and a bias towards it"
    bound = GreenBound

    gamma: Annotated[float, "in (0, 1)"] = 0.5
    """Share γ of the vocabulary that is green."""
    delta: Annotated[float, "positive"] = 2.0
    """Bias δ added to green logits."""
