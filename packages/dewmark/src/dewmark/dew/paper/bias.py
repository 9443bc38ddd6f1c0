"""Algorithm 1 of the paper: a bias of λ tanh(γu) on the logits of the likeliest tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dewmark.dew.sessions import Batch, Mark, Texts
from dewmark.sampling import Session, check_logits, likeliest

__all__ = ["Bias", "BiasSession"]


@dataclass(frozen=True)
class Bias:
    """λ and γ, and who gets the bias: the ``m`` likeliest tokens, or those of a ``nucleus``."""

    strength: float
    gamma: float
    m: int
    nucleus: float | None = None

    def __call__(self, scores: torch.Tensor, texts: Texts) -> torch.Tensor:
        """Logits (batch, vocab) plus the bias."""
        values, candidates, kept = self._candidates(scores)
        u = texts.alignments(candidates, values, scores.logsumexp(dim=-1, keepdim=True))
        bias = (self.strength * torch.tanh(self.gamma * u)).masked_fill(~kept, 0.0)
        return scores.scatter_add(1, candidates, bias.to(scores.dtype))

    def _candidates(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits and ids of the candidates (batch, m), and which of them get the bias (batch, m)."""
        if self.nucleus is None:
            values, candidates = likeliest(scores, self.m)
            return values, candidates, values != -math.inf  # ids of value -inf may be listed twice
        probabilities, order = scores.float().softmax(dim=-1).sort(dim=-1, descending=True)
        inside = probabilities.cumsum(dim=-1) - probabilities < self.nucleus
        width = int(inside.sum(dim=-1).max())
        candidates = order[:, :width]
        return scores.gather(1, candidates), candidates, inside[:, :width]


class BiasSession(Session):
    """Adds a bias to the logits of a batch."""

    def __init__(self, bias: Bias, batch: Batch[Texts], *, vocab_size: int) -> None:
        self._bias = bias
        self._batch = batch
        self._vocab_size = vocab_size

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) to marked logits, same shape."""
        check_logits(scores, self._vocab_size)
        return self._bias(scores, self._batch.texts(input_ids.to(scores.device)))


def bias_rows(bias: Bias) -> Mark:
    """Rows of engines are marked by a bias on their logits."""
    return lambda scores, texts, _: bias(scores, texts)
