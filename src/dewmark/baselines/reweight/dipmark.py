"""DiPmark (Wu et al.): a distribution-preserving reweighting of a keyed order of the vocabulary.

After a context the tokens stand in a keyed random order (`_slots`). The part of the distribution beyond α
and the part beyond 1 − α are added up: tokens early in the order lose their probability, late ones get up
to twice theirs, and averaged over keys every token keeps what it had.

Scoring needs no host: a token is green if its own keyed number, which places it in the order, is at least γ.
On unmarked text each distinct pair is green with probability 1 − γ, independently, so the number of green
pairs follows Binomial(N, 1 − γ) exactly. (Its standard deviation is √(γ(1 − γ)N). The statistic of the
original divides by √N, which makes it a z-score only after doubling, at γ = 1/2.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dewmark.arrays import F64, I64
from dewmark.baselines.reweight.slots import Repeats, ReweightBound
from dewmark.baselines.token_schemes import TokenScheme, binomial_test, check, z_test
from dewmark.scheme import Needs, Session
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.workspace import HostInfo, Workspace

if TYPE_CHECKING:
    import torch

__all__ = ["BoundDiPmark", "DiPmark"]


@dataclass(frozen=True)
class DiPmark(TokenScheme):
    """Distribution-preserving reweighting."""

    name: ClassVar[str] = "dipmark"
    summary: ClassVar[str] = "distribution-preserving reweighting of a keyed order of the vocabulary"
    needs: ClassVar[Needs] = Needs(final=True)

    alpha: float = 0.45
    """Where the order is cut: at α and at 1 − α. 0 marks nothing, 0.5 marks most."""
    gamma: float = 0.5
    """From which keyed number on a token counts as green when texts are scored."""
    prefix: int = 3
    """Context width: how many tokens before the one that is chosen."""
    repeats: Repeats = "keep"
    """Whether a context that occurred in the text before is marked again (keep) or left to the host."""

    def validate(self) -> None:
        """Refuse values out of range."""
        check(
            (0.0 <= self.alpha <= 1.0, "alpha", "lie in [0, 1]", self.alpha),
            (0.0 < self.gamma < 1.0, "gamma", "lie in (0, 1)", self.gamma),
            (self.prefix >= 1, "prefix", "be at least 1", self.prefix),
        )

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundDiPmark:
        """The scheme with its secret and a host's vocabulary."""
        return BoundDiPmark(self, host, fingerprint, secret=secret)


class BoundDiPmark(ReweightBound):
    """DiPmark for one key and one vocabulary. A pair scores γ if it is green, else γ − 1."""

    tests = ("binomial", "z")
    scheme: DiPmark

    def __init__(self, scheme: DiPmark, host: HostInfo, fingerprint: str, *, secret: bytes) -> None:
        super().__init__(
            scheme, host, fingerprint, secret=secret, prefix=scheme.prefix, repeats=scheme.repeats
        )
        self.variance = scheme.gamma * (1.0 - scheme.gamma)

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts (batch, length)."""
        from dewmark.baselines.reweight.slots import SlotSession, dip_factors

        alpha = self.scheme.alpha
        return SlotSession(
            self, prompt_ids, attention_mask, factors=lambda masses, contexts: dip_factors(masses, alpha)
        )

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """Green or not, less the share 1 − γ that is green by chance, (N,)."""
        green = self.hash.uniforms(contexts, tokens) >= self.scheme.gamma
        return green.astype(np.float64) - (1.0 - self.scheme.gamma)

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``binomial``: the exact law of the number of green pairs; ``z``: its normal approximation."""
        if test == "z":
            return z_test(evidence)
        return binomial_test(evidence, share=1.0 - self.scheme.gamma)
