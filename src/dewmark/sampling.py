"""Randomness and warping of next-token distributions, the same for hosts, processors and samplers.

Sampling is an exponential race: token i, of probability p_i, wins if E_i / p_i is least, with E_i ~ Exp(1) of
its own (the Gumbel-max trick, without the outer logarithm). P(i wins) = p_i exactly. E_i depends on the
row's seed, the step and i alone, so a row draws the same numbers in every batch and on every device. The
race is also what rounding disturbs least: a winner changes only where two tokens nearly tie. Inverting the
cumulative distribution, where each rounding shifts all later boundaries, changed 14 of 4,800 tokens between
a row alone and the same row in a batch of 8 (SmolLM2-135M, float32); the race changed none.

Boundary: pure functions of logits (batch, vocab) and the rows' own random numbers; no model, no scheme.

Marking the rows of a batch that changes from step to step, as serving engines batch.

An engine's rows come and go, stand at different steps, and move about in the batch. So a row's state belongs
to the row: a `Row` follows one text through the engine's own list of what was written, and `Rows.mark`
takes whichever rows the batch holds now, in their order. A row that an engine drops and takes up again
(preemption) is opened anew with what it has written: it reads that first, and goes on as if it had stayed.

`SessionRows` serves every scheme, with one session a row; a scheme that can mark rows together does better
(`dewmark.dew.marking`).

Gumbel sampling for rows that differ in everything, at the cost of few passes over the vocabulary.

The race of `dewmark.sampling` draws a number for every token. Only the m likeliest carry a mark here, and the
others need no number each: taken together they are a Poisson process of rate R, their total weight, and the
race is lost to its first point, if that comes before the best candidate. The process is drawn by thinning:
points of a process of larger rate, which the maxima of groups of 16 tokens give, each kept with the
probability that its token has of it. So the distribution is exactly that of the full race; where temperature,
top-k, top-p or min-p leave no more than m tokens, the choice is the same too.
"""

from __future__ import annotations

import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from dewmark.scheme import BoundScheme, Session

__all__ = [
    "Choosing",
    "Field",
    "RandomStreams",
    "Row",
    "Rows",
    "SessionRows",
    "filter_logits",
    "keep_top_k",
    "keep_top_p",
    "likeliest",
    "race",
    "token_uniforms",
    "warp",
]

Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_MINUS_INF = -float("inf")

_STEPS_AT_ONCE = 256

_GOLDEN, _MIX_1, _MIX_2 = (
    value - (1 << 64) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def drawn_seeds(rows: int, seeds: Sequence[int] | None) -> list[int]:
    """The seeds given, one per row, or fresh ones from the operating system."""
    return list(seeds) if seeds is not None else [secrets.randbits(63) for _ in range(rows)]


class RandomStreams:
    """Exponential random numbers for each row, step and token.

    A row's seed starts a Philox stream, which gives one 64-bit state per step; from there SplitMix64 gives
    one number per token. Integer arithmetic modulo 2^64 is the same on every device. ``purpose`` sets apart
    the streams that one seed gives to different users of it.
    """

    def __init__(self, seeds: Sequence[int], *, device: torch.device, purpose: int = 0) -> None:
        # Metal knows no float64: there the race is run on the CPU.
        self.device = torch.device("cpu") if device.type == "mps" else device
        self._sources = [np.random.Philox(seed, counter=[0, 0, 0, purpose]) for seed in seeds]
        self._states = torch.zeros((len(seeds), 0), dtype=torch.int64, device=self.device)

    def states(self, step: int) -> torch.Tensor:
        """The rows' states in one step, (batch, 1) int64, for `token_uniforms`."""
        while step >= self._states.shape[1]:
            more = np.stack([source.random_raw(_STEPS_AT_ONCE).view(np.int64) for source in self._sources])
            self._states = torch.cat((self._states, torch.from_numpy(more).to(self.device)), dim=1)
        return self._states[:, step, None]

    def uniforms(self, step: int, vocab: int) -> torch.Tensor:
        """Numbers of one step, (batch, vocab) float64, strictly within (0, 1)."""
        return token_uniforms(self.states(step), torch.arange(vocab, device=self.device))

    def exponentials(self, step: int, vocab: int) -> torch.Tensor:
        """Exp(1) numbers of one step, (batch, vocab) float64, none of them 0 or infinite."""
        return self.uniforms(step, vocab).log_().neg_()


def token_uniforms(states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The numbers of tokens (…, m) in steps of these states (batch, 1): (batch, m) float64, in (0, 1)."""
    z = states + (tokens + 1) * _GOLDEN
    z = (z ^ _shift(z, 30)).mul_(_MIX_1)
    z = (z ^ _shift(z, 27)).mul_(_MIX_2)
    z ^= _shift(z, 31)
    return _shift(z, 12).to(torch.float64).add_(0.5).mul_(2.0**-52)


def _shift(z: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right as if unsigned: torch repeats the sign."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def race(scores: torch.Tensor, exponentials: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one id per row from the softmax of logits (batch, vocab), with Exp(1) numbers of that shape.

    Returns ids (batch,) and a flag (batch,) that is False where the logits held NaN or +inf, or left no
    token to choose. Nothing here waits for the device.
    """
    shares = (scores - scores.amax(dim=-1, keepdim=True)).exp()  # the softmax up to a factor
    best, ids = (shares / exponentials).max(dim=-1)
    return ids, torch.isfinite(best)


def warp(scores: torch.Tensor, decoding: Decoding) -> torch.Tensor:
    """Logits (batch, vocab) after temperature, min-p, top-k and top-p, in this order."""
    return filter_logits(scores / decoding.temperature, decoding)


def filter_logits(scores: torch.Tensor, decoding: Decoding) -> torch.Tensor:
    """Logits (batch, vocab), already divided by the temperature, after min-p, top-k and top-p."""
    if decoding.min_p > 0.0:
        below_top = scores - scores.amax(dim=-1, keepdim=True)
        scores = scores.masked_fill(below_top.exp() < decoding.min_p, _MINUS_INF)
    if decoding.top_k > 0:
        scores = keep_top_k(scores, decoding.top_k)
    if decoding.top_p < 1.0:
        scores = keep_top_p(scores, decoding.top_p)
    return scores


def keep_top_k(scores: torch.Tensor, top_k: int) -> torch.Tensor:
    """Logits (batch, vocab) with all below the k-th largest set to -inf; ties with it stay."""
    least = scores.topk(min(top_k, scores.shape[-1]), dim=-1).values[:, -1:]
    return scores.masked_fill(scores < least, _MINUS_INF)


def keep_top_p(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Logits (batch, vocab) cut to the smallest set of likeliest tokens whose mass reaches ``top_p``."""
    ordered, order = scores.sort(dim=-1, descending=True)
    mass = ordered.softmax(dim=-1)
    beyond = mass.cumsum(dim=-1) - mass >= top_p  # what the likelier tokens hold already
    beyond[:, 0] = False  # the likeliest stays, also where a tiny top_p is 0 in float32
    drop = torch.zeros_like(scores, dtype=torch.bool).scatter(1, order, beyond)
    return scores.masked_fill(drop, _MINUS_INF)


class Choosing:
    """Warps, marks and samples: what it returns has one finite logit per row, the chosen token's."""

    def __init__(
        self,
        session: Processor,
        *,
        rows: int,
        seeds: Sequence[int] | None,
        decoding: Decoding,
    ) -> None:
        decoding.check_samples()
        self._session = session
        self._rows = rows
        self._seeds = drawn_seeds(rows, seeds)
        self._decoding = decoding
        self._noise: RandomStreams | None = None
        self._step = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) to logits with one finite entry per row."""
        if len(input_ids) != self._rows:
            raise ConfigError(
                f"the processor was made for {self._rows} prompts and is asked for {len(input_ids)} rows: "
                "each row draws its own tokens, so beam search is not possible (use num_beams=1), and "
                "num_return_sequences needs prompts that are repeated as often"
            )
        if self._noise is None:
            self._noise = RandomStreams(self._seeds, device=scores.device)
        marked = self._session(input_ids, warp(scores.float(), self._decoding)).to(self._noise.device)
        chosen, _ = race(marked, self._noise.exponentials(self._step, scores.shape[1]))
        self._step += 1
        only = torch.full_like(scores, _MINUS_INF)
        return only.scatter(1, chosen.to(scores.device).unsqueeze(1), 0.0)


class Row:
    """One text: the ids it began with, those written since (the engine extends that list), and its seed."""

    def __init__(
        self, prompt: Sequence[int], written: Sequence[int], *, seed: int, decoding: Decoding
    ) -> None:
        decoding.check_samples()
        self.prompt = prompt
        self.written = written
        self.seed = seed
        self.decoding = decoding


class Rows(ABC):
    """Marks for one bound scheme on one device."""

    @abstractmethod
    def open(self, prompt: Sequence[int], written: Sequence[int], *, seed: int, decoding: Decoding) -> Row:
        """Begin to follow a text; ``written`` may hold tokens already, and grows under the engine's hand."""

    @abstractmethod
    def mark(self, rows: Sequence[Row], scores: torch.Tensor) -> torch.Tensor:
        """The host's logits (rows, vocab) float32 for the next token of each row to marked ones, same shape.

        A scheme that needs the final distribution warps by each row's own settings, draws by its seed, and
        leaves only the chosen token finite.
        """


class _SessionRow(Row):
    """Has a session, called once for every step of the text."""

    session: Session | None = None
    steps = 0
    noise: RandomStreams | None = None


class SessionRows(Rows):
    """A session for every row: right for any scheme, and as slow as so many calls."""

    def __init__(self, bound: BoundScheme, device: torch.device) -> None:
        self._bound = bound
        self._device = device

    def open(
        self, prompt: Sequence[int], written: Sequence[int], *, seed: int, decoding: Decoding
    ) -> _SessionRow:
        """Begin to follow a text."""
        return _SessionRow(prompt, written, seed=seed, decoding=decoding)

    def mark(self, rows: Sequence[Row], scores: torch.Tensor) -> torch.Tensor:
        """Logits (rows, vocab) to marked ones, same shape."""
        marked = []
        for i, row in enumerate(rows):
            assert isinstance(row, _SessionRow)
            marked.append(self._mark(row, scores[i : i + 1]))
        return torch.cat(marked)

    def _mark(self, row: _SessionRow, scores: torch.Tensor) -> torch.Tensor:
        step, start = len(row.written), len(row.prompt)
        ids = torch.tensor([*row.prompt, *row.written], dtype=torch.long, device=self._device).unsqueeze(0)
        session = row.session
        if session is None or step < row.steps:  # a step done again: what came of it was thrown away
            prompt = ids[:, :start]
            session = self._bound.session(prompt, torch.ones_like(prompt), seeds=[row.seed])
            row.session, row.steps = session, 0
        while row.steps < step:  # steps done elsewhere: what a session remembers depends on the ids alone
            session(ids[:, : start + row.steps], torch.zeros_like(scores))
            row.steps += 1
        row.steps += 1
        if not self._bound.needs.final:
            return session(ids, scores)
        if row.noise is None:
            row.noise = RandomStreams([row.seed], device=self._device)
        final = session(ids, warp(scores, row.decoding)).to(row.noise.device)
        chosen, sound = race(final, row.noise.exponentials(step, scores.shape[1]))
        only = torch.full_like(scores, _MINUS_INF).scatter_(1, chosen.to(scores.device).unsqueeze(1), 0.0)
        # a row that leaves nothing to choose goes back as it came: the engine says so
        return torch.where(sound.to(scores.device).unsqueeze(1), only, scores)


_LINES = 16

_POINTS = 8  # of the rest's process that are drawn at once

_MINUS_INF_DRAWS = -math.inf


def likeliest(scores: torch.Tensor, m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and ids of the m largest of each row (batch, vocab), both (batch, m), largest first.

    Where a row has fewer finite logits, ids of value -inf may be named twice.
    """
    folded = _folded(scores)
    return _best(folded, folded.amax(dim=1), m, vocab=scores.shape[1])


def _folded(scores: torch.Tensor) -> torch.Tensor:
    """Rows (batch, vocab) as (batch, 16, columns), filled up with -inf: id = line * columns + column."""
    short = -scores.shape[1] % _LINES
    scores = torch.nn.functional.pad(scores, (0, short), value=_MINUS_INF_DRAWS) if short else scores
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

    def __init__(self, scores: torch.Tensor, decodings: Sequence[Decoding], m: int) -> None:
        """``scores`` (batch, vocab) are the host's logits, float32; they are left as they are."""
        device = scores.device
        settings = [(d.temperature, d.top_k or math.inf, d.top_p, d.min_p) for d in decodings]
        temperature, top_k, top_p, min_p = (
            torch.tensor(settings, dtype=torch.float32).to(device).unsqueeze(-1).unbind(1)
        )
        self._folded = _folded(scores / temperature)
        self._scores = self._folded.flatten(1)
        self._peaks = self._folded.amax(dim=1)
        self.values, self.candidates = _best(self._folded, self._peaks, m, vocab=scores.shape[1])
        self.closed = torch.tensor([d.filters for d in decodings])
        """Rows (batch,) that chose from their candidates alone."""
        if bool(self.closed.any()):
            self._filter(decodings, top_k, top_p, min_p)

    def _filter(
        self, decodings: Sequence[Decoding], top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
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
        self.values = values.masked_fill(~kept & closed.unsqueeze(1), _MINUS_INF_DRAWS)
        for row in (closed & (beyond.squeeze(1) | kept[:, -1])).nonzero().flatten().tolist():
            self.closed[row] = False
            self._scores[row] = filter_logits(self._scores[row : row + 1], decodings[row])[0]
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
