"""The decoding loop over any causal language model of transformers: left-padded batches and a KV cache.

Each step forbids special and unknown ids, repeated n-grams and an early end, then draws the next id of each
row with the row's own random numbers, marked by the scheme (`dewmark.mark.Writer`). The loop
waits for the device only where n-gram blocking must see the tokens, and every 16 steps to check whether all
rows have ended or a number went wrong. Where a scheme chooses between drafts (`Decoding.drafts`), the rows
that are drafts of one text lie together; after each stretch all of them continue the best one.

Boundary: token ids in, token ids out; text belongs to the host.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, ModelError, NumericalError
from dewmark.hosts.base import OnStep
from dewmark.hosts.transformers.attention import growing_attention
from dewmark.mark import Writer
from dewmark.room import Written, rooms_of
from dewmark.scheme import BoundScheme

__all__ = [
    "CachedForward",
    "CausalLM",
    "NGrams",
    "block_repeats",
    "check_sound",
    "device_of",
    "forward_parameters",
    "pad_left",
]

CausalLM = Any  # any causal language model of transformers, whose classes have few types

_MINUS_INF = -float("inf")
_CHECK_EVERY = 16  # steps


@torch.inference_mode()
def decode(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    *,
    decoding: Decoding,
    seeds: Sequence[int],
    scheme: BoundScheme | None,
    eos_ids: Sequence[int],
    fill_id: int,
    writable: torch.Tensor,
    on_step: OnStep | None = None,
) -> list[list[int]]:
    """Complete one batch of prompts; returns each row's new ids up to its first end-of-text id (`Written`).

    ``fill_id`` pads prompts on the left and finished rows on the right. Only ids that are True in
    ``writable`` (vocab,) or end a text are chosen, not other special tokens or ids of a padded vocabulary.
    ``on_step`` gets each row's next id, or None once the row has ended, and its room so far, and stops the
    loop by returning False.
    """
    device = device_of(model)
    start, steps = max(len(prompt) for prompt in prompts), decoding.max_new_tokens
    ids, mask = pad_left(prompts, fill_id=fill_id, extra=steps, device=device)
    forward = CachedForward(model, mask if start * len(prompts) != sum(map(len, prompts)) else None)
    if scheme is None:
        writer = Writer(None, ids[:, :start], seeds=seeds)
    else:
        writer = scheme.writer(ids[:, :start], mask[:, :start], seeds=seeds)
    drafting = writer.drafting if decoding.drafts > 1 else None
    if scheme is not None and decoding.drafts > 1 and drafting is None:
        raise ConfigError(f"{scheme.scheme.name} cannot choose between drafts: leave drafts at 1, or use dew")
    n = decoding.no_repeat_ngram
    ngrams = [NGrams(n, prompt) for prompt in prompts] if n else []
    eos = torch.tensor(sorted(eos_ids), dtype=torch.long, device=device)
    forbidden = (~writable).to(device)
    forbidden[eos] = False
    finished = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    sound = torch.ones_like(finished)
    rooms: torch.Tensor | None = None
    waits = device.type == "cpu" or bool(ngrams)  # each step waits for the device anyway
    length = start
    for step in range(steps):
        scores = forward(ids[:, :length]).to(torch.float32, copy=True)
        scores.masked_fill_(forbidden, _MINUS_INF)
        if step < decoding.min_new_tokens:
            scores[:, eos] = _MINUS_INF
        block_repeats(scores, ngrams)
        if drafting:
            chosen, fine = drafting.draw_drafts(ids[:, :length], scores, decoding, ~finished)
        else:
            chosen, fine = writer.draw(ids[:, :length], scores, decoding)
        if (room := writer.room()) is not None:
            room = room.to(device)
            rooms = room if rooms is None else torch.where(finished.unsqueeze(1), rooms, room)
        sound &= fine.to(device) | finished
        chosen = chosen.to(device).masked_fill(finished, fill_id)
        ids[:, length] = chosen
        length += 1
        finished |= torch.isin(chosen, eos)
        if drafting and ((step + 1) % drafting.stretch == 0 or step + 1 == steps or bool(finished.all())):
            rows = drafting.keep_best(decoding.drafts)
            ids, finished, sound = ids[rows], finished[rows], sound[rows]
            rooms = None if rooms is None else rooms[rows]
            ngrams = [copy.deepcopy(ngrams[row]) for row in rows.tolist()] if ngrams else []
            forward.select(rows)
        if waits or on_step is not None or (step + 1) % _CHECK_EVERY == 0:
            check_sound(sound, model)
            if on_step is not None:
                reported = zip(chosen.tolist(), finished.tolist(), strict=True)
                step_ids = [None if ended else token for token, ended in reported]
                if not on_step(step_ids, rooms_of(rooms, len(step_ids))):
                    break
            if bool(finished.all()):
                break
        if ngrams:
            for row, token in zip(ngrams, chosen.tolist(), strict=True):
                row.append(token)
    check_sound(sound, model)
    ends = set(eos_ids)
    written: list[list[int]] = []
    for row, left in zip(ids[:, start:length].tolist(), rooms_of(rooms, len(ids)), strict=True):
        end = next((i for i, token in enumerate(row) if token in ends), len(row))
        written.append(text := Written(row[:end]))
        text.room = left
    return written


class CachedForward:
    """Runs a model over a growing batch of ids with a KV cache.

    ``mask`` (batch, full length) marks real tokens; None means that no row is padded, which lets the model
    use faster attention without checking the mask in every step.
    """

    def __init__(self, model: CausalLM, mask: torch.Tensor | None) -> None:
        self._model, self._mask = model, mask
        self._positions = None if mask is None else (mask.cumsum(dim=-1) - 1).clamp(min=0)
        self._cache: Any = None
        self._seen = 0
        self._accepted = forward_parameters(model)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) of the token after ``ids`` (batch, length)."""
        length = ids.shape[1]
        inputs: dict[str, Any] = {"input_ids": ids[:, self._seen :], "use_cache": True, "return_dict": True}
        if self._cache is not None:
            inputs["past_key_values"] = self._cache
        if self._mask is not None and self._positions is not None:
            inputs["attention_mask"] = self._mask[:, :length]
            if "position_ids" in self._accepted:  # models with relative positions use only the mask
                inputs["position_ids"] = self._positions[:, self._seen : length]
        if "logits_to_keep" in self._accepted:
            inputs["logits_to_keep"] = 1
        with growing_attention(ids.device):
            output = self._model(**inputs)
        self._cache = getattr(output, "past_key_values", None)
        if self._cache is None:
            raise ModelError(
                f"{type(self._model).__name__} has no key-value cache, which this loop needs: "
                "use scheme.processor with the model's own generate"
            )
        self._seen = length
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def select(self, rows: torch.Tensor) -> None:
        """Go on with these rows of the batch alone."""
        if self._mask is not None and self._positions is not None:
            self._mask, self._positions = self._mask[rows], self._positions[rows]
        if isinstance(self._cache, tuple):
            self._cache = tuple((keys[rows], values[rows]) for keys, values in self._cache)
        else:
            self._cache.batch_select_indices(rows)


class NGrams:
    """The n-grams of one text: a table from every (n-1)-gram to the tokens that followed it.

    The cost of a token thus does not depend on the length of the text. With n = 0 nothing repeats.
    """

    def __init__(self, n: int, ids: Sequence[int] = (), *, before: NGrams | None = None) -> None:
        self._n = n
        self._tail: tuple[int, ...] = before._tail if before else ()
        self._followers: dict[tuple[int, ...], list[int]] = {}
        self._followers_before = before._followers if before else {}
        self.extend(ids)

    def branch(self) -> NGrams:
        """The n-grams of a continuation of this text, which must not grow meanwhile."""
        return NGrams(self._n, before=self)

    def extend(self, ids: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token in ids:
            self.append(token)

    def append(self, token: int) -> None:
        """Append one token to the text."""
        if not self._n:
            return
        tail = self._tail
        if len(tail) == self._n - 1:
            self._followers.setdefault(tail, []).append(token)
            self._tail = (*tail, token)[1:]
        else:
            self._tail = (*tail, token)

    def repeating(self) -> Sequence[int]:
        """The tokens that would complete an n-gram of the text."""
        before, here = self._followers_before.get(self._tail), self._followers.get(self._tail)
        return [*before, *here] if before and here else before or here or ()


def block_repeats(scores: torch.Tensor, ngrams: Sequence[NGrams]) -> None:
    """Set the logits (batch, vocab) of tokens that would repeat an n-gram of their row to -inf, in place."""
    vocab = scores.shape[-1]
    pairs = [(row, token) for row, text in enumerate(ngrams) for token in text.repeating() if token < vocab]
    if pairs:
        rows, tokens = torch.tensor(pairs, device=scores.device).unbind(dim=1)
        scores[rows, tokens] = _MINUS_INF


def device_of(model: Any) -> torch.device:  # noqa: ANN401 - any model of transformers
    """Where a model expects its ids."""
    device: torch.device = model.get_input_embeddings().weight.device
    return device


def forward_parameters(model: CausalLM) -> frozenset[str]:
    """The names of the parameters of the model's forward, which an adapter's wrapper hides."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return frozenset(inspect.signature(inner.forward).parameters)


def pad_left(
    rows: Sequence[Sequence[int]], *, fill_id: int, device: torch.device, extra: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask (batch, longest + extra), padded on the left, with ``extra`` free columns on the right."""
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest + extra), fill_id, dtype=torch.long)
    mask = torch.ones_like(ids)
    for i, row in enumerate(rows):
        ids[i, longest - len(row) : longest] = torch.tensor(row, dtype=torch.long)
        mask[i, : longest - len(row)] = 0
    return ids.to(device), mask.to(device)


def check_sound(sound: torch.Tensor, model: CausalLM) -> None:
    """Raise `NumericalError` if a row (batch,) had no token to choose."""
    if not bool(sound.all()):
        row = int(sound.to(torch.int8).argmin())
        raise NumericalError(
            f"row {row} of the batch has no usable logits (NaN, infinite, or every token forbidden) in "
            f"{model.dtype}: load the host with dtype='float32', or relax n-gram blocking"
        )
