"""Reweighting a keyed random order of the vocabulary, and DiPmark (Wu et al. 2024).

After a context, each token falls into one of 4,096 slots by its keyed word. The slots in order stand for a
random permutation of the vocabulary in which the tokens of one slot stay together. Let m_s be the probability
of slot s, F_s that of all slots up to s, and the share of s beyond a cut c

    b_s(c) = clip((F_s − c) / m_s, 0, 1).

The DiP reweighting multiplies the tokens of slot s by f_s = b_s(α) + b_s(1 − α): tokens early in the order
lose their probability, late ones get up to twice theirs. (γ-reweighting is DiP with α = 1/2.) E_key[f] = 1
for every token: the reversed order is equally likely, in it b_s(c) becomes 1 − b_s(1 − c), and the two
factors of s add up to 2. A true permutation is the limit of infinitely many slots; with finitely many, tokens
that share the slot at the cut share its factor, which weakens the mark a little but stays exact.

DiPmark's detection needs no host: a token is green if its own keyed number, which places it in the order, is
at least γ. On unmarked text each distinct pair is green with probability 1 − γ, independently, so the number
of green pairs follows Binomial(N, 1 − γ) exactly. (Its standard deviation is √(γ(1 − γ)N). The original
statistic divides by √N, which at γ = 1/2 is half a z-score.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from dewmark.arrays import F64, I64
from dewmark.mark import Session
from dewmark.scheme import Needs
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import Workspace
from dewmark_lab.schemes.distortion_free import DistortionFreeBound, Repeats, ReweightingSession
from dewmark_lab.schemes.independent_sums import binomial_test, z_test
from dewmark_lab.schemes.token_schemes import PromptBatch, TokenScheme

_BITS = 12
SLOTS = 1 << _BITS

_TINY = 1e-300


def slots_of(words: torch.Tensor) -> torch.Tensor:
    """Words (int64) to slots: the most significant bits."""
    return words >> (32 - _BITS)


def slot_masses(probabilities: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Add up tokens' probabilities (batch, m) by their slots: (batch, SLOTS), float64."""
    zeros = probabilities.new_zeros((len(probabilities), SLOTS))
    masses = zeros.scatter_add_(1, slots, probabilities).double()
    return masses / masses.sum(dim=1, keepdim=True)


def dip_factors(masses: torch.Tensor, alpha: float) -> torch.Tensor:
    """The factors (batch, SLOTS) of the DiP reweighting."""
    upto, wide = masses.cumsum(dim=1), masses.clamp(min=_TINY)
    beyond = [((upto - cut) / wide).clamp_(0.0, 1.0) for cut in (alpha, 1.0 - alpha)]
    return beyond[0] + beyond[1]


class DipSession(ReweightingSession):
    """One pass to hash, one to add up the slots, one to look up their factors."""

    def __init__(self, prompts: PromptBatch, bound: DistortionFreeBound, *, alpha: float) -> None:
        super().__init__(prompts, bound)
        self._alpha = alpha

    def reweight(
        self, contexts: torch.Tensor, logits: torch.Tensor, candidates: torch.Tensor | None
    ) -> torch.Tensor:
        slots = slots_of(self._hash.words(contexts, candidates))
        factors = dip_factors(slot_masses(logits.softmax(dim=1), slots), self._alpha)
        return logits + factors.log().float().gather(1, slots)


class BoundDiPmark(DistortionFreeBound):
    """DiPmark for one key and one vocabulary. A pair scores γ if it is green, else γ − 1."""

    tests = ("binomial", "z")
    scheme: DiPmark

    def prepare(self, workspace: Workspace) -> None:
        self.width, self.repeats = self.scheme.prefix, self.scheme.repeats
        self.variance = self.scheme.gamma * (1.0 - self.scheme.gamma)

    def start_session(self, prompts: PromptBatch) -> Session:
        return DipSession(prompts, self, alpha=self.scheme.alpha)

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """1 if a pair is green, else 0, less the share 1 − γ that is green by chance: (N,)."""
        green = self.pair_hash.uniforms(contexts, tokens) >= self.scheme.gamma
        return green.astype(np.float64) - (1.0 - self.scheme.gamma)

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """``binomial``: the exact distribution of the green pairs' number; ``z``: its normal limit."""
        if test == "z":
            return z_test(evidence)
        return binomial_test(evidence, share=1.0 - self.scheme.gamma)


@dataclass(frozen=True)
class DiPmark(TokenScheme):
    """Distribution-preserving reweighting."""

    name: ClassVar[str] = "dipmark"
    summary: ClassVar[str] = "distribution-preserving reweighting of a keyed order of the vocabulary"
    needs: ClassVar[Needs] = Needs(final_distribution=True)
    bound = BoundDiPmark

    alpha: Annotated[float, "in [0, 1]"] = 0.45
    """Where the order is cut: at α and at 1 − α. 0 marks nothing, 0.5 marks most strongly."""
    gamma: Annotated[float, "in (0, 1)"] = 0.5
    """Keyed number from which a token counts as green in detection."""
    prefix: Annotated[int, "at least 1"] = 3
    """Context width: the number of preceding tokens that key the choice."""
    repeats: Repeats = "keep"
    """Whether a context seen before in the text is marked again (keep) or left to the host (skip)."""
