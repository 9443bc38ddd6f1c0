"""Decoding for schemes that choose between drafts of sentences: a batch of drafts of many texts.

All drafts of the next sentence of all unfinished texts are rows of one batch. Whenever a third of the batch
has finished its sentences, the scheme judges those in one call. A text continues with its first draft that
passes; after the scheme's maximum number of tries, with the best one. Draft t of sentence s of a text has a
random stream determined by the text's seed, s and t, so neither the batch nor the number of drafts at once
changes a text.

A text ends only where the first draft of a sentence ends it: if later drafts could too, texts would become
short. An unfinished last sentence is not judged, as detectors do not count it.

`CachedRows` is a batch of growing texts in a model's key-value cache, which can be copied and cut row by
row: a new draft begins with the cache of another draft, cut to the ids they share. Rows are padded on the
left only.
"""

from __future__ import annotations

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dewmark.decoding import Decoding
from dewmark.errors import ModelError
from dewmark.hosts.transformers.attention import growing_attention
from dewmark.hosts.transformers.decoding_loop import (
    CausalLM,
    NGrams,
    block_repeats,
    check_sound,
    device_of,
    forward_parameters,
    pad_left,
)
from dewmark.mark import draw
from dewmark.sampling import RandomStreams
from dewmark.types import DraftCount
from dewmark.workspace import Tokenizer

_MINUS_INF = -float("inf")
_CUT = "\N{REPLACEMENT CHARACTER}"  # decodes from part of a character
_STOPPED = 1 / 3  # share of the unfinished drafts that stop before they are judged


@dataclass
class _Row:
    """One text: its accepted ids after the prompt's, and the drafts of its next sentence in question.

    ``started`` counts that sentence's drafts, ``ngrams`` are those of prompt and text.
    """

    number: int
    seed: int
    prompt: Sequence[int]
    ngrams: NGrams
    ids: list[int] = field(default_factory=list)
    sentences: int = 0
    drafts: int = 0
    gave_up: int = 0
    started: int = 0
    current: list[_Draft] = field(default_factory=list)


@dataclass(eq=False)
class _Draft:
    """One draft of a row's next sentence: ``number`` counts the sentence's drafts from 0.

    ``slot`` is the row of the cache that begins with the text and draft so far, less their last id. ``whole``
    is set when the draft's sentence is complete, ``done`` when it stops growing for any reason; ``score`` is
    the scheme's judgement. ``joined`` says that the ids' own texts make up the draft's.
    """

    row: _Row
    number: int
    slot: int
    ngrams: NGrams
    joined: bool
    ids: list[int] = field(default_factory=list)
    text: str = ""
    whole: bool = False
    done: bool = False
    score: float = _MINUS_INF
    judged: bool = False

    @property
    def passes(self) -> bool:
        """Whether the row continues with this draft unless an earlier one passes, too."""
        return self.done and (self.score > 0.0 or (self.number == 0 and not self.whole))

    @property
    def length(self) -> int:
        """The number of ids of prompt, text and draft."""
        return len(self.row.prompt) + len(self.row.ids) + len(self.ids)

    @property
    def last_id(self) -> int:
        """The newest of these ids."""
        return next(ids[-1] for ids in (self.ids, self.row.ids, self.row.prompt) if ids)


class DraftJudge(ABC):
    """Judges drafts of the sentences of one batch of texts, and ends with the batch.

    ``tries`` bounds the drafts of one sentence. ``at_once`` is how many of them a host may write together,
    which affects the time it takes and nothing else. A draft is text that would follow what the row already
    holds.
    """

    tries: int
    at_once: int

    @abstractmethod
    def end(self, row: int, draft: str, *, last: bool = False) -> int | None:
        """How many characters of the draft complete its sentence; None if it is not (yet certainly) complete.

        ``last`` says that nothing can follow the draft.
        """

    @abstractmethod
    def judge(self, rows: Sequence[int], drafts: Sequence[str]) -> list[float]:
        """A score for each draft of a whole sentence, all in one call: it passes above 0, larger is better.

        -inf means that the draft changes a sentence that was accepted before.
        """

    @abstractmethod
    def accept(self, row: int, draft: str) -> None:
        """The row continues with this draft, which was judged before."""

    def write(
        self,
        model: CausalLM,
        prompts: Sequence[Sequence[int]],
        *,
        decoding: Decoding,
        seeds: Sequence[int],
        tokenizer: Tokenizer,
        eos_ids: Sequence[int],
        fill_id: int,
        writable: torch.Tensor,
    ) -> list[tuple[list[int], DraftCount]]:
        """Complete one batch of prompts; returns each row's new ids and draft counts."""
        with torch.inference_mode():
            cached = CachedRows(model, prompts, fill_id=fill_id)
            forbidden = (~writable).to(device_of(model))
            forbidden[list(eos_ids)] = False
            writer = _DraftWriter(model, self, decoding, tokenizer, eos_ids, forbidden)
            rows = [
                _Row(i, seed, prompt, NGrams(decoding.no_repeat_ngram, prompt))
                for i, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
            ]
            for row in rows:
                writer.begin(row, slot=row.number)
            while batch := [draft for row in rows for draft in row.current]:
                cached.keep([draft.slot for draft in batch], [draft.length - 1 for draft in batch])
                for slot, draft in enumerate(batch):
                    draft.slot = slot
                writer.write(batch, cached)
                writer.judge(batch)
                for row in rows:
                    writer.settle(row)
        return [(row.ids, DraftCount(row.sentences, row.drafts, row.gave_up)) for row in rows]


class _DraftWriter:
    """Begins drafts, writes them, and chooses between them."""

    def __init__(
        self,
        model: CausalLM,
        drafts: DraftJudge,
        decoding: Decoding,
        tokenizer: Tokenizer,
        eos_ids: Sequence[int],
        forbidden: torch.Tensor,
    ) -> None:
        self._model, self._drafts, self._decoding = model, drafts, decoding
        self._tokenizer = tokenizer
        self._ends = frozenset(eos_ids)
        self._eos = torch.tensor(sorted(eos_ids), dtype=torch.long, device=forbidden.device)
        self._forbidden = forbidden

    def begin(self, row: _Row, *, slot: int) -> None:
        """Begin the next drafts of a row's sentence, whose text is in the cache's row ``slot``."""
        until = min(row.started + self._drafts.at_once, self._drafts.tries)
        for number in range(row.started, until):
            draft = _Draft(row, number, slot, row.ngrams.branch(), joined=True)
            draft.joined = self._piece(draft.last_id) is not None
            row.current.append(draft)
        row.started = until

    def write(self, batch: Sequence[_Draft], cached: CachedRows) -> None:
        """Write on until some drafts are done; ``cached`` lacks the last id of each."""
        device = self._forbidden.device
        seeds = [draft_seed(draft.row.seed, draft.row.sentences, draft.number) for draft in batch]
        noise = RandomStreams(seeds, device=device, skip=[len(draft.ids) for draft in batch])
        most = self._decoding.max_new_tokens
        too_short = torch.tensor(  # how many steps; only the first draft of a sentence may end a text
            [
                most if draft.number else self._decoding.min_new_tokens - len(draft.row.ids) - len(draft.ids)
                for draft in batch
            ],
            device=device,
        )
        tokens = [draft.last_id for draft in batch]
        live = [draft for draft in batch if not draft.done]
        enough = (1.0 - _STOPPED) * len(live)
        for step in itertools.count():
            scores = cached.extend(tokens).to(torch.float32, copy=True)
            scores.masked_fill_(self._forbidden, _MINUS_INF)
            early = (too_short > step).unsqueeze(1)
            scores[:, self._eos] = scores[:, self._eos].masked_fill(early, _MINUS_INF)
            block_repeats(scores, [draft.ngrams for draft in batch])
            chosen, sound = draw(scores, self._decoding, noise, step)
            check_sound(sound, self._model)
            tokens = chosen.tolist()
            for draft in live:
                self._append(draft, tokens[draft.slot])
            live = [draft for draft in live if not draft.done]
            if len(live) <= enough:
                return

    def judge(self, batch: Sequence[_Draft]) -> None:
        """Judge the complete sentences among the drafts."""
        new = [draft for draft in batch if draft.whole and not draft.judged]
        if new:
            scores = self._drafts.judge([draft.row.number for draft in new], [draft.text for draft in new])
            for draft, score in zip(new, scores, strict=True):
                draft.score, draft.judged = score, True

    def settle(self, row: _Row) -> None:
        """Drop the drafts that cannot be chosen any more; continue the row if one is chosen.

        Of the drafts that failed, only the best remains, in case that all do.
        """
        if not row.current:
            return
        passed = next((i for i, draft in enumerate(row.current) if draft.passes), None)
        unfinished = [draft for draft in row.current[:passed] if not draft.done]
        if passed is None:
            failed = [draft for draft in row.current if draft.done]
            chosen = max(failed, key=lambda draft: draft.score, default=None)
        else:
            chosen = row.current[passed]
        row.current = [*unfinished, chosen] if chosen else unfinished
        row.current.sort(key=lambda draft: draft.number)
        if unfinished or chosen is None:
            return
        if passed is None and row.started < self._drafts.tries:
            self.begin(row, slot=chosen.slot)
        else:
            self._accept(row, chosen, gave_up=passed is None)

    def _accept(self, row: _Row, chosen: _Draft, *, gave_up: bool) -> None:
        """Continue a row with a draft, and begin its next sentence unless the text ends."""
        row.ids += chosen.ids
        row.ngrams.extend(chosen.ids)
        row.current = []
        if chosen.whole:
            row.sentences += 1
            row.drafts += row.started if gave_up else chosen.number + 1
            row.gave_up += gave_up
            row.started = 0
            self._drafts.accept(row.number, chosen.text)
            if len(row.ids) < self._decoding.max_new_tokens:
                self.begin(row, slot=chosen.slot)

    def _append(self, draft: _Draft, token: int) -> None:
        """Append a draft's next token, and check whether it is done."""
        if token in self._ends:
            draft.done = True
        else:
            draft.ids.append(token)
            draft.ngrams.append(token)
            piece = self._piece(token) if draft.joined else None
            draft.joined = piece is not None
            draft.text = self._text(draft, draft.ids) if piece is None else draft.text + piece
            draft.done = len(draft.row.ids) + len(draft.ids) >= self._decoding.max_new_tokens
        end = self._drafts.end(draft.row.number, draft.text, last=draft.done)
        if end is not None:
            draft.whole = draft.done = True
            self._cut(draft, end)

    def _cut(self, draft: _Draft, end: int) -> None:
        """Remove the tokens after the end of the sentence, which were only needed to see that it ends."""
        while len(draft.ids) > 1:
            text = self._text(draft, draft.ids[:-1])
            if len(text) < end:
                return
            draft.ids, draft.text = draft.ids[:-1], text

    def _piece(self, token: int) -> str | None:
        """A token's own text if it is whole characters and texts are joined from such."""
        pieces = self._tokenizer.pieces
        text = _CUT if pieces is None else pieces[token].decode(errors="replace")
        return None if _CUT in text else text

    def _text(self, draft: _Draft, ids: Sequence[int]) -> str:
        """The text that ids add to the draft's row; some tokenizers drop a space at the start of a text."""
        before = [*draft.row.prompt[-1:], *draft.row.ids][-1:]
        start, text = self._tokenizer.decode([before, [*before, *ids]])
        return text[len(start) :]


def draft_seed(row: int, sentence: int, draft: int) -> int:
    """The seed of one draft."""
    digest = hashlib.blake2b(f"{row} {sentence} {draft}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class CachedRows:
    """Texts in a model's key-value cache, padded on the left."""

    def __init__(self, model: CausalLM, prompts: Sequence[Sequence[int]], *, fill_id: int) -> None:
        self._model = model
        self._device = device_of(model)
        self._accepted = forward_parameters(model)
        self._context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._cache = _full_cache(model, self._accepted)
        ids, real = pad_left(prompts, fill_id=fill_id, device=self._device)
        self._mask = real[:, :0]
        self._forward(ids, real)

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Keep the first ``lengths[i]`` ids of ``rows[i]``; a row may be listed several times."""
        source = torch.tensor(rows, dtype=torch.long, device=self._device)
        kept = torch.tensor(lengths, dtype=torch.long, device=self._device).unsqueeze(1)
        width = max(lengths)
        dropped = self._mask.sum(dim=1)[source].unsqueeze(1) - kept
        new = torch.arange(width, device=self._device)
        columns = (new + self._mask.shape[1] - width - dropped).clamp(min=0)
        self._mask = (new >= width - kept).long()
        for layer in self._cache.layers:
            if layer.is_initialized:  # layers that share another one's keys are not
                for name in ("keys", "values"):  # (rows, heads, columns, dimension)
                    before = getattr(layer, name).transpose(1, 2)
                    setattr(layer, name, before[source.unsqueeze(1), columns].transpose(1, 2))

    def extend(self, tokens: Sequence[int]) -> torch.Tensor:
        """Append an id to each row; returns the logits (rows, vocab) of the next."""
        ids = torch.tensor(tokens, dtype=torch.long, device=self._device).unsqueeze(1)
        return self._forward(ids, torch.ones_like(ids))

    def _forward(self, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Append ids (rows, n), of which some are padding; returns the logits (rows, vocab) of the next."""
        before = self._mask.sum(dim=1, keepdim=True)
        self._mask = torch.cat((self._mask, real), dim=1)
        inputs: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": self._mask,
            "past_key_values": self._cache,
            "use_cache": True,
            "return_dict": True,
        }
        if "position_ids" in self._accepted:  # models with relative positions use only the mask
            positions = before + real.cumsum(dim=1) - 1
            # drafts that are done grow, too, until they are cut or dropped
            most = None if self._context is None else self._context - 1
            inputs["position_ids"] = positions.clamp(min=0, max=most)
        if "logits_to_keep" in self._accepted:
            inputs["logits_to_keep"] = 1
        with growing_attention(ids.device):
            logits: torch.Tensor = self._model(**inputs).logits[:, -1]
        return logits


def _full_cache(model: CausalLM, accepted: frozenset[str]) -> Any:  # noqa: ANN401 - a cache of transformers
    """An empty cache of all keys and values: one that keeps only a window could not cut its rows."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    own = DynamicCache(config=model.config).layers
    if "past_key_values" not in accepted or {type(x) for x in own} - {
        DynamicLayer,
        DynamicSlidingWindowLayer,
    }:
        raise ModelError(
            f"{type(model).__name__} has no key-value cache that can be copied row by row, which "
            "drafts need: use another host, or a scheme that marks token by token"
        )
    return DynamicCache()
