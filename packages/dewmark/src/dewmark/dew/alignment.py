"""How well each candidate fits the context it would follow: u, while texts are being written.

An *aligner* belongs to one key on one device and is shared by all sessions there. `TokenAligner` scores the
host's tokens: with composed contexts a step is one gather of k token vectors, one d_C x d_C product, one
gather of m rows and one dot product, all on the logits' device.

`WordAligner` scores words on a host that writes tokens. A candidate that begins a word is scored as that
word, after the k words before it. One that extends the last word is scored as the longer word, after the
words before that one: "run" and then "ning" are two choices in one context. Other candidates carry no mark.
In scripts with spaces most candidates begin a word, the same one in every text, so their rows are looked up
by token id on the device. The rest depend on the text, and a word that no single token makes is encoded when
it first occurs; candidates less likely than `_LEAST` are not worth that and carry no mark.

*Texts* say what a batch's next tokens depend on: `TokenTexts`, `WordTexts`. The classes that follow a batch
while it grows produce them: `TokenBatch` and `WordBatch` for sessions, `TokenText` and `WordText` for one
text each.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dewmark.arrays import F32
from dewmark.dew.projection import Fold, scale_contexts
from dewmark.dew.reading import TokenReader, WordReader
from dewmark.dew.word_step import Aligned, WordStates, WordTables
from dewmark.encoders.contexts import ComposedContexts, Contexts
from dewmark.encoders.word_vectors import times_counted
from dewmark.sampling import left_padding
from dewmark.text.growing_text import Spelling, TokenStream, extend
from dewmark.text.windows import ABSENT
from dewmark.workspace import HostInfo, Progress

_LEAST = 0.01  # probability from which a candidate that extends a word is scored
_NO_WORD, _DEPENDS = 0, -1  # rows of tokens that make no word, or one that depends on the text
_WORDS_AT_ONCE = 8192

WordWindow = tuple[str, ...]


class Texts(ABC):
    """What the next tokens of a batch of texts depend on, at one step."""

    @abstractmethod
    def alignments(
        self, candidates: torch.Tensor, values: torch.Tensor, log_totals: torch.Tensor
    ) -> torch.Tensor:
        """u of the candidates (batch, m), float32; an exact 0 is a candidate or context without a mark.

        ``values`` (batch, m) are their logits, ``log_totals`` (batch, 1) the log-sum-exp of all logits.
        """

    @abstractmethod
    def repeated(self) -> torch.Tensor:
        """Whether each text's context has occurred before in that text, (batch, 1)."""


class Batch(ABC):
    """Follows the texts of one session while they grow."""

    @abstractmethod
    def texts(self, ids: torch.Tensor) -> Texts:
        """The texts at ids (batch, length); called once per step."""


# Tokens


class TokenAligner:
    """Scores the host's tokens under one key, on one device."""

    def __init__(
        self,
        reader: TokenReader,
        fold: Fold,
        contexts: Contexts,
        device: torch.device,
        *,
        source: np.ndarray | None = None,
    ) -> None:
        special = reader.host.tokenizer.special_ids
        self.k = reader.k
        self.device = device
        self.pad_id = reader.host.tokenizer.pad_id
        self.absent = reader.host.vocab_size  # the id of the extra, empty context row
        self._no_text = [*special, self.absent]
        self._contexts = contexts
        self._n = fold.n
        self._Q = torch.from_numpy(fold.table(reader.token_rows, source=source)).to(device)
        assert fold.G is not None, "tokens have R_T and R_C"
        self._G = torch.from_numpy(np.ascontiguousarray(fold.G)).to(device)
        self._context_rows = None
        if isinstance(contexts, ComposedContexts):
            rows = torch.from_numpy(np.array(contexts.table))  # a copy: the table may be a read-only map
            rows[[i for i in special if i < len(rows)]] = 0.0
            self._context_rows = torch.cat((rows, rows.new_zeros(1, rows.shape[1]))).to(device)

    def alignments(self, contexts: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """u of candidates (batch, m) after contexts (batch, d_C) of any norm."""
        scaled = scale_contexts(contexts, self._G, self._n)
        return (torch.nn.functional.embedding(candidates, self._Q) @ scaled.unsqueeze(-1)).squeeze(-1)

    def contexts(self, windows: torch.Tensor) -> torch.Tensor:
        """e_C (batch, d_C) of windows (batch, k) of ids or `absent`, float32, of any norm."""
        if self._context_rows is not None:
            return self._context_rows[windows].float().sum(dim=1)
        listed = windows.cpu().numpy()
        listed = np.where(np.isin(listed, self._no_text), ABSENT, listed)
        return torch.from_numpy(self._contexts.vectors(listed)).to(windows.device)


@dataclass(frozen=True)
class TokenTexts(Texts):
    """Texts by their windows (batch, k)."""

    aligner: TokenAligner
    windows: torch.Tensor
    find_repeated: Callable[[], torch.Tensor]

    def alignments(
        self, candidates: torch.Tensor, values: torch.Tensor, log_totals: torch.Tensor
    ) -> torch.Tensor:
        """u of the candidates (batch, m)."""
        return self.aligner.alignments(self.aligner.contexts(self.windows), candidates)

    def repeated(self) -> torch.Tensor:
        """Whether each window has occurred before in its text, (batch, 1)."""
        return self.find_repeated()


class TokenBatch(Batch):
    """Follows the tokens of a session's texts, without waiting for the device."""

    def __init__(
        self, aligner: TokenAligner, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> None:
        self._aligner = aligner
        self._padding = left_padding(prompt_ids, attention_mask, pad_id=aligner.pad_id)
        self._most_padding = int(self._padding.max()) if len(prompt_ids) else 0  # waits for the device, once

    def texts(self, ids: torch.Tensor) -> TokenTexts:
        """The texts at ids (batch, length)."""
        return TokenTexts(self._aligner, self._windows(ids), lambda: self._repeated(ids))

    def _repeated(self, ids: torch.Tensor) -> torch.Tensor:
        k = self._aligner.k
        if ids.shape[1] <= k:
            return torch.zeros((len(ids), 1), dtype=torch.bool, device=ids.device)
        windows = ids.unfold(1, k, 1)
        return (windows[:, :-1] == windows[:, -1:]).all(dim=-1).any(dim=-1, keepdim=True)

    def _windows(self, ids: torch.Tensor) -> torch.Tensor:
        """The last k ids of each row (batch, k); padding becomes the empty row."""
        k, absent, length = self._aligner.k, self._aligner.absent, ids.shape[1]
        if length >= self._most_padding + k:  # no padding in reach
            return ids[:, -k:]
        if length < k:
            ids = torch.nn.functional.pad(ids, (k - length, 0), value=absent)
        first = torch.arange(length - k, length, device=ids.device).unsqueeze(0)
        return ids[:, -k:].masked_fill(first < self._padding, absent)


class TokenText:
    """The last k ids of one text, and every k-gram of ids it has had."""

    def __init__(self, prompt: Sequence[int], *, k: int) -> None:
        self._k = k
        self.tail: tuple[int, ...] = ()
        self._seen: set[tuple[int, ...]] = set()
        self.repeated = False
        for token in prompt:
            self.push(token)

    def push(self, token: int) -> None:
        """Append one token."""
        if len(self.tail) == self._k:
            self._seen.add(self.tail)
        self.tail = (*self.tail, token)[-self._k :]
        self.repeated = self.tail in self._seen


def token_texts(aligner: TokenAligner, texts: Sequence[TokenText]) -> TokenTexts:
    """Single texts as a batch."""
    absent = (aligner.absent,)
    windows = torch.tensor([absent * (aligner.k - len(text.tail)) + text.tail for text in texts])
    return TokenTexts(aligner, windows.to(aligner.device), lambda: _repeated(texts, aligner.device))


def _repeated(texts: Sequence[TokenText | WordText], device: torch.device) -> torch.Tensor:
    return torch.tensor([text.repeated for text in texts], device=device).unsqueeze(1)


# Words


class _WordRows:
    """Rows of Q by word on one device, growing as new words occur; row 0 is zero."""

    def __init__(self, reader: WordReader, fold: Fold, device: torch.device) -> None:
        self._reader = reader
        self._fold = fold
        self._index: dict[str, int] = {}
        self._lock = threading.Lock()
        self.rows = torch.zeros(1, reader.vectors.dim, device=device)

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
        fresh = torch.from_numpy(self._fold.rows(self._reader.tokens.vectors(new)))
        start, end = len(self._index) + 1, len(self._index) + 1 + len(new)
        if end > len(self.rows):
            grown = self.rows.new_zeros(max(end, 2 * len(self.rows)), self.rows.shape[1])
            grown[:start] = self.rows[:start]
            self.rows = grown
        self.rows[start:end] = fresh.to(self.rows.device)
        self._index.update(zip(new, range(start, end), strict=True))


class WordAligner:
    """Scores words under one key, on one device."""

    def __init__(
        self, host: HostInfo, reader: WordReader, fold: Fold, device: torch.device, *, progress: Progress
    ) -> None:
        self.k = reader.k
        self.device = device
        self.pad_id = host.tokenizer.pad_id
        self.spelling = Spelling(host.tokenizer, host.vocab_size)
        self._contexts = reader.contexts
        self._count_once = reader.count_once
        self._fold = fold
        reader.vectors.prepare(self.spelling.forms(), progress=progress)
        self._words = _WordRows(reader, fold, device)
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
        return WordText(self.spelling, prompt, k=self.k, count_once=self._count_once)

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
        scaled = torch.from_numpy(self._scaled(list(windows))).to(candidates.device)
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

    def _scaled(self, windows: Sequence[WordWindow]) -> F32:
        return self._fold.contexts(self._contexts.vectors(windows))


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

    def __init__(self, spelling: Spelling, prompt: Sequence[int], *, k: int, count_once: bool) -> None:
        self.stream = TokenStream(spelling, prompt)
        self._k = k
        self._counter = WordCounter(self.stream) if count_once else None
        self._seen: set[WordWindow] = set()
        self.window: WordWindow = self.stream.recent(k)

    @property
    def used_up(self) -> Collection[str]:
        """The words of the text that carry no mark if they come again."""
        return self._counter.used_up if self._counter is not None else ()

    def push(self, token: int) -> None:
        """Append one token."""
        self.stream.push(token)
        if self._counter is not None:
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
        return _repeated(self.rows, self.aligner.device)


class WordBatch(Batch):
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


# Words of a lexicon


class LexiconAligner:
    """Scores the words of a lexicon under one key, on one device."""

    def __init__(
        self, tables: WordTables, fold: Fold, *, k: int, pad_id: int | None, fresh_on_repeat: bool
    ) -> None:
        self.tables = tables
        self.k = k
        self.pad_id = pad_id
        self.fresh_on_repeat = fresh_on_repeat
        self.W = torch.from_numpy(fold.product).to(tables.device)

    def begin(self, size: int) -> WordStates:
        """Start following texts."""
        return WordStates(self.tables, size, k=self.k)


@dataclass(frozen=True)
class LexiconTexts(Texts):
    """Texts as states of the lexicon's trie."""

    aligner: LexiconAligner
    states: WordStates
    W: torch.Tensor  # (d_T, d_C), or (batch, d_T, d_C)

    @property
    def units(self) -> torch.Tensor:
        """ê_T of the lexicon's words, (R + 1, d_T)."""
        return self.aligner.tables.units

    def align(self, candidates: torch.Tensor) -> Aligned:
        """u of the candidates (batch, m), and their words."""
        return self.states.align(candidates, self.W, fresh_on_repeat=self.aligner.fresh_on_repeat)

    def alignments(
        self, candidates: torch.Tensor, values: torch.Tensor, log_totals: torch.Tensor
    ) -> torch.Tensor:
        """u of the candidates (batch, m)."""
        return self.align(candidates).u

    def repeated(self) -> torch.Tensor:
        """Nothing: `align` looks at repeated contexts itself."""
        return torch.zeros((1, 1), dtype=torch.bool, device=self.aligner.tables.device)


class LexiconBatch(Batch):
    """Follows the words of a session's texts on the device.

    ``W`` (batch, d_T, d_C) are the rows' own matrices, if they are not all the aligner's.
    """

    def __init__(
        self,
        aligner: LexiconAligner,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        W: torch.Tensor | None = None,
    ) -> None:
        self.current = LexiconTexts(aligner, aligner.begin(len(prompt_ids)), aligner.W if W is None else W)
        padding = left_padding(prompt_ids, attention_mask, pad_id=aligner.pad_id)
        self.current.states.read_prompts(prompt_ids, padding)
        self.length = prompt_ids.shape[1]  # ids that were read

    def texts(self, ids: torch.Tensor) -> LexiconTexts:
        """The texts at ids (batch, length)."""
        self.current.states.push(ids[:, self.length :])
        self.length = ids.shape[1]
        return self.current
