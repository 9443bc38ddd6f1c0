"""Marking by reweighting: contexts seen before in a text, and the tokens that can be chosen at all.

Boundary: what is common to these schemes' sessions; a scheme gives `reweight`. All of them see the host's
final distribution, so top-k and top-p have often left few tokens, and only those are hashed.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import torch

from dewmark.baselines._session import TokenSession

if TYPE_CHECKING:
    from dewmark.baselines._reweight import ReweightBound

__all__ = ["ReweightSession", "support"]

_MINUS_INF = -float("inf")
_STRIDE = 64
_FEW = 8  # a support below one eighth of the vocabulary is worth picking out


class ReweightSession(TokenSession):
    """Reweights rows whose context is new and leaves the others' logits as they are.

    ``memory`` is the number of steps for which a context counts as seen; None means the whole text.
    """

    def __init__(
        self,
        bound: ReweightBound,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        memory: int | None = None,
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._hash = bound.vocabulary
        self._skip = bound.repeats == "skip"
        self._memory = memory
        self._last_seen: list[dict[tuple[int, ...], int]] = [{} for _ in range(len(prompt_ids))]
        self._step = 0

    @abstractmethod
    def reweight(
        self, contexts: torch.Tensor, logits: torch.Tensor, candidates: torch.Tensor | None
    ) -> torch.Tensor:
        """Contexts (batch, h) and float32 logits (batch, m) of the candidates to new logits, same shape.

        ``candidates`` (batch, m) are token ids; None means the whole vocabulary.
        """

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Windows (batch, h) and logits (batch, vocab) to marked logits, same shape."""
        logits = scores.float()
        if scores.device.type == "mps":  # Metal knows no float64
            windows, logits = windows.cpu(), logits.cpu()
        candidates = support(logits)
        if candidates is None:
            marked = self.reweight(windows, logits, None)
        else:
            few = self.reweight(windows, logits.gather(1, candidates), candidates)
            marked = torch.full_like(logits, _MINUS_INF).scatter_(1, candidates, few)
        marked = marked.to(scores)
        repeated = self._repeated(windows) if self._skip else []
        if any(repeated):
            marked = torch.where(torch.tensor(repeated, device=scores.device).unsqueeze(1), scores, marked)
        return marked

    def _repeated(self, windows: torch.Tensor) -> list[bool]:
        """For each row whether its context was seen before; remembers it."""
        self._step += 1
        repeated = []
        for seen, window in zip(self._last_seen, windows.tolist(), strict=True):
            last = seen.get(context := tuple(window))
            repeated.append(last is not None and (self._memory is None or self._step - last <= self._memory))
            seen[context] = self._step
        return repeated


def support(scores: torch.Tensor) -> torch.Tensor | None:
    """Ids (batch, m) that include all tokens which have a chance, where these are few; else None."""
    vocab = scores.shape[1]
    # a look at some tokens tells a full distribution from one that was cut
    if vocab < _STRIDE or float(torch.isfinite(scores[:, ::_STRIDE]).float().mean()) > 1.0 / _FEW:
        return None
    width = int(torch.isfinite(scores).sum(dim=1).max())
    return scores.topk(width, dim=1).indices if 0 < width <= vocab // _FEW else None
