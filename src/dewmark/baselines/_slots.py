"""A keyed order of the vocabulary without a sort, and the reweightings that cut it.

After a context each token falls into one of 4,096 slots by its keyed word; the slots in their order stand
for a random permutation of the vocabulary, in which the tokens of one slot stay together. Let m_s be the
probability of slot s, F_s that of all slots up to it, and the share of s beyond a cut c

    b_s(c) = clip((F_s − c) / m_s, 0, 1).

A reweighting multiplies the tokens of slot s by a factor f_s, with Σ m_s f_s = 1:

    DiP   f_s = b_s(α) + b_s(1 − α)
    γ     DiP with α = 1/2: the upper half of the order, doubled
    δ     f_s = 1 / m_s for the slot that holds a keyed uniform number, else 0

All leave E_key[f] = 1 for every token. DiP: the reversed order is as likely, in it b_s(c) becomes
1 − b_s(1 − c), and the two factors of s add up to 2. δ: slot s is the one with probability m_s. A true
permutation is the case of infinitely many slots; with finitely many, tokens that share the slot at the cut
share its factor, which costs some of the mark and none of the exactness.

Boundary: torch functions of probabilities (batch, m) and words (batch, m); no scheme.
"""

from __future__ import annotations

import torch

__all__ = ["SLOTS", "delta_factors", "dip_factors", "slot_masses", "slots_of"]

_BITS = 12
SLOTS = 1 << _BITS
_TINY = 1e-300


def slots_of(words: torch.Tensor) -> torch.Tensor:
    """Words (int32) to slots (int64), the most significant bits."""
    return (words >> (32 - _BITS)).bitwise_and_(SLOTS - 1).to(torch.int64)


def slot_masses(probabilities: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """The probability of each slot, (batch, SLOTS) float64, from tokens' (batch, m)."""
    zeros = probabilities.new_zeros((len(probabilities), SLOTS))
    masses = zeros.scatter_add_(1, slots, probabilities).double()
    return masses / masses.sum(dim=1, keepdim=True)


def dip_factors(masses: torch.Tensor, alpha: float) -> torch.Tensor:
    """The factors (batch, SLOTS) of the DiP reweighting."""
    upto, wide = masses.cumsum(dim=1), masses.clamp(min=_TINY)
    beyond = [((upto - cut) / wide).clamp_(0.0, 1.0) for cut in (alpha, 1.0 - alpha)]
    return beyond[0] + beyond[1]


def delta_factors(masses: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The factors (batch, SLOTS) of the δ reweighting, uniforms (batch, 1) being keyed by the context."""
    chosen = (masses.cumsum(dim=1) <= uniforms).sum(dim=1, keepdim=True)  # the first slot beyond
    return torch.zeros_like(masses).scatter_(1, chosen, 1.0 / masses.gather(1, chosen))
