"""Randomness and warping of next-token distributions, the same for hosts, processors and samplers.

Sampling is an exponential race: token i, of probability p_i, wins if E_i / p_i is least, with E_i ~ Exp(1) of
its own (the Gumbel-max trick, without the outer logarithm). P(i wins) = p_i exactly. E_i depends on the
row's seed, the step and i alone, so a row draws the same numbers in every batch and on every device. The
race is also what rounding disturbs least: a winner changes only where two tokens nearly tie. Inverting the
cumulative distribution, where each rounding shifts all later boundaries, changed 14 of 4,800 tokens between
a row alone and the same row in a batch of 8 (SmolLM2-135M, float32); the race changed none.

Boundary: pure functions of logits (batch, vocab) and the rows' own random numbers; no model, no scheme.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Sequence

import numpy as np
import torch

from dewmark.errors import ConfigError

__all__ = [
    "Choosing",
    "RandomStreams",
    "keep_top_k",
    "keep_top_p",
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


def warp(scores: torch.Tensor, *, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Logits (batch, vocab) after temperature, top-k and top-p, in this order."""
    scores = scores / temperature
    if top_k > 0:
        scores = keep_top_k(scores, top_k)
    if top_p < 1.0:
        scores = keep_top_p(scores, top_p)
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
        temperature: float,
        top_k: int,
        top_p: float,
    ) -> None:
        if not temperature > 0.0:
            raise ConfigError(
                f"the mark is in the choice between tokens: temperature must be positive, got {temperature:g}"
            )
        self._session = session
        self._rows = rows
        self._seeds = drawn_seeds(rows, seeds)
        self._warp = functools.partial(warp, temperature=temperature, top_k=top_k, top_p=top_p)
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
        marked = self._session(input_ids, self._warp(scores.float())).to(self._noise.device)
        chosen, _ = race(marked, self._noise.exponentials(self._step, scores.shape[1]))
        self._step += 1
        only = torch.full_like(scores, _MINUS_INF)
        return only.scatter(1, chosen.to(scores.device).unsqueeze(1), 0.0)
