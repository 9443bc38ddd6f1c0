"""Decoding for schemes that choose between drafts of sentences: rounds over a batch of prompts.

In each round every unfinished row gets several drafts of its next sentence, all rows' drafts in one batch.
Drafts share their row's key-value cache, and each stops at the end of its sentence. Whenever half of them
have stopped, the scheme judges those in one call, and drafts numbered after one that passes are abandoned. A
row continues with its first draft that passes; after the scheme's maximum number of tries, with the best one.
Draft t of sentence s of a row has a random stream determined by the row's seed, s and t, so neither the batch
nor the size of a round changes a text.

A text ends only where the first draft of a sentence ends it. If later drafts could end it too, every end of
text would have as many chances as there are drafts, and texts would become short. An unfinished last sentence
is not judged, as detectors do not count it.

`CachedRows` is a batch of growing texts in a model's key-value cache that can be copied, row by row, to try
continuations. Rows grow by different numbers of ids: each call appends one block of columns, padded on the
left; the attention mask says which columns of a row are real, and positions count only those. Nothing in the
cache is computed again, however often a row is copied. Only layers with a sliding window would mistake
padding for text: a model with such layers reads its rows again when they grow unevenly.

Boundary: token ids and text in and out; the scheme knows what a sentence is, and which ones are good.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dewmark.decoding import Decoding
from dewmark.errors import ModelError
from dewmark.hosts.transformers.decoding_loop import (
    CausalLM,
    NGramBlocker,
    check_sound,
    device_of,
    forward_parameters,
    pad_left,
)
from dewmark.sampling import RandomStreams, draw
from dewmark.scheme import Drafts
from dewmark.types import DraftCount
from dewmark.workspace import Tokenizer

__all__ = ["CachedRows", "write_drafts"]

_MINUS_INF = -float("inf")


@dataclass
class _Row:
    """One text: its prompt's ids, the accepted ids, and the state of the current sentence."""

    prompt: Sequence[int]
    seed: int
    ids: list[int] = field(default_factory=list)
    sentences: int = 0
    drafts: int = 0
    gave_up: int = 0
    tried: int = 0
    best: tuple[float, _Draft] | None = None
    finished: bool = False


@dataclass
class _Draft:
    """One draft of a row's next sentence: ``number`` counts the sentence's drafts from 0.

    ``whole`` is set when its sentence is complete, ``done`` when it stops growing for any reason; ``score``
    is the scheme's judgement.
    """

    row: int
    number: int
    room: int
    ids: list[int] = field(default_factory=list)
    text: str = ""
    whole: bool = False
    done: bool = False
    score: float | None = None

    @property
    def ends_text(self) -> bool:
        """Whether the text ends with this draft, within a sentence or before one."""
        return self.done and not self.whole and self.number == 0


@torch.inference_mode()
def write_drafts(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    *,
    drafts: Drafts,
    decoding: Decoding,
    seeds: Sequence[int],
    tokenizer: Tokenizer,
    eos_ids: Sequence[int],
    fill_id: int,
    writable: torch.Tensor,
) -> list[tuple[list[int], DraftCount]]:
    """Complete one batch of prompts; returns each row's new ids and draft counts.

    ``fill_id`` and ``writable`` are as in `dewmark.hosts.transformers.decoding_loop.decode`.
    """
    rows = [_Row(prompt, seed) for prompt, seed in zip(prompts, seeds, strict=True)]
    base = CachedRows(model, prompts, fill_id=fill_id)
    eos = sorted(eos_ids)
    forbidden = (~writable).to(base.logits.device)
    forbidden[eos] = False
    writer = _DraftWriter(model, drafts, decoding, tokenizer, eos, forbidden)
    while not all(row.finished for row in rows):
        plan = [
            _Draft(i, number, decoding.max_new_tokens - len(row.ids))
            for i, row in enumerate(rows)
            if not row.finished
            for number in range(row.tried, min(row.tried + drafts.at_once, drafts.tries))
        ]
        writer.write(plan, rows, base)
        grown = _accept(plan, rows, drafts, most=decoding.max_new_tokens)
        base.extend(grown)
    return [(row.ids, DraftCount(row.sentences, row.drafts, row.gave_up)) for row in rows]


def _judge(plan: Sequence[_Draft], drafts: Drafts) -> None:
    """Judge the complete sentences of a round; abandon drafts after one that settles its row."""
    new = [draft for draft in plan if draft.whole and draft.score is None]
    scores = drafts.judge([draft.row for draft in new], [draft.text for draft in new]) if new else []
    for draft, score in zip(new, scores, strict=True):
        draft.score = score
    settled: set[int] = set()
    for draft in plan:
        draft.done = draft.done or draft.row in settled
        if draft.ends_text or (draft.score is not None and draft.score > 0.0):
            settled.add(draft.row)


def _accept(plan: Sequence[_Draft], rows: Sequence[_Row], drafts: Drafts, *, most: int) -> list[list[int]]:
    """Continue each row with a draft if one is chosen; returns the ids that the rows grew by."""
    grown: list[list[int]] = [[] for _ in rows]
    settled: set[int] = set()
    for draft in plan:
        row = rows[draft.row]
        if draft.row in settled:
            continue
        row.tried += 1
        score = _MINUS_INF if draft.score is None else draft.score
        if row.best is None or score > row.best[0]:
            row.best = (score, draft)
        if not draft.ends_text and score <= 0.0 and row.tried < drafts.tries:
            continue
        chosen = draft if draft.ends_text or score > 0.0 else row.best[1]
        settled.add(draft.row)
        row.ids += chosen.ids
        row.finished = not chosen.whole or len(row.ids) >= most
        if chosen.whole:
            row.sentences += 1
            row.drafts += row.tried
            row.gave_up += row.best[0] <= 0.0
            drafts.accept(draft.row, chosen.text)
            grown[draft.row] = chosen.ids
        row.tried, row.best = 0, None
    return grown


class _DraftWriter:
    """Writes the drafts of a round until all are done."""

    def __init__(
        self,
        model: CausalLM,
        drafts: Drafts,
        decoding: Decoding,
        tokenizer: Tokenizer,
        eos: list[int],
        forbidden: torch.Tensor,
    ) -> None:
        self._model = model
        self._drafts = drafts
        self._decoding = decoding
        self._tokenizer = tokenizer
        self._eos = eos
        self._ends = frozenset(eos)
        self._forbidden = forbidden

    def write(self, plan: Sequence[_Draft], rows: Sequence[_Row], base: CachedRows) -> None:
        """Fill in the drafts of ``plan``."""
        batch = list(plan)
        branches = base.select([draft.row for draft in batch])
        noise = self._noise(batch, rows)
        n = self._decoding.no_repeat_ngram
        blocker = NGramBlocker([[*rows[d.row].prompt, *rows[d.row].ids] for d in batch], n) if n else None
        step = 0
        while True:
            scores = branches.logits.to(torch.float32, copy=True)
            scores.masked_fill_(self._forbidden, _MINUS_INF)
            early = [
                i for i, draft in enumerate(batch) if draft.number > 0 or self._too_short(draft, rows, step)
            ]
            if early:
                scores[torch.tensor(early)[:, None], torch.tensor(self._eos)] = _MINUS_INF
            if blocker is not None:
                scores = blocker.block(scores)
            chosen, sound = draw(scores, self._decoding, noise, step)
            check_sound(sound, self._model)
            tokens = chosen.tolist()
            self._append(batch, tokens, rows)
            step += 1
            finished = sum(draft.done for draft in batch)
            if 2 * finished >= len(batch):
                _judge(plan, self._drafts)
            live = [i for i, draft in enumerate(batch) if not draft.done]
            if not live:
                return
            if blocker is not None:
                blocker.append(tokens)
            if 2 * len(live) <= len(batch):  # a finished draft costs as much as any other
                batch, tokens = [batch[i] for i in live], [tokens[i] for i in live]
                branches.keep(live)
                noise = self._noise(batch, rows)
                if blocker is not None:
                    blocker.keep(live)
            branches.extend([[token] for token in tokens])

    def _append(self, batch: Sequence[_Draft], tokens: Sequence[int], rows: Sequence[_Row]) -> None:
        """Append each draft's next token, and check whether it is done."""
        live = [(draft, token) for draft, token in zip(batch, tokens, strict=True) if not draft.done]
        for draft, token in live:
            draft.done = token in self._ends
            if not draft.done:
                draft.ids.append(token)
        for (draft, _), text in zip(live, self._texts([draft for draft, _ in live], rows), strict=True):
            last = len(draft.ids) >= draft.room
            end = self._drafts.end(draft.row, text, last=last or draft.done)
            draft.text = text
            if end is not None:
                self._cut(draft, end, rows)
            draft.whole = end is not None
            draft.done = draft.done or draft.whole or last

    def _cut(self, draft: _Draft, end: int, rows: Sequence[_Row]) -> None:
        """Remove the tokens after the end of the sentence, which were only needed to see that it ends."""
        while len(draft.ids) > 1:
            shorter = _Draft(draft.row, draft.number, draft.room, ids=draft.ids[:-1])
            text = self._texts([shorter], rows)[0]
            if len(text) < end:
                return
            draft.ids, draft.text = shorter.ids, text

    def _texts(self, drafts: Sequence[_Draft], rows: Sequence[_Row]) -> list[str]:
        """The text that each draft adds to its row; some tokenizers drop a space at the start of a text."""
        before = [([*rows[d.row].prompt[-1:], *rows[d.row].ids])[-1:] for d in drafts]
        joined = self._tokenizer.decode([*before, *(a + d.ids for a, d in zip(before, drafts, strict=True))])
        starts, texts = joined[: len(drafts)], joined[len(drafts) :]
        return [text[len(start) :] for start, text in zip(starts, texts, strict=True)]

    def _too_short(self, draft: _Draft, rows: Sequence[_Row], step: int) -> bool:
        return len(rows[draft.row].ids) + step < self._decoding.min_new_tokens

    def _noise(self, batch: Sequence[_Draft], rows: Sequence[_Row]) -> RandomStreams:
        seeds = [_seed(rows[d.row].seed, rows[d.row].sentences, d.number) for d in batch]
        return RandomStreams(seeds, device=self._forbidden.device)


def _seed(row: int, sentence: int, draft: int) -> int:
    """The seed of one draft."""
    digest = hashlib.blake2b(f"{row} {sentence} {draft}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class CachedRows:
    """Texts in a model's key-value cache; ``logits`` (rows, vocab) predict each row's next token."""

    logits: torch.Tensor
    _cache: Any
    _mask: torch.Tensor

    def __init__(self, model: CausalLM, prompts: Sequence[Sequence[int]], *, fill_id: int) -> None:
        self._model = model
        self._fill_id = fill_id
        self._device = device_of(model)
        self._accepted = forward_parameters(model)
        self._ids = [list(prompt) for prompt in prompts]
        self.logits = self._read()

    def extend(self, rows: Sequence[Sequence[int]]) -> None:
        """Append ids to each row; a row may get none."""
        self._ids = [[*before, *row] for before, row in zip(self._ids, rows, strict=True)]
        uneven = len({len(row) for row in rows}) > 1
        if uneven and any(getattr(self._cache, "is_sliding", ())):
            self.logits = self._read()
        elif any(rows):
            grown = torch.tensor([bool(row) for row in rows], device=self._device).unsqueeze(1)
            self.logits = torch.where(grown, self._forward(rows), self.logits)

    def select(self, rows: Sequence[int]) -> CachedRows:
        """A copy with these rows, each as often as it is listed; the original does not change."""
        other = copy.copy(self)
        other._cache = copy.deepcopy(self._cache)
        other.keep(rows)
        return other

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows."""
        index = torch.tensor(rows, dtype=torch.long, device=self._device)
        self._cache.batch_select_indices(index)
        self._ids = [self._ids[row] for row in rows]
        self._mask = self._mask[index]
        self.logits = self.logits[index]

    def _read(self) -> torch.Tensor:
        """Logits (rows, vocab) after the whole rows, with a new cache."""
        self._cache = None
        self._mask = torch.zeros((len(self._ids), 0), dtype=torch.long, device=self._device)
        return self._forward(self._ids)

    def _forward(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Logits (rows, vocab) after appending ids; undefined for a row that did not grow."""
        if len({len(row) for row in rows}) == 1:
            ids = torch.tensor(rows, dtype=torch.long, device=self._device)
            real = torch.ones_like(ids)
        else:
            ids, real = pad_left(rows, fill_id=self._fill_id, device=self._device)
        before = self._mask.sum(dim=1, keepdim=True)
        self._mask = torch.cat((self._mask, real), dim=1)
        inputs: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": self._mask,
            "use_cache": True,
            "return_dict": True,
        }
        if self._cache is not None:
            inputs["past_key_values"] = self._cache
        if "position_ids" in self._accepted:  # models with relative positions use only the mask
            inputs["position_ids"] = (before + real.cumsum(dim=1) - 1).clamp(min=0)
        if "logits_to_keep" in self._accepted:
            inputs["logits_to_keep"] = 1
        output = self._model(**inputs)
        self._cache = getattr(output, "past_key_values", None)
        if not hasattr(self._cache, "batch_select_indices"):
            raise ModelError(
                f"{type(self._model).__name__} has no key-value cache that can be copied row by row, which "
                "drafts need: use another host, or a scheme that marks token by token"
            )
        logits: torch.Tensor = output.logits[:, -1]
        return logits
