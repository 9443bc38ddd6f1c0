"""A keyed random order of the vocabulary, without sorting, and the reweightings that cut it.

After a context, each token falls into one of 4,096 slots by its keyed word. The slots in order stand for a
random permutation of the vocabulary in which the tokens of one slot stay together. Let m_s be the probability
of slot s, F_s that of all slots up to s, and the share of s beyond a cut c

    b_s(c) = clip((F_s − c) / m_s, 0, 1).

A reweighting multiplies the tokens of slot s by a factor f_s, with Σ m_s f_s = 1:

    DiP   f_s = b_s(α) + b_s(1 − α)
    γ     DiP with α = 1/2: the upper half of the order, doubled
    δ     f_s = 1 / m_s for the slot that contains a keyed uniform number, else 0

All have E_key[f] = 1 for every token. DiP: the reversed order is equally likely, in it b_s(c) becomes 1 −
b_s(1 − c), and the two factors of s add up to 2. δ: slot s is chosen with probability m_s. A true permutation
is the limit of infinitely many slots; with finitely many, tokens that share the slot at the cut share its
factor, which weakens the mark a little but stays exact.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from dewmark_lab.schemes.distortion_free import Repeats, ReweightingSession
from dewmark_lab.schemes.token_schemes import PromptBatch
from dewmark_lab.schemes.vocabulary_hash import VocabularyHash

_BITS = 12
SLOTS = 1 << _BITS

_TINY = 1e-300

SlotFactors = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Masses (batch, SLOTS) and contexts (batch, h) to factors (batch, SLOTS)."""


def slots_of(words: torch.Tensor) -> torch.Tensor:
    """Words (int32) to slots (int64): the most significant bits."""
    return (words >> (32 - _BITS)).bitwise_and_(SLOTS - 1).to(torch.int64)


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


def delta_factors(masses: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The factors (batch, SLOTS) of the δ reweighting, with uniforms (batch, 1) keyed by the context."""
    chosen = (masses.cumsum(dim=1) <= uniforms).sum(dim=1, keepdim=True)  # the first slot beyond
    return torch.zeros_like(masses).scatter_(1, chosen, 1.0 / masses.gather(1, chosen))


class SlotSession(ReweightingSession):
    """One pass to hash, one to add up the slots, one to look up their factors."""

    def __init__(
        self, prompts: PromptBatch, vocabulary_hash: VocabularyHash, *, repeats: Repeats, factors: SlotFactors
    ) -> None:
        super().__init__(prompts, vocabulary_hash, repeats=repeats)
        self._factors = factors

    def reweight(
        self, contexts: torch.Tensor, logits: torch.Tensor, candidates: torch.Tensor | None
    ) -> torch.Tensor:
        """Logits (batch, m) of the reweighted distribution."""
        slots = slots_of(self._hash.words(contexts, candidates))
        factors = self._factors(slot_masses(logits.softmax(dim=1), slots), contexts)
        return logits + factors.log().float().gather(1, slots)
