"""How well each candidate fits the words before it, u, while texts of any words are being written.

A candidate that begins a word is scored as that word, after the k words before it. One that extends the last
word is scored as the longer word, after the words before that one: "run" and then "ning" are two choices in
one context. Other candidates carry no mark.

In scripts with spaces most candidates begin a word, the same one in every text, so their rows are looked up
by token id on the device. The rest depend on the text, and a word that no single token makes is encoded when
it first occurs; candidates less likely than `_LEAST` are not worth that and carry no mark.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dewmark.arrays import F32
from dewmark.dew.open.reading import OpenReader
from dewmark.dew.sessions import Aligner, Batch, Texts
from dewmark.encoders.word_vectors import times_counted
from dewmark.sampling import left_padding
from dewmark.text.growing_text import Spelling, TokenStream, extend
from dewmark.workspace import HostInfo, Progress

_LEAST = 0.01  # probability from which a candidate that extends a word is scored
_NO_WORD, _DEPENDS = 0, -1  # rows of tokens that make no word, or one that depends on the text
_WORDS_AT_ONCE = 8192
_PROMPT = 512  # ids at a prompt's end that hold the words of any context

WordWindow = tuple[str, ...]


class _WordRows:
    """Rows of Q = Ê_T W by word on one device, growing as new words occur; row 0 is zero."""

    def __init__(self, reader: OpenReader, W: F32, device: torch.device) -> None:
        self._reader = reader
        self._W = W
        self._index: dict[str, int] = {}
        self._lock = threading.Lock()
        self.rows = torch.zeros(1, W.shape[1], device=device)

    def index(self, words: Sequence[str]) -> list[int]:
        """The row number of each word; new words get one."""
        with self._lock:
            new = [word for word in dict.fromkeys(words) if word not in self._index]
            for i in range(0, len(new), _WORDS_AT_ONCE):
                self._add(new[i : i + _WORDS_AT_ONCE])
            return [self._index[word] for word in words]

    def known(self, words: Collection[str]) -> list[int]:
        """The row numbers of those words that have one."""
        with self._lock:
            return [self._index[word] for word in words if word in self._index]

    def _add(self, new: list[str]) -> None:
        fresh = torch.from_numpy(self._reader.tokens.vectors(new) @ self._W)
        start, end = len(self._index) + 1, len(self._index) + 1 + len(new)
        if end > len(self.rows):
            grown = self.rows.new_zeros(max(end, 2 * len(self.rows)), self.rows.shape[1])
            grown[:start] = self.rows[:start]
            self.rows = grown
        self.rows[start:end] = fresh.to(self.rows.device)
        self._index.update(zip(new, range(start, end), strict=True))


class WordAligner(Aligner["WordText"]):
    """Scores words under one key, on one device."""

    def __init__(
        self, host: HostInfo, reader: OpenReader, W: F32, device: torch.device, *, progress: Progress
    ) -> None:
        self.k = reader.k
        self.device = device
        self.pad_id = host.tokenizer.pad_id
        self.spelling = Spelling(host.tokenizer, host.vocab_size)
        self._contexts = reader.contexts
        reader.vectors.prepare(self.spelling.forms(), progress=progress)
        self._words = _WordRows(reader, W, device)
        begun: dict[int, str] = {}
        rows = np.full(host.vocab_size, _NO_WORD, dtype=np.int64)
        for token, piece in enumerate(self.spelling.pieces):
            made = extend("", piece)
            if not piece[:1].isspace() or made.between:
                rows[token] = _NO_WORD if piece == "" else _DEPENDS
            elif made.form is not None:
                begun[token] = made.form
        rows[list(begun)] = self._words.index(list(begun.values()))
        self._begins = torch.from_numpy(rows).to(device)

    def begin(self, prompt: Sequence[int]) -> WordText:
        """Start following a text."""
        return WordText(self.spelling, prompt[-_PROMPT:], k=self.k)

    def together(self, texts: Sequence[WordText]) -> WordTexts:
        """Single texts as those of one step."""
        return WordTexts(self, texts)

    def batch(self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> WordBatch:
        """The texts of a session that begins with prompts (batch, length)."""
        return WordBatch(self, prompt_ids, attention_mask)

    def alignments(
        self, texts: Sequence[WordText], candidates: torch.Tensor, likely: torch.Tensor
    ) -> torch.Tensor:
        """u of candidates (batch, m); ``likely`` (batch, m) are those worth looking up in the text."""
        begins = self._begins[candidates]
        depends = begins == _DEPENDS
        windows: dict[WordWindow, int] = {}
        own = [windows.setdefault(text.window, len(windows)) for text in texts]
        places, forms, contexts = self._extended(texts, candidates, depends & likely, windows)
        index = self._words.index(forms)
        scaled = torch.from_numpy(self._contexts.vectors(list(windows))).to(candidates.device)
        Q = self._words.rows
        begins = begins.masked_fill(depends | self._used_up(texts, begins), _NO_WORD)
        found = torch.nn.functional.embedding(begins, Q)
        u = (found @ scaled[own].unsqueeze(-1)).squeeze(-1)
        if places:
            at = torch.tensor(places, device=u.device)
            u[at[:, 0], at[:, 1]] = (Q[index] * scaled[contexts]).sum(dim=-1)
        return u

    def _used_up(self, texts: Sequence[WordText], begins: torch.Tensor) -> torch.Tensor:
        """Whether the words that candidates begin, rows (batch, m), carry no mark in their text any more."""
        rows = [self._words.known(text.used_up) for text in texts]
        width = max(map(len, rows), default=0)
        if not width:
            return torch.zeros_like(begins, dtype=torch.bool)
        padded = torch.tensor([row + [-2] * (width - len(row)) for row in rows], device=begins.device)
        return (begins.unsqueeze(2) == padded.unsqueeze(1)).any(dim=2)

    def _extended(
        self,
        texts: Sequence[WordText],
        candidates: torch.Tensor,
        wanted: torch.Tensor,
        windows: dict[WordWindow, int],
    ) -> tuple[list[tuple[int, int]], list[str], list[int]]:
        """Place (row, column), word and context index of each wanted candidate that makes a word."""
        places: list[tuple[int, int]] = []
        forms: list[str] = []
        contexts: list[int] = []
        where = wanted.nonzero().tolist()
        tokens = candidates[wanted].tolist()
        start = 0
        while start < len(where):
            row = where[start][0]
            end = start
            while end < len(where) and where[end][0] == row:
                end += 1
            stream = texts[row].stream
            for place, made in zip(where[start:end], stream.candidates(tokens[start:end]), strict=True):
                if made.form is not None and made.form not in texts[row].used_up:
                    window = stream.context(made, k=self.k)
                    places.append((place[0], place[1]))
                    forms.append(made.form)
                    contexts.append(windows.setdefault(window, len(windows)))
            start = end
        return places, forms, contexts


class WordCounter:
    """The words of one growing text that have carried the mark as often as they may."""

    def __init__(self, stream: TokenStream) -> None:
        self._counts: Counter[str] = Counter()
        self._finished = stream.finished
        self._used_up: set[str] = set()
        self.used_up: Collection[str] = ()

    def update(self, stream: TokenStream) -> None:
        """Count the words that were finished since the last call, and look at those still open."""
        for form in stream.finished_since(self._finished):
            self._counts[form] += 1
            if self._counts[form] >= times_counted(form):
                self._used_up.add(form)
        self._finished = stream.finished
        now = (form for form in stream.unfinished if self._counts[form] + 1 >= times_counted(form))
        self.used_up = self._used_up.union(now)


class WordText:
    """One text as words while it grows: the words before its next one, and all earlier such windows."""

    def __init__(self, spelling: Spelling, prompt: Sequence[int], *, k: int) -> None:
        self.stream = TokenStream(spelling, prompt)
        self._k = k
        self._counter = WordCounter(self.stream)
        self._seen: set[WordWindow] = set()
        self.window: WordWindow = self.stream.recent(k)

    @property
    def used_up(self) -> Collection[str]:
        """The words of the text that carry no mark if they come again."""
        return self._counter.used_up

    def push(self, token: int) -> None:
        """Append one token."""
        self.stream.push(token)
        self._counter.update(self.stream)
        window = self.stream.recent(self._k)
        if window != self.window:
            self._seen.add(self.window)
            self.window = window

    @property
    def repeated(self) -> bool:
        """Whether the words before the next word have preceded another word already."""
        return self.window in self._seen


@dataclass(frozen=True)
class WordTexts(Texts):
    """Texts as words."""

    aligner: WordAligner
    rows: Sequence[WordText]

    def alignments(
        self, candidates: torch.Tensor, values: torch.Tensor, log_totals: torch.Tensor
    ) -> torch.Tensor:
        """u of the candidates (batch, m)."""
        return self.aligner.alignments(self.rows, candidates, values - log_totals >= math.log(_LEAST))

    def repeated(self) -> torch.Tensor:
        """Whether the words before each text's next word have preceded another word already, (batch, 1)."""
        return torch.tensor([text.repeated for text in self.rows], device=self.aligner.device).unsqueeze(1)


class WordBatch(Batch[Texts]):
    """Follows the words that the tokens of a session's texts make."""

    def __init__(
        self, aligner: WordAligner, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> None:
        self._aligner = aligner
        padding = left_padding(prompt_ids, attention_mask, pad_id=aligner.pad_id).flatten().tolist()
        self._rows = [aligner.begin(row[pad:]) for row, pad in zip(prompt_ids.tolist(), padding, strict=True)]
        self._length = prompt_ids.shape[1]

    def texts(self, ids: torch.Tensor) -> WordTexts:
        """The texts at ids (batch, length)."""
        for row, new in zip(self._rows, ids[:, self._length :].tolist(), strict=True):
            for token in new:
                row.push(token)
        self._length = ids.shape[1]
        return WordTexts(self._aligner, self._rows)
