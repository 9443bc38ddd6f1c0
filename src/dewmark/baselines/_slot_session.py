"""Marking by slots (DiPmark, UnbiasedWM): logits plus the logarithm of each token's factor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from dewmark.baselines._reweight_session import ReweightSession
from dewmark.baselines._slots import slot_masses, slots_of

if TYPE_CHECKING:
    from dewmark.baselines._reweight import ReweightBound

__all__ = ["SlotSession"]

Factors = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class SlotSession(ReweightSession):
    """A step is one pass to hash, one to add up the slots and one to look up their factors.

    ``factors`` makes the slots' factors (batch, SLOTS) of their masses, same shape, and contexts (batch, h).
    """

    def __init__(
        self,
        bound: ReweightBound,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        factors: Factors,
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._factors = factors

    def reweight(
        self, contexts: torch.Tensor, logits: torch.Tensor, candidates: torch.Tensor | None
    ) -> torch.Tensor:
        """Logits (batch, m) of the reweighted distribution."""
        slots = slots_of(self._hash.words(contexts, candidates))
        factors = self._factors(slot_masses(logits.softmax(dim=1), slots), contexts)
        return logits + factors.log().float().gather(1, slots)
