"""How TS marks: after each token its own share of green tokens and its own bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dewmark.baselines._prf import below
from dewmark.baselines._session import TokenSession

if TYPE_CHECKING:
    from dewmark.baselines.ts import BoundTS

__all__ = ["TokenSpecificSession"]


class TokenSpecificSession(TokenSession):
    """Adds δ of the token before to the logits of the tokens that are green after it."""

    def __init__(self, bound: BoundTS, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._vocabulary = bound.vocabulary
        self._limits = bound.limits
        self._delta = torch.from_numpy(bound.tables.delta * bound.scheme.strength).float()

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Windows (batch, 1) and logits (batch, vocab) to marked logits, same shape."""
        before = windows[:, 0].cpu()
        green = below(self._vocabulary.words(windows), self._limits[before.numpy(), None])
        green.logical_and_(self._markable)
        delta = self._delta[before].to(scores.device, scores.dtype)
        return scores.addcmul(green.view(torch.uint8).to(scores.dtype), delta[:, None])
