"""How a host chooses one next token: n-gram blocking, then warping, marking and a race.

Boundary: pure functions of logits (batch, vocab) and the rows' own random numbers; no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dewmark.hosts.base import Decoding
from dewmark.sampling import race, warp

__all__ = ["NGramBlocker", "choose"]

_MINUS_INF = -float("inf")

Mark = Callable[[torch.Tensor], torch.Tensor]


def choose(
    scores: torch.Tensor,
    exponentials: torch.Tensor,
    decoding: Decoding,
    mark: Mark | None = None,
    *,
    final: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick one id per row from logits (batch, vocab), with Exp(1) numbers of the same shape.

    ``mark`` changes the logits: before temperature, top-k and top-p, or after them if ``final``. Returns ids
    (batch,) and a flag (batch,) that is False where the logits held NaN or +inf, or left no token to choose.
    """
    if mark is not None and not final:
        scores = mark(scores)
    if decoding.temperature == 0.0:
        best, ids = scores.max(dim=-1)
        return ids, torch.isfinite(best)
    scores = warp(scores, temperature=decoding.temperature, top_k=decoding.top_k, top_p=decoding.top_p)
    if mark is not None and final:
        scores = mark(scores)
    return race(scores.to(exponentials.device), exponentials)


class NGramBlocker:
    """Forbids, row by row, each token that would complete an n-gram which the row already holds.

    Keeps a table from every (n-1)-gram to the tokens that followed it, so a step costs the same however
    long the text is. Padding is no part of a row.
    """

    def __init__(self, prompts: Sequence[Sequence[int]], n: int) -> None:
        self._n = n
        self._tails: list[tuple[int, ...]] = [() for _ in prompts]
        self._followers: list[dict[tuple[int, ...], list[int]]] = [{} for _ in prompts]
        for row, prompt in enumerate(prompts):
            for token in prompt:
                self._append(row, token)

    def append(self, tokens: Sequence[int]) -> None:
        """Add one token to each row."""
        for row, token in enumerate(tokens):
            self._append(row, token)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows alone."""
        self._tails = [self._tails[row] for row in rows]
        self._followers = [self._followers[row] for row in rows]

    def block(self, scores: torch.Tensor) -> torch.Tensor:
        """Set the forbidden tokens' logits (batch, vocab) to -inf, in place."""
        pairs = [
            (row, token)
            for row, (tail, followers) in enumerate(zip(self._tails, self._followers, strict=True))
            for token in followers.get(tail, ())
            if token < scores.shape[-1]
        ]
        if pairs:
            rows, tokens = torch.tensor(pairs, device=scores.device).unbind(dim=1)
            scores[rows, tokens] = _MINUS_INF
        return scores

    def _append(self, row: int, token: int) -> None:
        tail = self._tails[row]
        if len(tail) == self._n - 1:
            self._followers[row].setdefault(tail, []).append(token)
            tail = (*tail, token)[1:]
        else:
            tail = (*tail, token)
        self._tails[row] = tail
