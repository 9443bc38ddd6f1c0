"""Gumbel sampling for rows that differ in everything, at the cost of few passes over the vocabulary.

The race of `dewmark.sampling` draws a number for every token. Only the m likeliest carry a mark here, and the
others need no number each: taken together they are a Poisson process of rate R, their total weight, and the
race is lost to its first point, if that comes before the best candidate. The process is drawn by thinning:
points of a process of larger rate, which the maxima of groups of 16 tokens give, each kept with the
probability that its token has of it. So the distribution is exactly that of the full race; where temperature,
top-k, top-p or min-p leave no more than m tokens, the choice is the same too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from dewmark.rows import Warping
from dewmark.sampling import token_uniforms

__all__ = ["Field", "likeliest"]

_LINES = 16
_POINTS = 8  # of the rest's process that are drawn at once
_MINUS_INF = -math.inf


def likeliest(scores: torch.Tensor, m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and ids of the m largest of each row (batch, vocab), both (batch, m), largest first.

    Where a row has fewer finite logits, ids of value -inf may be named twice.
    """
    folded = _folded(scores)
    return _best(folded, folded.amax(dim=1), m, vocab=scores.shape[1])


def _folded(scores: torch.Tensor) -> torch.Tensor:
    """Rows (batch, vocab) as (batch, 16, columns), filled up with -inf: id = line * columns + column."""
    short = -scores.shape[1] % _LINES
    scores = torch.nn.functional.pad(scores, (0, short), value=_MINUS_INF) if short else scores
    return scores.view(len(scores), _LINES, -1)


def _best(
    folded: torch.Tensor, peaks: torch.Tensor, m: int, *, vocab: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The m largest of each folded row, given its columns' maxima (batch, columns).

    They lie in the m columns with the largest maxima: one cheap pass over the vocabulary, and two searches
    in a sixteenth of it (on one CPU core five times faster for m = 32).
    """
    columns = peaks.shape[1]
    if columns < 2 * m:
        values, ids = folded.flatten(1)[:, :vocab].topk(min(m, vocab), dim=-1)
        return values, ids
    chosen = peaks.topk(m, dim=-1, sorted=False).indices.unsqueeze(1).expand(-1, _LINES, -1)
    lines = torch.arange(_LINES, device=peaks.device)[:, None] * columns
    values, at = folded.gather(2, chosen).flatten(1).topk(m, dim=-1)
    return values, (chosen + lines).flatten(1).gather(1, at).clamp_(max=vocab - 1)


class Field:
    """The runners of one step: each row's m likeliest tokens, warped as the row asks, and the rest."""

    def __init__(self, scores: torch.Tensor, warpings: Sequence[Warping], m: int) -> None:
        """``scores`` (batch, vocab) are the host's logits, float32; they are left as they are."""
        device = scores.device
        settings = [(w.temperature, w.top_k or math.inf, w.top_p, w.min_p) for w in warpings]
        temperature, top_k, top_p, min_p = (
            torch.tensor(settings, dtype=torch.float32).to(device).unsqueeze(-1).unbind(1)
        )
        self._folded = _folded(scores / temperature)
        self._scores = self._folded.flatten(1)
        self._peaks = self._folded.amax(dim=1)
        self.values, self.candidates = _best(self._folded, self._peaks, m, vocab=scores.shape[1])
        self.closed = torch.tensor([w.filters for w in warpings])
        """Rows (batch,) that chose from their candidates alone."""
        if bool(self.closed.any()):
            self._filter(warpings, top_k, top_p, min_p)

    def _filter(
        self, warpings: Sequence[Warping], top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
    ) -> None:
        """Take out what top-k, top-p and min-p do; rows with more than m survivors go a longer way."""
        values = self.values
        shares = (values - values[:, :1]).exp()
        ranks = torch.arange(values.shape[1], device=values.device)
        kept = (ranks < top_k) & (shares >= min_p)
        total = (shares * kept).sum(dim=1, keepdim=True)
        # where no candidate goes, tokens beyond them may stay: top-p then counts the whole row
        beyond = kept[:, -1:] & (torch.isfinite(top_k) | (min_p > 0.0))
        whole = (kept[:, -1:] & ~beyond & (top_p < 1.0)).squeeze(1)
        if bool(whole.any()):
            total[whole] = (self._scores[whole] - values[whole, :1]).exp().sum(dim=1, keepdim=True)
        before = shares.cumsum(dim=1) - shares
        kept &= (before < top_p * total) | (top_p >= 1.0) | (ranks == 0)
        closed = self.closed.to(values.device)
        self.values = values.masked_fill(~kept & closed.unsqueeze(1), _MINUS_INF)
        for row in (closed & (beyond.squeeze(1) | kept[:, -1])).nonzero().flatten().tolist():
            self.closed[row] = False
            self._scores[row] = warpings[row].filtered(self._scores[row : row + 1])[0]
            self._peaks[row] = self._folded[row].amax(dim=0)
            self.values[row] = self._scores[row, self.candidates[row]]

    def winners(self, numbers: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """The winners (batch, 1) given the candidates' Exp(1) numbers (batch, m), float64.

        ``states`` (batch, 1) give the rest its numbers. Rows without any usable logit win nothing: -1.
        """
        times = numbers / (self.values - self.values[:, :1]).double().exp()
        first, at = times.min(dim=1, keepdim=True)
        chosen = self.candidates.gather(1, at)
        rows = (~self.closed).nonzero().flatten().to(first.device)
        if len(rows):
            chosen[rows] = self._rest(rows, first[rows], chosen[rows], states[rows])
        return chosen.masked_fill_(~torch.isfinite(first), -1)

    def _rest(
        self, rows: torch.Tensor, until: torch.Tensor, chosen: torch.Tensor, states: torch.Tensor
    ) -> torch.Tensor:
        """The first token of the rest before the times ``until``, else the one chosen; all (rows, 1)."""
        vocab, columns = self._scores.shape[1], self._peaks.shape[1]
        candidates = self.candidates[rows]
        top, least = self.values[rows, :1], self.values[rows, -1:]  # no token of the rest weighs more
        most = self._peaks[rows].minimum(least).sub_(top).exp_().double()
        sums = most.cumsum(dim=1)
        total = sums[:, -1:]
        numbers = torch.arange(3 * _POINTS, device=rows.device)
        clock, point = torch.zeros_like(until), 0
        while bool((clock < until).any()):  # all rows go along until the last is done: they are few numbers
            draws = token_uniforms(states, vocab + 3 * point + numbers).view(-1, _POINTS, 3)
            gaps = -draws[..., 0].log() / (_LINES * total)
            times = torch.cat([clock, gaps], dim=1).cumsum(dim=1)[:, 1:]
            column = torch.searchsorted(sums, draws[..., 1] * total).clamp_(max=columns - 1)
            place = draws[..., 2] * _LINES
            token = place.long() * columns + column
            weight = (self._scores[rows.unsqueeze(1), token] - top).double().exp()
            kept = (times < until) & (place.frac() * most.gather(1, column) < weight)
            kept &= ~(candidates.unsqueeze(1) == token.unsqueeze(2)).any(dim=2)
            first = torch.where(kept, numbers[:_POINTS], _POINTS).amin(dim=1, keepdim=True)
            found = first < _POINTS
            chosen = torch.where(found, token.gather(1, first.clamp(max=_POINTS - 1)), chosen)
            clock = times[:, -1:].masked_fill(found, math.inf)
            point += _POINTS
        return chosen
