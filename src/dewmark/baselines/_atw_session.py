"""How ATW marks: where the next token is open, likely tokens of the context's half of the vocabulary gain.

Where the measurement model is the host itself, the gate reads the logits that the session is given: no second
pass. Another model goes along with a KV cache of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from dewmark.baselines._atw_network import prefix_vectors
from dewmark.baselines._green_session import entropy
from dewmark.baselines._session import TokenSession

if TYPE_CHECKING:
    from dewmark.baselines.atw import BoundATW

__all__ = ["AdaptiveSession"]

Follow = Callable[[torch.Tensor], torch.Tensor]


class AdaptiveSession(TokenSession):
    """Keeps each row's green tokens until its context is due again.

    ``follow`` gives the measurement model's logits after ids; None stands for the host's own.
    """

    def __init__(
        self,
        bound: BoundATW,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        follow: Callable[[torch.Tensor], Follow] | None,
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._bound = bound
        self._start = prompt_ids.shape[1]
        self._green: tuple[int, torch.Tensor] | None = None
        self._measure = None
        if follow is not None:
            at = torch.arange(self._start, device=prompt_ids.device)
            self._measure = follow((at >= self._padding.to(prompt_ids.device)).long())

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) to marked logits, same shape."""
        self._ids = input_ids
        return super().__call__(input_ids, scores)

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) plus δ · log(p V), where that is positive, on green tokens of open places."""
        scheme, written = self._bound.scheme, self._ids.shape[1] - self._start
        green = self._green_after(written).to(scores.device)
        if written < scheme.opening:
            strength = torch.full((len(scores), 1), scheme.opening_delta, device=scores.device)
        else:
            measured = scores if self._measure is None else self._measure(self._ids).to(scores.device)
            strength = scheme.delta * (entropy(measured) >= scheme.alpha).float().unsqueeze(1)
        log_p = scores.float().log_softmax(dim=-1)
        boost = (log_p + math.log(self._vocab_size)).clamp_(min=0.0).mul_(strength).mul_(green)
        return scores + boost.to(scores.dtype)

    def _green_after(self, written: int) -> torch.Tensor:
        """Which tokens are green after ``written`` tokens, (batch or 1, vocab) of 0 and 1, float32."""
        bound = self._bound
        cut = bound.cut(written)
        if self._green is None or self._green[0] != cut:
            if cut < 0:
                green = bound.opening_signs[None] > 0
            else:
                rows = self._ids[:, self._start : self._start + cut].tolist()
                vectors = np.concatenate([prefix_vectors(bound.semantics.table, row, [cut]) for row in rows])
                signs = bound.semantics.signs(vectors)
                green = signs[:, bound.places] * bound.flips > 0
            listed = torch.from_numpy(green).to(self._markable.device).logical_and_(self._markable)
            self._green = (cut, listed.view(torch.uint8).float())
        return self._green[1]
