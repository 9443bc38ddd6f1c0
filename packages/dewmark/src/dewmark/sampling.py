"""The mathematics of drawing a token: random numbers, warping and the race.

**The race.** Token i, of probability p_i, wins if E_i / p_i is smallest, where every E_i is an independent
Exp(1) number (the Gumbel-max trick without the outer logarithm); P(i wins) = p_i exactly. E_i depends only on
the row's seed, the step and i, so a row draws the same numbers in every batch and on every device. The race
is also robust to rounding: the winner changes only where two tokens nearly tie.

Boundary: functions of logits (batch, vocab) and of the rows' own random numbers. No session, no scheme;
`dewmark.mark` makes them steps of texts.
"""

from __future__ import annotations

import functools
import hashlib
import math
import secrets
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dewmark.decoding import Decoding
from dewmark.errors import NumericalError, VocabularyError
from dewmark.splitmix import GOLDEN, MIX_1, MIX_2
from dewmark.types import Seeds

__all__ = [
    "Choice",
    "RandomStreams",
    "check_logits",
    "draft_seed",
    "filter_logits",
    "fresh_seeds",
    "left_padding",
    "race",
    "warp",
]

Choice = tuple[Tensor, Tensor]
"""Chosen ids (batch,), and a flag (batch,) that is False where a row had no usable logits."""

_MINUS_INF = -math.inf
_STEPS_AT_ONCE = 256
_GOLDEN, _MIX_1, _MIX_2 = (value - (1 << 64) for value in (GOLDEN, MIX_1, MIX_2))  # as signed integers
# Shortcuts on a CPU; docs/log/speed.md says what each saves of a whole text
_FEW = 1024  # the likeliest tokens, among which is mostly all that filters leave
_SMALL_TOP_K = 128  # whose tokens are looked for directly: twice as many, and
_TIES = 24  # these, since tokens that tie with the k-th stay


# Random numbers


def fresh_seeds(rows: int, seeds: Seeds) -> list[int]:
    """The given seeds, one per row, or new ones from the operating system."""
    return list(seeds) if seeds is not None else [secrets.randbits(63) for _ in range(rows)]


def draft_seed(seed: int, draft: int) -> int:
    """The seed of a text's draft; the first draft has the text's own."""
    digest = hashlib.blake2b(f"{seed} {draft}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 if draft else seed


class RandomStreams:
    """Random numbers for each row, step and token.

    A row's seed starts a Philox stream, which yields one 64-bit state per step; SplitMix64 turns the state
    into one number per token. Integer arithmetic modulo 2^64 gives the same numbers on every device.
    ``purpose`` separates the streams that different users derive from one seed. ``skip`` says how many steps
    of each row lie before the first.
    """

    def __init__(
        self, seeds: Sequence[int], *, device: torch.device, purpose: int = 0, skip: Sequence[int] = ()
    ) -> None:
        # Metal has no float64, so there the race runs on the CPU.
        self.device = torch.device("cpu") if device.type == "mps" else device
        self._sources = [np.random.Philox(seed, counter=[0, 0, 0, purpose]) for seed in seeds]
        for source, steps in zip(self._sources, skip, strict=False):
            source.random_raw(steps, output=False)
        self._states = torch.zeros((len(seeds), 0), dtype=torch.int64, device=self.device)

    def states(self, step: int) -> Tensor:
        """The rows' states at one step, (batch, 1) int64, for `token_uniforms`."""
        while step >= self._states.shape[1]:
            more = np.stack([source.random_raw(_STEPS_AT_ONCE).view(np.int64) for source in self._sources])
            self._states = torch.cat((self._states, torch.from_numpy(more).to(self.device)), dim=1)
        return self._states[:, step, None]

    def uniforms(self, step: int, vocab: int) -> Tensor:
        """Uniform numbers of one step, (batch, vocab) float64, strictly inside (0, 1)."""
        return token_uniforms(self.states(step), torch.arange(vocab, device=self.device))

    def exponentials(self, step: int, vocab: int) -> Tensor:
        """Exp(1) numbers of one step, (batch, vocab) float64, never 0 or infinite."""
        return self.uniforms(step, vocab).log_().neg_()


def token_uniforms(states: Tensor, tokens: Tensor) -> Tensor:
    """Uniform numbers of tokens (…, m) under states (batch, 1): (batch, m) float64, inside (0, 1)."""
    return shifted(splitmix(states + tokens * _GOLDEN), 12).to(torch.float64).add_(0.5).mul_(2.0**-52)


def splitmix(codes: Tensor) -> Tensor:
    """A 64-bit hash of each code, same shape (`dewmark.splitmix.mixed`)."""
    z = codes + _GOLDEN
    z = (z ^ shifted(z, 30)).mul_(_MIX_1)
    z = (z ^ shifted(z, 27)).mul_(_MIX_2)
    return z.bitwise_xor_(shifted(z, 31))


def shifted(z: Tensor, bits: int) -> Tensor:
    """Unsigned right shift; torch's own repeats the sign bit."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


# Warping and the race


def warp(scores: Tensor, decoding: Decoding) -> Tensor:
    """Logits (batch, vocab) after temperature, min-p, top-k and top-p, in this order."""
    return filter_logits(scores / decoding.temperature, decoding)


def filter_logits(scores: Tensor, decoding: Decoding) -> Tensor:
    """Logits (batch, vocab), already divided by the temperature, after min-p, top-k and top-p."""
    if decoding.min_p > 0.0:
        below_top = scores - scores.amax(dim=-1, keepdim=True)
        scores = scores.masked_fill(below_top.exp() < decoding.min_p, _MINUS_INF)
    if decoding.top_k > 0:
        least = scores.topk(min(decoding.top_k, scores.shape[-1]), dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < least, _MINUS_INF)  # ties with the k-th largest stay
    if decoding.top_p < 1.0:
        scores = _keep_top_p(scores, decoding.top_p)
    return scores


def _keep_top_p(scores: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of likeliest tokens whose probability reaches ``top_p``, and ties with the last.

    They are nearly always among a few hundred, so only rows where they are not are sorted as a whole.
    """
    total = scores.logsumexp(dim=-1, keepdim=True)
    ordered, _ = likeliest(scores, _FEW)
    least = _least_kept(ordered, total, top_p)
    wide = (ordered[:, -1:] >= least).squeeze(1)  # more may belong to it
    if ordered.shape[1] < scores.shape[1] and bool(wide.any()):
        rows = wide.nonzero().squeeze(1)
        whole = scores[rows].sort(dim=-1, descending=True).values
        least[rows] = _least_kept(whole, total[rows], top_p)
    return scores.masked_fill(scores < least, _MINUS_INF)


def _least_kept(ordered: Tensor, total: Tensor, top_p: float) -> Tensor:
    """The smallest logit (batch, 1) that top-p keeps, of each row's largest ones in order (batch, m).

    ``total`` (batch, 1) is the log-sum-exp of the whole row.
    """
    mass = (ordered - total).exp()
    kept = mass.cumsum(dim=-1) - mass < top_p  # the likelier tokens do not reach it yet
    number = kept.sum(dim=-1, keepdim=True).clamp(min=1)  # at least one, where a tiny top_p is 0 in float32
    return ordered.gather(1, number - 1)


def race(scores: Tensor, exponentials: Tensor) -> Choice:
    """Sample one id per row from the softmax of logits (batch, vocab), with Exp(1) numbers of that shape.

    A row is unusable if its logits contain NaN or +inf, or leave no token to choose. Nothing here waits for
    the device.
    """
    shares = (scores - scores.amax(dim=-1, keepdim=True)).exp()  # the softmax up to a factor
    best, ids = (shares / exponentials).max(dim=-1)
    return ids, torch.isfinite(best)


def race_of_few(scores: Tensor, states: Tensor) -> Choice | None:
    """`race` among the likeliest tokens of filtered logits (batch, vocab); None if more than those are left.

    Each token has the number that it has in a race of all, under states (batch, 1).
    """
    return _race_among(*likeliest(scores, _FEW), scores.shape[1], states)


def race_of_top_k(scores: Tensor, decoding: Decoding, states: Tensor) -> Choice | None:
    """`race` among those that a small top-k leaves of logits (batch, vocab), without warping the others.

    None if there is no such top-k, or if too many tokens tie with the k-th.
    """
    if not 0 < decoding.top_k <= _SMALL_TOP_K:
        return None
    values, ids = likeliest(scores, 2 * decoding.top_k + _TIES)
    return _race_among(warp(values, decoding), ids, scores.shape[1], states)


def _race_among(values: Tensor, ids: Tensor, vocab: int, states: Tensor) -> Choice | None:
    """The race of the m likeliest tokens, ``values`` and ``ids`` (batch, m); None if others may be left."""
    if ids.shape[1] < vocab and bool((values[:, -1] > _MINUS_INF).any()):
        return None
    at, sound = race(values, token_uniforms(states, ids).log_().neg_())
    return ids.gather(1, at.unsqueeze(1)).squeeze(1), sound


def likeliest(scores: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Values and ids of the m largest entries of each row (batch, vocab), both (batch, m), largest first."""
    values, ids = scores.topk(min(m, scores.shape[1]), dim=-1)
    return values, ids


class RowOptions(NamedTuple):
    """Temperature, top-k (infinite for none), top-p and min-p of each row, (rows, 4) float32.

    ``filters`` (rows,), on the CPU, says which rows have a filter.
    """

    values: Tensor
    filters: Tensor


def decoding_options(decodings: Sequence[Decoding], device: torch.device) -> RowOptions:
    """The options of rows, for a device."""
    first, count = decodings[0], len(decodings)
    if all(decoding is first for decoding in decodings):
        return _options((first,), count, device)
    return _options(tuple(decodings), 1, device)


@functools.lru_cache(maxsize=256)
def _options(decodings: tuple[Decoding, ...], times: int, device: torch.device) -> RowOptions:
    rows = [(d.temperature, d.top_k or math.inf, d.top_p, d.min_p) for d in decodings] * times
    with torch.inference_mode(False):  # kept for later calls, in any mode
        values = torch.tensor(rows, dtype=torch.float32).to(device, non_blocking=True)
        return RowOptions(values, torch.tensor([d.filters for d in decodings] * times))


class CandidateRace:
    """One step's race, in which the caller supplies the numbers of each row's m likeliest tokens.

    Rows may differ in temperature, top-k, top-p and min-p. A row whose filters leave candidates only is
    *closed*: tokens beyond its m candidates are ignored. In an open row all other tokens race too, with
    fresh numbers.

    ``candidates`` (batch, m) are ids, ``values`` (batch, m) their logits after temperature and filters.
    """

    def __init__(self, scores: Tensor, decodings: Sequence[Decoding], m: int) -> None:
        """``scores`` (batch, vocab) float32 are the host's logits, which stay as they are."""
        options = decoding_options(decodings, scores.device)
        temperature, top_k, top_p, min_p = options.values.unsqueeze(-1).unbind(1)
        self._scores = scores / temperature
        self.values, self.candidates = likeliest(self._scores, m)
        self._closed = options.filters.clone()
        if bool(self._closed.any()):
            self._filter(decodings, top_k, top_p, min_p)

    def _filter(self, decodings: Sequence[Decoding], top_k: Tensor, top_p: Tensor, min_p: Tensor) -> None:
        """Filter within the candidates; rows in which more may survive are filtered as a whole."""
        values = self.values
        shares = (values - values[:, :1]).exp()
        ranks = torch.arange(values.shape[1], device=values.device)
        kept = (ranks < top_k) & (shares >= min_p)
        total = (shares * kept).sum(dim=1, keepdim=True)
        # if every candidate is kept, tokens beyond them may survive, and top-p counts the whole row
        beyond = kept[:, -1:] & (torch.isfinite(top_k) | (min_p > 0.0))
        whole = (kept[:, -1:] & ~beyond & (top_p < 1.0)).squeeze(1)
        if bool(whole.any()):
            total[whole] = (self._scores[whole] - values[whole, :1]).exp().sum(dim=1, keepdim=True)
        before = shares.cumsum(dim=1) - shares
        kept &= (before < top_p * total) | (top_p >= 1.0) | (ranks == 0)
        closed = self._closed.to(values.device)
        self.values = values.masked_fill(~kept & closed.unsqueeze(1), _MINUS_INF)
        for row in (closed & (beyond.squeeze(1) | kept[:, -1])).nonzero().flatten().tolist():
            self._closed[row] = False
            self._scores[row] = filter_logits(self._scores[row : row + 1], decodings[row])[0]
            self.values[row] = self._scores[row, self.candidates[row]]

    def narrow(self) -> None:
        """Drop the candidates that filters have removed in every row; waits for the device."""
        if bool(self._closed.all()):
            left = max(int(torch.isfinite(self.values).sum(dim=1).max()), 1)
            self.values, self.candidates = self.values[:, :left], self.candidates[:, :left]

    @property
    def log_totals(self) -> Tensor:
        """Log-sum-exp of each row's logits after temperature and filters, (batch, 1)."""
        if bool(self._closed.all()):
            return self.values.logsumexp(dim=-1, keepdim=True)
        totals = self._scores.logsumexp(dim=-1, keepdim=True)
        if not bool(self._closed.any()):
            return totals
        closed = self._closed.to(totals.device).unsqueeze(1)
        return torch.where(closed, self.values.logsumexp(dim=-1, keepdim=True), totals)

    def uniforms(self, states: Tensor) -> Tensor:
        """The candidates' own uniform numbers (batch, m) float64 under states (batch, 1).

        Where other tokens race too, all numbers are drawn together, and kept for them.
        """
        if bool(self._closed.all()):
            return token_uniforms(states, self.candidates)
        self._uniforms = token_uniforms(states, torch.arange(self._scores.shape[1], device=states.device))
        return self._uniforms.gather(1, self.candidates)

    def winners(self, exponentials: Tensor) -> Choice:
        """The winners, given the candidates' numbers (batch, m) float64, Exp(1) over keys and seeds.

        All other tokens have the numbers that `uniforms` drew.
        """
        top = self.values[:, :1].double()
        times = exponentials / (self.values.double() - top).exp()
        first, at = times.min(dim=1, keepdim=True)
        chosen = self.candidates.gather(1, at)
        open_rows = (~self._closed).nonzero().flatten().to(first.device)
        if len(open_rows):
            every = (self._scores, self.candidates, top, self._uniforms, first, chosen)
            mine = every if len(open_rows) == len(first) else [each[open_rows] for each in every]
            first[open_rows], chosen[open_rows] = _race_others(*mine)
        return chosen.squeeze(1), torch.isfinite(first).squeeze(1)


def _race_others(
    scores: Tensor, candidates: Tensor, top: Tensor, uniforms: Tensor, first: Tensor, chosen: Tensor
) -> tuple[Tensor, Tensor]:
    """Times and ids (rows, 1) of the winners after all tokens but the candidates have raced too.

    −log U is at least 1 − U, so a token of share s can only be first if 1 − U is at most s times the time
    to beat: one token in a row or so, and only those need logarithms.
    """
    scores = scores.scatter(1, candidates, _MINUS_INF)
    reach = (scores - top.float()).exp_().mul_(first * (1.0 + 1e-4))  # more than float32's rounding
    rows, ids = torch.nonzero((1.0 - uniforms).float() <= reach, as_tuple=True)
    times = -uniforms[rows, ids].log() / (scores[rows, ids].double() - top[rows, 0]).exp()
    best = first.squeeze(1).scatter_reduce(0, rows, times, "amin")
    won = times == best[rows]
    won_ids = chosen.squeeze(1).scatter(0, rows[won], ids[won])
    return best.unsqueeze(1), won_ids.unsqueeze(1)


# Logits of hosts


def one_hot_logits(scores: Tensor, choice: Choice) -> Tensor:
    """Logits (batch, vocab) in which only the chosen token is finite, so that nothing later can change it.

    A row without usable logits is returned as it came, for the host to report.
    """
    ids, sound = (part.to(scores.device) for part in choice)
    only = torch.full_like(scores, _MINUS_INF).scatter_(1, ids.unsqueeze(1), 0.0)
    if scores.device.type == "cpu" and bool(sound.all()):  # elsewhere looking would be waiting
        return only
    return torch.where(sound.unsqueeze(1), only, scores)


def check_logits(scores: Tensor, vocab_size: int) -> None:
    """Raise if logits (batch, vocab) do not match the scheme's vocabulary, or contain NaN (CPU only)."""
    if scores.shape[1] != vocab_size:
        raise VocabularyError(
            f"the host gives {scores.shape[1]} logits, but the watermark was made for {vocab_size}"
        )
    # the maximum is NaN if any entry is, at a tenth of the cost of testing every entry
    if scores.device.type == "cpu" and scores.numel() and bool(torch.isnan(scores.max())):
        raise NumericalError("the host's logits contain NaN: load it in float32 or check its weights")


def left_padding(prompt_ids: Tensor, attention_mask: Tensor | None, *, pad_id: int | None) -> Tensor:
    """How many ids of each row (batch, length) are padding on the left: (batch, 1).

    Without an attention mask, a leading run of ``pad_id`` counts as padding.
    """
    if not prompt_ids.shape[1]:
        return prompt_ids.new_zeros((len(prompt_ids), 1))
    if attention_mask is None:
        attention_mask = (prompt_ids != pad_id) if pad_id is not None else torch.ones_like(prompt_ids)
    # argmax finds the first True, which is the length of the leading run of padding
    return attention_mask.to(torch.int8).argmax(dim=1, keepdim=True)
