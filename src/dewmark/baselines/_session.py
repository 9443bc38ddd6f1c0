"""Marking for schemes that look at the h ids before a token: what every such session does at each step.

It checks the host's logits, cuts each row's window of h ids (padding and special tokens are `ABSENT`, as in
scoring) and hands both to `mark`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import torch

from dewmark.embeddings.contexts import ABSENT
from dewmark.errors import NumericalError, VocabularyError
from dewmark.scheme import Session

if TYPE_CHECKING:
    from dewmark.baselines._tokens import TokenBound

__all__ = ["TokenSession"]


class TokenSession(Session):
    """Keeps no state but where each row's text begins; subclasses may keep more."""

    def __init__(
        self, bound: TokenBound, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> None:
        self._width = bound.width
        self._vocab_size = bound.host.vocab_size
        self._markable = torch.from_numpy(bound.markable)
        self._special = torch.zeros(self._vocab_size, dtype=torch.bool)
        self._special[[i for i in bound.host.tokenizer.special_ids if i < self._vocab_size]] = True
        if attention_mask is None:
            pad = bound.host.tokenizer.pad_id
            attention_mask = (prompt_ids != pad) if pad is not None else torch.ones_like(prompt_ids)
        # argmax finds the first True: the length of the leading run of padding
        self._padding = (
            attention_mask.to(torch.int8).argmax(dim=1, keepdim=True)
            if prompt_ids.shape[1]
            else prompt_ids.new_zeros((len(prompt_ids), 1))
        )
        self._most_padding = int(self._padding.max()) if len(prompt_ids) else 0

    @abstractmethod
    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Windows (batch, h) int64 and logits (batch, vocab), on one device, to marked logits, same shape."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) to marked logits, same shape."""
        if scores.shape[1] != self._vocab_size:
            raise VocabularyError(
                f"the host gives {scores.shape[1]} logits, the watermark was made for {self._vocab_size}"
            )
        # the largest of numbers with a NaN among them is NaN: a tenth of the cost of looking at each
        if scores.device.type == "cpu" and bool(torch.isnan(scores.max())):
            raise NumericalError("the host's logits hold NaN; load it in float32 or check its weights")
        if self._markable.device != scores.device:
            self._markable = self._markable.to(scores.device)
            self._special = self._special.to(scores.device)
            self._padding = self._padding.to(scores.device)
        return self.mark(self._windows(input_ids.to(scores.device)), scores)

    def _windows(self, ids: torch.Tensor) -> torch.Tensor:
        """The last h ids of each row (batch, h)."""
        h, length = self._width, ids.shape[1]
        first = max(length - h, 0)
        window = ids[:, first:]
        window = window.masked_fill(self._special[window], ABSENT)
        if first < self._most_padding:
            at = torch.arange(first, length, device=ids.device).unsqueeze(0)
            window = window.masked_fill(at < self._padding, ABSENT)
        return torch.nn.functional.pad(window, (h - length, 0), value=ABSENT) if length < h else window
