"""DiPmark (Wu et al. 2024): a distribution-preserving reweighting of a keyed order of the vocabulary.

After a context the tokens stand in a keyed random order (`keyed_order`). The parts of the distribution beyond
α and beyond 1 − α are added up: tokens early in the order lose their probability, late ones get up to twice
theirs, and averaged over keys every token keeps its own.

Detection needs no host: a token is green if its own keyed number, which places it in the order, is at least
γ. On unmarked text each distinct pair is green with probability 1 − γ, independently, so the number of green
pairs follows Binomial(N, 1 − γ) exactly. (Its standard deviation is √(γ(1 − γ)N). The original statistic
divides by √N, which at γ = 1/2 is half a z-score.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dewmark.arrays import F64, I64
from dewmark.config import check_rules
from dewmark.sampling import Session
from dewmark.scheme import Needs
from dewmark.stats.evidence import Evidence
from dewmark.stats.independent_sums import binomial_test, z_test
from dewmark.stats.key_test import Statistic
from dewmark.workspace import HostInfo, Workspace
from dewmark_lab.schemes.distortion_free import DistortionFreeBound, Repeats
from dewmark_lab.schemes.reweight.keyed_order import SlotSession, dip_factors
from dewmark_lab.schemes.token_schemes import PromptBatch, TokenScheme


@dataclass(frozen=True)
class DiPmark(TokenScheme):
    """Distribution-preserving reweighting."""

    name: ClassVar[str] = "dipmark"
    summary: ClassVar[str] = "distribution-preserving reweighting of a keyed order of the vocabulary"
    needs: ClassVar[Needs] = Needs(final_distribution=True)

    alpha: float = 0.45
    """Where the order is cut: at α and at 1 − α. 0 marks nothing, 0.5 marks most strongly."""
    gamma: float = 0.5
    """Keyed number from which a token counts as green in detection."""
    prefix: int = 3
    """Context width: the number of preceding tokens that key the choice."""
    repeats: Repeats = "keep"
    """Whether a context seen before in the text is marked again (keep) or left to the host (skip)."""

    def validate(self) -> None:
        """Check that all values are in range."""
        check_rules(
            (0.0 <= self.alpha <= 1.0, "alpha", "lie in [0, 1]", self.alpha),
            (0.0 < self.gamma < 1.0, "gamma", "lie in (0, 1)", self.gamma),
            (self.prefix >= 1, "prefix", "be at least 1", self.prefix),
        )

    def bind_secret(
        self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace
    ) -> BoundDiPmark:
        """Bind DiPmark to a secret and a vocabulary."""
        return BoundDiPmark(self, host, fingerprint, secret=secret)


class BoundDiPmark(DistortionFreeBound):
    """DiPmark for one key and one vocabulary. A pair scores γ if it is green, else γ − 1."""

    tests = ("binomial", "z")
    scheme: DiPmark

    def __init__(self, scheme: DiPmark, host: HostInfo, fingerprint: str, *, secret: bytes) -> None:
        super().__init__(
            scheme, host, fingerprint, secret=secret, width=scheme.prefix, repeats=scheme.repeats
        )
        self.variance = scheme.gamma * (1.0 - scheme.gamma)

    def start_session(self, prompts: PromptBatch) -> Session:
        """Start marking a batch of prompts."""
        alpha = self.scheme.alpha
        return SlotSession(
            prompts,
            self.vocabulary_hash,
            repeats=self.repeats,
            factors=lambda masses, contexts: dip_factors(masses, alpha),
        )

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """1 if a pair is green, else 0, less the share 1 − γ that is green by chance: (N,)."""
        green = self.pair_hash.uniforms(contexts, tokens) >= self.scheme.gamma
        return green.astype(np.float64) - (1.0 - self.scheme.gamma)

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``binomial``: the exact distribution of the green pairs' number; ``z``: its normal limit."""
        if test == "z":
            return z_test(evidence)
        return binomial_test(evidence, share=1.0 - self.scheme.gamma)
