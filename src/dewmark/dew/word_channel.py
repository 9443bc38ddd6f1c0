"""Marking word by word on a host that writes token by token.

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
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.dew.channels import Channel, padding_of
from dewmark.dew.words import WordReader
from dewmark.embeddings.streams import Spelling, TokenStream, extend

if TYPE_CHECKING:
    from dewmark.dew.bound import BoundDEW
    from dewmark.dew.folded import Fold

__all__ = ["WordChannel", "WordReading", "WordRow", "likely_of"]

_LEAST = 0.01  # probability from which a candidate that makes a word longer is scored
_NO_WORD, _ASK = 0, -1
_AT_ONCE = 8192

Window = tuple[str, ...]


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
        self._seen: set[Window] = set()
        self.window: Window = self.stream.recent(k)

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
        windows: dict[Window, int] = {window: i for i, window in enumerate({row.window: 0 for row in rows})}
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
        windows: dict[Window, int],
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

    def _scaled(self, windows: Sequence[Window]) -> NDArray[np.float32]:
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
