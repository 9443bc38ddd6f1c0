"""Green lists: a keyed share γ of the vocabulary for each context, and the tests that count green tokens.

A token is green after a context if the pair's keyed word lies below γ·2³², so one pair costs one hash and no
list is ever made. Fix the text and let the key be random: the G green ones among N distinct pairs follow
Binomial(N, γ) exactly.

Boundary: numpy only; `_green_session` marks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dewmark.arrays import F64, I64
from dewmark.baselines._tests import binomial_test, z_test
from dewmark.baselines._tokens import TokenBound, TokenScheme
from dewmark.evidence import Evidence
from dewmark.scheme import Session
from dewmark.stats.key_test import Statistic
from dewmark.workspace import HostInfo

if TYPE_CHECKING:
    import torch

__all__ = ["GreenBound"]


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
