"""Texts written step by step, each with its own mark, in turns: what a step costs with each.

Every writer keeps its own text and cache and takes a few steps per turn, so that a busy machine disturbs all
of them alike and no prompt is timed. Besides the schemes of this library there are those that transformers
and vLLM have themselves, where installed.

`record` keeps the logits and tokens of a real host. A host with random weights writes nonsense, whose
candidates make no words: `replayed` lets it compute its forward pass and then gives every step the recorded
logits and token, so that marks see what they would see in real text.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from dewmark.decoding import Decoding
from dewmark.hosts.transformers.decoding_loop import CachedForward
from dewmark.sampling import RandomStreams, draw
from dewmark.scheme import BoundScheme
from dewmark_lab.bench.timing import seconds

_MINUS_INF = -float("inf")

Forward = Callable[[torch.Tensor], torch.Tensor]
"""Logits (batch, vocab) of the token after ids (batch, length)."""


class Chooses(Protocol):
    """Draws the next ids (batch,) after ids (batch, length) from logits (batch, vocab)."""

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor, step: int) -> torch.Tensor:
        """Draw at a step."""
        ...


class Writer:
    """One batch of texts that grows by ``choose``; ``prompt`` is (batch, length), without padding."""

    def __init__(
        self,
        forward: Forward,
        choose: Chooses,
        prompt: torch.Tensor,
        *,
        room: int,
        forced: torch.Tensor | None = None,
    ) -> None:
        """``forced`` (batch, room) are the tokens to write, whatever is chosen."""
        self._forward, self._choose, self._forced = forward, choose, forced
        self._start = self._length = prompt.shape[1]
        self.ids = torch.zeros((len(prompt), self._start + room), dtype=torch.long, device=prompt.device)
        self.ids[:, : self._start] = prompt

    def __call__(self, steps: int) -> float:
        """Take a number of steps; returns the seconds of one."""
        return seconds(lambda: self._write(steps), self.ids.device) / steps

    @torch.inference_mode()
    def _write(self, steps: int) -> None:
        for _ in range(steps):
            step = self._length - self._start
            ids = self.ids[:, : self._length]
            chosen = self._choose(ids, self._forward(ids), step)
            self.ids[:, self._length] = chosen if self._forced is None else self._forced[:, step]
            self._length += 1


def eager(model: Any, forbidden: torch.Tensor) -> Forward:  # noqa: ANN401 - transformers types little
    """A model of transformers with a KV cache; ``forbidden`` (vocab,) ids are never written."""
    forward = CachedForward(model, None)

    def logits(ids: torch.Tensor) -> torch.Tensor:
        return forward(ids).to(torch.float32, copy=True).masked_fill_(forbidden, _MINUS_INF)

    return logits


def drawn_by(scheme: BoundScheme | None, prompt: torch.Tensor, decoding: Decoding = Decoding()) -> Chooses:
    """The token that a scheme draws, as this library's own decoding loop does; None: without a mark."""
    seeds = range(len(prompt))
    session = None if scheme is None else scheme.session(prompt, torch.ones_like(prompt), seeds=seeds)
    final = scheme is not None and scheme.needs.final_distribution
    noise = RandomStreams(seeds, device=prompt.device)

    def choose(ids: torch.Tensor, scores: torch.Tensor, step: int) -> torch.Tensor:
        return draw(scores, decoding, noise, step, session=session, input_ids=ids, final=final)[0]

    return choose


# The marks that transformers and vLLM write


def peer_marks(vocab_size: int, device: torch.device) -> dict[str, Callable[[torch.Tensor], Chooses]]:
    """For each peer at hand, a function that starts marking prompts (batch, length)."""
    from transformers.generation.logits_process import (
        SynthIDTextWatermarkLogitsProcessor,
        WatermarkLogitsProcessor,
    )

    def kgw(prompt: torch.Tensor) -> Chooses:
        return processed(WatermarkLogitsProcessor(vocab_size, device), prompt)

    def synthid(prompt: torch.Tensor) -> Chooses:
        keys = torch.randint(1 << 16, (30,), generator=torch.Generator().manual_seed(0)).tolist()
        mark = SynthIDTextWatermarkLogitsProcessor(5, keys, 1 << 16, 0, 1024, device)
        return processed(mark, prompt)

    found: dict[str, Callable[[torch.Tensor], Chooses]] = {
        "transformers kgw": kgw,
        "transformers synthid": synthid,
    }
    if importlib.util.find_spec("vllm") is not None:
        found["vllm gumbel"] = _vllm_gumbel
    return found


def processed(processor: Any, prompt: torch.Tensor) -> Chooses:  # noqa: ANN401 - transformers types little
    """A logits processor of transformers before this library's unmarked draw."""
    plain = drawn_by(None, prompt)

    def choose(ids: torch.Tensor, scores: torch.Tensor, step: int) -> torch.Tensor:
        return plain(ids, processor(ids, scores), step)

    return choose


def _vllm_gumbel(prompt: torch.Tensor) -> Chooses:
    gumbel: Any = importlib.import_module("vllm.v1.watermarking.gumbel")
    mark = gumbel.GumbelWatermarker(1234567, 4)

    def choose(ids: torch.Tensor, scores: torch.Tensor, step: int) -> torch.Tensor:
        chosen: torch.Tensor = mark.sample(scores, ids[:, -4:]).token_ids
        return chosen

    return choose


# Real text for hosts with random weights


@dataclass(frozen=True)
class Recorded:
    """What a real host wrote: logits (steps, batch, vocab) bfloat16 and tokens (batch, steps)."""

    logits: torch.Tensor
    tokens: torch.Tensor


@torch.inference_mode()
def record(forward: Forward, prompt: torch.Tensor, *, steps: int) -> Recorded:
    """Write unmarked texts and keep their logits."""
    choose = drawn_by(None, prompt)
    ids, kept = prompt, []
    for step in range(steps):
        scores = forward(ids)
        kept.append(scores.bfloat16())
        ids = torch.cat((ids, choose(ids, scores, step).unsqueeze(1)), dim=1)
    return Recorded(torch.stack(kept), ids[:, prompt.shape[1] :])


def replayed(forward: Forward, recorded: Recorded, *, start: int, vocab_size: int) -> Forward:
    """The host's forward pass, after which every step gets its recorded logits, padded to ``vocab_size``.

    ``start`` is the length of the prompt.
    """
    steps, batch, narrow = recorded.logits.shape
    scores = torch.full((batch, vocab_size), _MINUS_INF, device=recorded.logits.device)

    def logits(ids: torch.Tensor) -> torch.Tensor:
        forward(ids)
        scores[:, :narrow] = recorded.logits[(ids.shape[1] - start) % steps]
        return scores

    return logits
