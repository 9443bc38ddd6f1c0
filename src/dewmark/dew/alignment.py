"""How a mark reads a batch of texts while they grow: each candidate's alignment u with what came before.

A `Channel` belongs to one session. `TokenChannel` reads the host's tokens: with composed contexts a step is
one gather of k token vectors, one d_C x d_C product, one gather of m rows and one dot product, all on the
logits' device; on CUDA the bias goes through `dewmark.cuda.bias_step`. `dewmark.dew.alignment` reads words.

Marking word by word on a host that writes token by token.

A candidate that begins a word is scored as that word, after the k words before it. One that makes the last
word longer is scored as the longer word, after the words before that one: "run" and then "ning" are two
choices in one context. Candidates that make no word carry no mark.

Most candidates of a spaced script begin a word, the same one in every text: their rows are looked up by
token id, on the logits' device. The rest are asked of each row's `TokenStream`, and a word that no
token makes alone is encoded when it first occurs. Unlikely ones (under `_LEAST`) are not worth that: they go
without a mark.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.cuda.bias_step import Steps
from dewmark.cuda.window_contexts import Window, window_rows
from dewmark.dew.projection import scale_contexts_torch
from dewmark.dew.reading import TokenReader, WordReader
from dewmark.encoders.contexts import ComposedContexts
from dewmark.text.growing_text import Spelling, TokenStream, extend
from dewmark.text.windows import ABSENT
from dewmark.workspace import Tokenizer

if TYPE_CHECKING:
    from dewmark.dew.projection import Fold
    from dewmark.dew.scheme import BoundDEW

__all__ = ["Channel", "TokenChannel", "WordChannel", "WordReading", "WordRow", "likely_of", "padding_of"]


class Channel(ABC):
    """Reads one batch of texts while they grow."""

    @abstractmethod
    def alignments(self, ids: torch.Tensor, candidates: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """u of the candidates (batch, m) for what follows ids (batch, length), float32.

        ``scores`` (batch, vocab) are the logits they were taken from. An exact 0 is a candidate, or a
        context, that carries no mark. Called once a step.
        """

    @abstractmethod
    def repeated(self, ids: torch.Tensor) -> torch.Tensor:
        """Whether each row's context (batch, 1) occurred earlier in that row; asked after `alignments`."""

    def ahead(self, ids: torch.Tensor) -> None:  # noqa: B027 - most have nothing to begin
        """Begin what the next `alignments` need of ids (batch, length), before the logits are there."""


def padding_of(
    tokenizer: Tokenizer, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
) -> torch.Tensor:
    """How many of each row's ids (batch, length) are padding on the left: (batch, 1)."""
    if attention_mask is None:
        pad = tokenizer.pad_id
        attention_mask = (prompt_ids != pad) if pad is not None else torch.ones_like(prompt_ids)
    if not prompt_ids.shape[1]:
        return prompt_ids.new_zeros(len(prompt_ids), 1)
    # argmax finds the first True: the length of the leading run of padding
    return attention_mask.to(torch.int8).argmax(dim=1).unsqueeze(1)


@dataclass(frozen=True)
class DeviceTables:
    """A bound scheme's tables on one device, shared by all its sessions there.

    Q (vocab, d_C) and G (d_C, d_C), float32. ``context_rows`` (vocab + 1, d_C) has one row more, for places
    where nothing stands; it and those of special tokens are zero. Without composed contexts there are none.
    """

    Q: torch.Tensor
    G: torch.Tensor
    context_rows: torch.Tensor | None

    @classmethod
    def of(cls, bound: BoundDEW, device: torch.device) -> DeviceTables:
        """The tables of a scheme that reads host tokens."""
        return bound.shared(f"tables on {device}", lambda: cls._made(bound, device))

    @classmethod
    def _made(cls, bound: BoundDEW, device: torch.device) -> DeviceTables:
        reader = bound.reader
        assert isinstance(reader, TokenReader)
        context_rows = None
        if isinstance(reader.contexts, ComposedContexts):
            rows = torch.from_numpy(np.array(reader.contexts.table))  # a copy: it may be a read-only map
            rows[[i for i in bound.host.tokenizer.special_ids if i < len(rows)]] = 0.0
            context_rows = torch.cat((rows, rows.new_zeros(1, rows.shape[1]))).to(device)
        return cls(
            Q=torch.from_numpy(bound.fold.table(reader.token_rows, source=bound.source)).to(device),
            G=torch.from_numpy(np.ascontiguousarray(bound.fold.G)).to(device),
            context_rows=context_rows,
        )


class TokenChannel(Channel):
    """Reads the host's tokens."""

    def __init__(
        self,
        bound: BoundDEW,
        reader: TokenReader,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
    ) -> None:
        self._bound = bound
        self._contexts = bound.hashed or reader.contexts
        self._tables = DeviceTables.of(bound, prompt_ids.device)
        self._k = reader.k
        self.absent = bound.host.vocab_size  # the extra, empty row of the tables
        self._no_text = frozenset(bound.host.tokenizer.special_ids) | {self.absent}
        self._padding = padding_of(bound.host.tokenizer, prompt_ids, attention_mask)
        self._padded = int(self._padding.max()) if len(prompt_ids) else 0  # waits for the device, once
        device, tables, contexts = prompt_ids.device, self._tables, self._contexts
        self._steps = bound.shared(f"steps on {device}", lambda: Steps(bound.scheme, tables, n=bound.fold.n))
        self._encoded = bound.shared(f"windows on {device}", lambda: window_rows(contexts, device))
        self._begun: tuple[int, torch.Tensor] | None = None  # a length, and the contexts at its end

    def alignments(self, ids: torch.Tensor, candidates: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """u of the candidates (batch, m)."""
        return self._aligned(self._after(ids), candidates)

    def ahead(self, ids: torch.Tensor) -> None:
        """Begin to encode the windows at the end of ids (batch, length)."""
        if self._encoded is not None:
            self._begun = (ids.shape[1], self._encoded.begin(self._listed(self._windows(ids))))

    def of_windows(self, windows: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """u of the candidates (batch, m) after windows (batch, k) of ids; `absent` stands where none is."""
        return self._aligned(self._contexts_of(windows), candidates)

    def _aligned(self, contexts: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        scaled = scale_contexts_torch(contexts, self._tables.G, self._bound.fold.n)
        return (torch.nn.functional.embedding(candidates, self._tables.Q) @ scaled.unsqueeze(-1)).squeeze(-1)

    def biased(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with the bias added, where `can_fuse` says so."""
        composed = self._tables.context_rows is not None
        return self._steps(self._windows(ids) if composed else self._after(ids), scores)

    def biased_after(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The same after windows (batch, k) of ids."""
        composed = self._tables.context_rows is not None
        return self._steps(windows if composed else self._contexts_of(windows), scores)

    def repeated(self, ids: torch.Tensor) -> torch.Tensor:
        """Whether each row's window occurred earlier in that row, (batch, 1)."""
        if ids.shape[1] <= self._k:
            return torch.zeros((len(ids), 1), dtype=torch.bool, device=ids.device)
        windows = ids.unfold(1, self._k, 1)
        return (windows[:, :-1] == windows[:, -1:]).all(dim=-1).any(dim=-1, keepdim=True)

    def _windows(self, ids: torch.Tensor) -> torch.Tensor:
        """The last k ids of each row (batch, k); padding becomes the empty row."""
        k, length = self._k, ids.shape[1]
        if length >= self._padded + k:  # no padding is in sight
            return ids[:, -k:]
        if length < k:
            ids = torch.nn.functional.pad(ids, (k - length, 0), value=self.absent)
        first = torch.arange(length - k, length, device=ids.device).unsqueeze(0)
        return ids[:, -k:].masked_fill(first < self._padding, self.absent)

    def _listed(self, windows: torch.Tensor) -> list[Window]:
        """Windows (batch, k) on the CPU, without special tokens, which stand for no text."""
        columns, none = windows.t().tolist(), self._no_text
        if not none.isdisjoint(chain.from_iterable(columns)):
            columns = [[ABSENT if i in none else i for i in column] for column in columns]
        return list(zip(*columns, strict=True))

    def _after(self, ids: torch.Tensor) -> torch.Tensor:
        """e_C (batch, d_C) of what follows ids (batch, length): begun ahead, or computed now."""
        if self._encoded is not None and self._begun is not None and self._begun[0] == ids.shape[1]:
            return self._encoded.ready(self._begun[1])
        return self._contexts_of(self._windows(ids))

    def _contexts_of(self, windows: torch.Tensor) -> torch.Tensor:
        """e_C (batch, d_C) of windows (batch, k), float32, of any length."""
        if self._tables.context_rows is not None:
            return self._tables.context_rows[windows].float().sum(dim=1)
        listed = self._listed(windows)
        if self._encoded is not None:
            return self._encoded.ready(self._encoded.begin(listed))
        assert self._contexts is not None
        vectors = self._contexts.vectors(np.array(listed, dtype=np.int64).reshape(windows.shape))
        return torch.from_numpy(vectors).to(windows.device)


_LEAST = 0.01  # probability from which a candidate that makes a word longer is scored

_NO_WORD, _ASK = 0, -1

_AT_ONCE = 8192

WordWindow = tuple[str, ...]


class WordRows:
    """Rows of Q by word, on one device; row 0 is zero. They grow as new words turn up."""

    def __init__(self, reader: WordReader, fold: Fold, device: torch.device) -> None:
        self._reader = reader
        self._fold = fold
        self._index: dict[str, int] = {}
        self._lock = threading.Lock()
        self.rows = torch.zeros(1, reader.vectors.dim, device=device)

    def index(self, words: Sequence[str]) -> list[int]:
        """The row of each word; words that are new get one."""
        with self._lock:
            new = [word for word in dict.fromkeys(words) if word not in self._index]
            for i in range(0, len(new), _AT_ONCE):
                self._add(new[i : i + _AT_ONCE])
            return [self._index[word] for word in words]

    def _add(self, new: list[str]) -> None:
        fresh = torch.from_numpy(self._fold.rows(self._reader.tokens.vectors(new)))
        start, end = len(self._index) + 1, len(self._index) + 1 + len(new)
        if end > len(self.rows):
            grown = self.rows.new_zeros(max(end, 2 * len(self.rows)), self.rows.shape[1])
            grown[:start] = self.rows[:start]
            self.rows = grown
        self.rows[start:end] = fresh.to(self.rows.device)
        self._index.update(zip(new, range(start, end), strict=True))


class Vocabulary:
    """A host's vocabulary as words under one key: which row of `WordRows` each token begins."""

    def __init__(self, bound: BoundDEW, reader: WordReader, device: torch.device) -> None:
        host = bound.host
        self.spelling = Spelling(host.tokenizer, host.vocab_size)
        reader.vectors.prepare(self.spelling.forms(), progress=bound.progress)
        self.words = WordRows(reader, bound.fold, device)
        begun: dict[int, str] = {}
        rows = np.full(host.vocab_size, _NO_WORD, dtype=np.int64)
        for token, piece in enumerate(self.spelling.pieces):
            made = extend("", piece)
            if not piece[:1].isspace() or made.between:
                rows[token] = _NO_WORD if piece == "" else _ASK  # it depends on what stands before
            elif made.form is not None:
                begun[token] = made.form
        rows[list(begun)] = self.words.index(list(begun.values()))
        self.begins = torch.from_numpy(rows).to(device)


class WordRow:
    """One text as words while it grows: the words before its next one, and those that stood there earlier."""

    def __init__(self, spelling: Spelling, prompt: Sequence[int], *, k: int) -> None:
        self.stream = TokenStream(spelling, prompt)
        self._k = k
        self._seen: set[WordWindow] = set()
        self.window: WordWindow = self.stream.recent(k)

    def push(self, token: int) -> None:
        """The text goes on with one token."""
        self.stream.push(token)
        window = self.stream.recent(self._k)
        if window != self.window:
            self._seen.add(self.window)
            self.window = window

    @property
    def repeated(self) -> bool:
        """Whether the words before the next word stood before another word already."""
        return self.window in self._seen


class WordReading:
    """Reads any rows of texts under one key, on one device."""

    def __init__(self, bound: BoundDEW, reader: WordReader, device: torch.device) -> None:
        self._vocabulary = bound.shared(f"words on {device}", lambda: Vocabulary(bound, reader, device))
        self._reader, self._fold = reader, bound.fold

    def row(self, prompt: Sequence[int]) -> WordRow:
        """Begin to read a text."""
        return WordRow(self._vocabulary.spelling, prompt, k=self._reader.k)

    def alignments(
        self, rows: Sequence[WordRow], candidates: torch.Tensor, likely: torch.Tensor
    ) -> torch.Tensor:
        """u of the candidates (batch, m); ``likely`` (batch, m) says which are worth asking the row for."""
        begins = self._vocabulary.begins[candidates]
        asked = begins == _ASK
        windows: dict[WordWindow, int] = {
            window: i for i, window in enumerate({row.window: 0 for row in rows})
        }
        own = [windows[row.window] for row in rows]
        places, forms, contexts = self._ask(rows, candidates, asked & likely, windows)
        index = self._vocabulary.words.index(forms)
        scaled = torch.from_numpy(self._scaled(list(windows))).to(candidates.device)
        Q = self._vocabulary.words.rows
        found = torch.nn.functional.embedding(begins.masked_fill(asked, _NO_WORD), Q)
        u = (found @ scaled[own].unsqueeze(-1)).squeeze(-1)
        if places:
            at = torch.tensor(places, device=u.device)
            u[at[:, 0], at[:, 1]] = (Q[index] * scaled[contexts]).sum(dim=-1)
        return u

    def _ask(
        self,
        rows: Sequence[WordRow],
        candidates: torch.Tensor,
        asked: torch.Tensor,
        windows: dict[WordWindow, int],
    ) -> tuple[list[tuple[int, int]], list[str], list[int]]:
        """For the candidates that depend on the text: place (row, column), word, and index into windows."""
        places: list[tuple[int, int]] = []
        forms: list[str] = []
        contexts: list[int] = []
        where = asked.nonzero().tolist()
        tokens = candidates[asked].tolist()
        start = 0
        while start < len(where):
            row = where[start][0]
            end = start
            while end < len(where) and where[end][0] == row:
                end += 1
            stream = rows[row].stream
            for place, made in zip(where[start:end], stream.candidates(tokens[start:end]), strict=True):
                if made.form is not None:
                    window = stream.context(made, k=self._reader.k)
                    places.append((place[0], place[1]))
                    forms.append(made.form)
                    contexts.append(windows.setdefault(window, len(windows)))
            start = end
        return places, forms, contexts

    def _scaled(self, windows: Sequence[WordWindow]) -> NDArray[np.float32]:
        return self._fold.contexts(self._reader.contexts.vectors(windows))


class WordChannel(Channel):
    """Reads the words that the host's tokens make."""

    def __init__(
        self,
        bound: BoundDEW,
        reader: WordReader,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
    ) -> None:
        self._reading = WordReading(bound, reader, prompt_ids.device)
        padding = padding_of(bound.host.tokenizer, prompt_ids, attention_mask).flatten().tolist()
        self._rows = [
            self._reading.row(row[pad:]) for row, pad in zip(prompt_ids.tolist(), padding, strict=True)
        ]
        self._length = prompt_ids.shape[1]

    def alignments(self, ids: torch.Tensor, candidates: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """u of the candidates (batch, m)."""
        for row, new in zip(self._rows, ids[:, self._length :].tolist(), strict=True):
            for token in new:
                row.push(token)
        self._length = ids.shape[1]
        likely = likely_of(scores.gather(1, candidates), scores.logsumexp(dim=-1, keepdim=True))
        return self._reading.alignments(self._rows, candidates, likely)

    def repeated(self, ids: torch.Tensor) -> torch.Tensor:
        """Whether the words before each row's next word stood before another word already, (batch, 1)."""
        return torch.tensor([row.repeated for row in self._rows], device=ids.device).unsqueeze(1)


def likely_of(logits: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Which candidates (batch, m) are worth asking for; ``total`` (batch, 1) is their logsumexp."""
    return logits - total >= math.log(_LEAST)
