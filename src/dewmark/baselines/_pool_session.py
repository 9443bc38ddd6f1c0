"""Marking a batch whose rows have a key each: one inner session per row."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dewmark.scheme import Session

__all__ = ["PoolSession"]


class PoolSession(Session):
    """Hands every row to its own session."""

    def __init__(self, rows: Sequence[Session]) -> None:
        self._rows = list(rows)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Ids (batch, length) and logits (batch, vocab) to marked logits, same shape."""
        return torch.cat(
            [session(input_ids[i : i + 1], scores[i : i + 1]) for i, session in enumerate(self._rows)]
        )
