"""Green lists: a keyed share γ of the vocabulary for each context, and the tests that count green tokens.

A token is green after a context if the pair's keyed word lies below γ·2³², so one pair costs one hash and no
list is ever made. Fix the text and let the key be random: the G green ones among N distinct pairs follow
Binomial(N, γ) exactly.

Boundary: numpy only; `_green_session` marks.

How the green-list schemes mark: each row's green tokens, and what is done to their logits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from dewmark.arrays import F64, I64
from dewmark.baselines.keyed_words import below
from dewmark.baselines.token_schemes import TokenBound, TokenScheme, TokenSession, binomial_test, z_test
from dewmark.scheme import Session
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.workspace import HostInfo

if TYPE_CHECKING:
    import torch

    from dewmark.baselines.green.kgw import BoundKGW
    from dewmark.baselines.green.morphmark import BoundMorphMark

__all__ = [
    "BiasSession",
    "FixedSession",
    "GatedSession",
    "GreenBound",
    "HashedSession",
    "MorphSession",
    "entropy",
]


class GreenBound(TokenBound):
    """A green-list scheme with its secret and a vocabulary. A pair scores 1 − γ if it is green, else −γ."""

    tests = ("binomial", "z")

    def __init__(
        self,
        scheme: TokenScheme,
        host: HostInfo,
        fingerprint: str,
        *,
        secret: bytes,
        gamma: float,
        width: int,
    ) -> None:
        super().__init__(scheme, host, fingerprint, secret=secret)
        self.gamma = gamma
        self.width = width
        self.variance = gamma * (1.0 - gamma)
        self.limit = np.uint32(min(max(round(gamma * 2**32), 1), 2**32 - 1))

    @abstractmethod
    def marker(self) -> Callable[[torch.Tensor, torch.Tensor | None], Session]:
        """What makes a session of prompts (batch, length) and their mask; imports torch, scoring does not."""

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts (batch, length)."""
        return self.marker()(prompt_ids, attention_mask)

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """1 − γ for green pairs, −γ for the others, (N,)."""
        green = self.hash.words(contexts, tokens) < self.limit
        return green.astype(np.float64) - self.gamma

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``binomial``: the exact law of the number of green pairs; ``z``: its normal approximation."""
        return binomial_test(evidence, share=self.gamma) if test == "binomial" else z_test(evidence)


_MOST_MOVED = 1.0 - 1e-6  # of the red mass; all of it would make red logits infinite


class GreenSession(TokenSession):
    """Knows which tokens are green after each row's window."""

    def __init__(
        self, bound: GreenBound, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._vocabulary = bound.vocabulary
        self._limit = bound.limit

    def green(self, windows: torch.Tensor) -> torch.Tensor:
        """The green tokens after each window (batch, h): (batch, vocab) bool. Special tokens never are."""
        return self.listed(windows).logical_and_(self._markable)

    def listed(self, windows: torch.Tensor) -> torch.Tensor:
        """The tokens on each window's green list, (batch, vocab) bool, special or not."""
        return self._vocabulary.below(windows, self._limit)


class BiasSession(GreenSession):
    """Adds δ to the logits of green tokens."""

    def __init__(
        self,
        bound: GreenBound,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        delta: float,
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._delta = delta

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with δ added where tokens are green."""
        return scores.add(_as_numbers(self.green(windows), scores), alpha=self._delta)


class HashedSession(BiasSession):
    """KGW: what the lists depend on is a part of the window, and for self-hashing the candidate too."""

    def __init__(
        self, bound: BoundKGW, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask, delta=bound.scheme.delta)
        self._contexts = bound.contexts
        self._self_hashing = bound.scheme.hashing == "self"
        if self._self_hashing:
            self._ranks = torch.from_numpy(bound.ranks[None, :-1].view(np.int32))
            self._alone = torch.from_numpy(bound.green_alone[None])

    def listed(self, windows: torch.Tensor) -> torch.Tensor:
        """The tokens on each window's green list, (batch, vocab) bool, special or not."""
        device = windows.device
        contexts = self._contexts(windows.cpu().numpy())
        listed = super().listed(torch.from_numpy(contexts).to(device))
        if not self._self_hashing:
            return listed
        # a candidate that ranks below all ids before it is its own context, whatever they are
        self._ranks, self._alone = self._ranks.to(device), self._alone.to(device)
        lowest = below(self._ranks, contexts.astype(np.uint32))
        return (
            (listed ^ self._alone).logical_and_(lowest).logical_xor_(listed)
        )  # where(lowest, alone, listed)


class FixedSession(BiasSession):
    """Unigram: the same list after every context, looked up once."""

    _bias: torch.Tensor | None = None

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with δ added where tokens are green."""
        if self._bias is None:
            self._bias = self._delta * _as_numbers(self.green(windows[:1]), scores)
        return scores + self._bias


class GatedSession(BiasSession):
    """SWEET: rows whose entropy does not exceed the threshold are left alone."""

    def __init__(
        self,
        bound: GreenBound,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        delta: float,
        threshold: float,
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask, delta=delta)
        self._threshold = threshold

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with δ added where tokens are green and the row is unsure."""
        unsure = entropy(scores) > self._threshold
        return scores.addcmul(
            _as_numbers(self.green(windows), scores), _as_numbers(unsure, scores)[:, None], value=self._delta
        )


class MorphSession(GreenSession):
    """MorphMark: multiplies green probabilities by 1 + r P_R / P_G and red ones by 1 − r."""

    def __init__(
        self, bound: BoundMorphMark, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._share = bound.scheme.share
        self._unmarkable = torch.from_numpy(np.flatnonzero(~bound.markable))

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) of the final distribution to those of the morphed one, up to a constant."""
        green = _as_numbers(self.green(windows), scores)
        p = scores.float().softmax(dim=-1)
        self._unmarkable = self._unmarkable.to(scores.device)
        P_G = (p * green).sum(dim=-1, keepdim=True)
        P_R = (1.0 - P_G - p[:, self._unmarkable].sum(dim=-1, keepdim=True)).clamp_(min=0.0)
        r = self._share(P_G).clamp_(0.0, _MOST_MOVED)
        up = torch.log1p(r * P_R / P_G.clamp(min=torch.finfo(P_G.dtype).tiny))
        down = torch.log1p(-r)
        # all logits less the constant ``down``: so the red ones, half of the vocabulary, stay as they are
        marked = scores.addcmul(green, (up - down).to(scores.dtype))
        marked[:, self._unmarkable] -= down.to(scores.dtype)
        return marked


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """The entropy in nats of the softmax of logits (n, vocab), some of which may be -inf: (n,)."""
    below_top = (logits.float() - logits.amax(dim=-1, keepdim=True)).clamp_(min=-1e4)
    shares = below_top.exp()
    total = shares.sum(dim=-1)
    return total.log() - below_top.mul_(shares).sum(dim=-1) / total


def _as_numbers(chosen: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Booleans to 0 and 1; by way of bytes, whose conversion is several times faster."""
    return chosen.view(torch.uint8).to(like.dtype)
