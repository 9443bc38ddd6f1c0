"""Marking with SimKey: EXP's race under a code of the text before, which is embedded once per chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dewmark.baselines._race import RaceSession
from dewmark.sampling import RandomStreams, drawn_seeds

if TYPE_CHECKING:
    from dewmark.baselines.simkey import BoundSimKey

__all__ = ["SimKeySession"]

_PURPOSE = 7  # sets the choice of codes apart from the rows' sampling noise


class SimKeySession(RaceSession):
    """Keeps the codes of the chunk that is being written, and the order in which its tokens use them."""

    def __init__(
        self,
        bound: BoundSimKey,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        seeds: Sequence[int] | None,
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._bound = bound
        self._choices = RandomStreams(
            drawn_seeds(len(prompt_ids), seeds), device=torch.device("cpu"), purpose=_PURPOSE
        )
        self._written = 0
        self._codes = self._order = torch.zeros((len(prompt_ids), bound.scheme.hashes), dtype=torch.int64)

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Windows (batch, h) and logits (batch, vocab) to logits with one finite entry per row."""
        hashes = self._bound.scheme.hashes
        chunk, place = divmod(self._written, self._bound.scheme.stride)
        self._written += 1
        if place == 0:
            self._codes = torch.from_numpy(self._bound.codes(windows.cpu().numpy()))
            # a random order: codes are picked evenly, and none twice before all were used
            self._order = self._choices.uniforms(chunk, hashes).argsort(dim=1)
        picked = self._order[:, place % hashes, None]
        contexts = torch.cat((picked, self._codes.gather(1, picked)), dim=1)
        return super().mark(contexts.to(windows.device), scores)
