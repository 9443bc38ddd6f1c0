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

__all__ = ["WordChannel"]

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


class WordChannel(Channel):
    """Reads the words that the host's tokens make."""

    def __init__(
        self,
        bound: BoundDEW,
        reader: WordReader,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
    ) -> None:
        device = prompt_ids.device
        self._vocabulary = bound.shared(f"words on {device}", lambda: Vocabulary(bound, reader, device))
        self._reader, self._fold = reader, bound.fold
        padding = padding_of(bound.host.tokenizer, prompt_ids, attention_mask).flatten().tolist()
        self._streams = [
            TokenStream(self._vocabulary.spelling, row[pad:])
            for row, pad in zip(prompt_ids.tolist(), padding, strict=True)
        ]
        self._length = prompt_ids.shape[1]
        self._windows: list[Window] = [()] * len(self._streams)
        self._seen: list[set[Window]] = [set() for _ in self._streams]

    def alignments(self, ids: torch.Tensor, candidates: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """u of the candidates (batch, m)."""
        self._follow(ids)
        begins = self._vocabulary.begins[candidates]
        asked = begins == _ASK
        likely = scores.gather(1, candidates) - scores.logsumexp(dim=-1, keepdim=True) >= math.log(_LEAST)
        windows: dict[Window, int] = {window: i for i, window in enumerate(dict.fromkeys(self._windows))}
        own = [windows[window] for window in self._windows]
        places, forms, contexts = self._ask(candidates, asked & likely, windows)
        rows = self._vocabulary.words.index(forms)
        scaled = torch.from_numpy(self._scaled(list(windows))).to(scores.device)
        Q = self._vocabulary.words.rows
        u = (Q[begins.masked_fill(asked, _NO_WORD)] @ scaled[own].unsqueeze(-1)).squeeze(-1)
        if places:
            at = torch.tensor(places, device=u.device)
            u[at[:, 0], at[:, 1]] = (Q[rows] * scaled[contexts]).sum(dim=-1)
        return u

    def repeated(self, ids: torch.Tensor) -> torch.Tensor:
        """Whether the words before each row's next word stood before another word already, (batch, 1)."""
        found = [window in seen for window, seen in zip(self._windows, self._seen, strict=True)]
        return torch.tensor(found, device=ids.device).unsqueeze(1)

    def _follow(self, ids: torch.Tensor) -> None:
        """Let the streams read what was written since the last step."""
        for stream, new in zip(self._streams, ids[:, self._length :].tolist(), strict=True):
            for token in new:
                stream.push(token)
        self._length = ids.shape[1]
        for i, stream in enumerate(self._streams):
            window = stream.recent(self._reader.k)
            if window != self._windows[i]:
                self._seen[i].add(self._windows[i])
                self._windows[i] = window

    def _ask(
        self, candidates: torch.Tensor, asked: torch.Tensor, windows: dict[Window, int]
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
            stream = self._streams[row]
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
