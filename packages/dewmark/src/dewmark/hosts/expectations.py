"""Readers: language models that predict each word of a text from the words before it.

A mark prefers one of the words that could have stood in a place. A detector therefore learns from the
difference between the word and the expected word, which any causal language model can predict: it reads the
text once, and at each token that begins a word its next-token distribution gives
the likeliest tokens that would begin a word there.

A token begins a word if its text does: after an open word (``the old``) a candidate needs a space or another
separator first (`` bridge``, ``-fashioned``), while after a line break, a quotation mark or a bracket it does
not. A word that starts inside a token that also holds the end of the word before has no expectation.

Long texts are read in windows, each after the end of the one before. Answers are cached in memory.

Boundary: texts in, candidate words with probabilities out; no vectors, no keys, no scheme.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import regex

from dewmark.arrays import F32, I64
from dewmark.errors import ConfigError
from dewmark.hosts import host_info, load_host
from dewmark.hosts.base import Host
from dewmark.text.cleaning import clean
from dewmark.text.spelling import Spelling
from dewmark.text.words import VERSION, cut, open_tail
from dewmark.workspace import NO_READER, Expectations, ExpectedWords, HostInfo, Progress, reader_in, silent

if TYPE_CHECKING:
    import torch

__all__ = ["CANDIDATES", "HostExpectations", "open_reader"]

CANDIDATES = 256
"""How many of the likeliest tokens are kept at each place."""

_LEAST = 1e-5  # probability below which a candidate is left out
_WINDOW = 1536  # tokens that the model reads at once, of which a third is context from before
_MEMORY_BYTES = 128 << 20
_FORMAT = 2
_CELLS = {"cpu": 1 << 21, "cuda": 1 << 27}  # probabilities computed at once: on a CPU they stay in cache
_UNDECODED = "\N{REPLACEMENT CHARACTER}"
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{LB=SA}]$", regex.VERSION1)


class WordStarts:
    """The word that each token of a vocabulary begins.

    ``numbers`` count the distinct words, ``form_of`` (vocab,) is each token's word or -1, and ``soft``
    (vocab,) says that the token begins a word only where none is open: ``er`` after ``old`` makes ``older``.
    """

    def __init__(self, info: HostInfo) -> None:
        pieces = Spelling(info.tokenizer, info.vocab_size).pieces
        pieces = ["" if _UNDECODED in piece else piece for piece in pieces]
        self.soft = np.array([_continues(piece[:1]) for piece in pieces])
        self.form_of = np.full(info.vocab_size, -1, dtype=np.int64)
        self.numbers: dict[str, int] = {}
        # one text of all pieces: cutting each of them takes a hundred times as long
        ends = np.cumsum([len(piece) + 1 for piece in pieces])
        found = cut("\n".join(pieces))
        tokens = np.searchsorted(ends, [word.start for word in found], side="right")
        for word, token in zip(reversed(found), reversed(tokens.tolist()), strict=True):
            # backwards, so that the first word of a piece stays
            self.form_of[token] = self.numbers.setdefault(word.form, len(self.numbers))


@functools.lru_cache(maxsize=1 << 14)
def _continues(character: str) -> bool:
    """Whether a word before this character may go on with it."""
    return open_tail("a" + character) != ""


class _Place(NamedTuple):
    """A word: its first character, its first token and the one after its last, and its form.

    ``gap`` says that no word is open before it.
    """

    start: int
    token: int
    end: int
    gap: bool
    form: str


@dataclass(frozen=True)
class _Window:
    """Tokens of text number ``text`` that the model reads after ``prompt``; its places count from them."""

    text: int
    number: int
    prompt: str
    ids: tuple[int, ...]
    places: tuple[_Place, ...]


class _Candidates(NamedTuple):
    """How many candidates each place has (P,), and the numbers of their words and probabilities, in order."""

    counts: I64
    words: I64
    probabilities: F32

    @classmethod
    def none(cls) -> _Candidates:
        nothing = np.zeros(0, dtype=np.int64)
        return cls(nothing, nothing, nothing.astype(np.float32))


class HostExpectations:
    """The expectations of one language model (`dewmark.workspace.Expectations`).

    ``open_host`` loads the model when the first text is read. Of each text at most ``limit`` tokens are read;
    words beyond have no expectation. Safe to share between threads.
    """

    def __init__(
        self,
        info: HostInfo,
        open_host: Callable[[], Host],
        *,
        limit: int | None = None,
        progress: Progress = silent,
    ) -> None:
        self.name = info.name
        self.identity = f"{info.name} {info.identity} {_FORMAT}.{VERSION} {limit or ''}".rstrip()
        self._limit, self._info = limit, info
        self._open_host = functools.cache(open_host)
        self._progress = progress
        self._numbers: dict[str, int] = {}
        self._known: OrderedDict[tuple[str, str], ExpectedWords] = OrderedDict()
        self._bytes = 0
        self._lock = threading.RLock()

    @functools.cached_property
    def _starts(self) -> WordStarts:
        return WordStarts(self._info)

    def read(self, texts: Sequence[str], prompts: Sequence[str]) -> list[ExpectedWords]:
        """The words expected in each text after its prompt; the model runs on those that it has not read."""
        asked = list(zip(prompts, texts, strict=True))
        with self._lock:
            found = {each: self._known[each] for each in asked if each in self._known}
            new = [each for each in dict.fromkeys(asked) if each not in found]
            for each, words in zip(new, self._run(new), strict=True):
                found[each] = self._known[each] = words
                self._bytes += _size(each, words)
                while self._bytes > _MEMORY_BYTES and len(self._known) > 1:
                    self._bytes -= _size(*self._known.popitem(last=False))
            return [found[each] for each in asked]

    def _run(self, asked: Sequence[tuple[str, str]]) -> list[ExpectedWords]:
        """Run the model over (prompt, text) pairs."""
        if not asked:
            return []
        host = self._open_host()
        windows: list[_Window] = []
        starts: list[I64] = []
        size = min(_WINDOW, host.context or _WINDOW)
        for number, (prompt, text) in enumerate(asked):
            made, places = _windows(host.info, number, prompt, text, size=size, limit=self._limit)
            windows += made
            starts.append(places)
        # rows of similar length share a batch
        windows.sort(key=lambda each: (len(each.ids), len(each.prompt)), reverse=True)
        self._numbers = dict(self._starts.numbers)
        parts: list[dict[int, _Candidates]] = [{} for _ in asked]
        label = f"reading with {self.name}"
        rows = host.next_logits([each.prompt for each in windows], [each.ids for each in windows])
        for done, (window, logits) in enumerate(zip(windows, rows, strict=True)):
            self._progress(label, done, len(windows))
            parts[window.text][window.number] = self._likeliest(logits, window)
        self._progress(label, len(windows), len(windows))
        # the candidates of each text's windows, joined
        forms, found = list(self._numbers), []
        for places, part in zip(starts, parts, strict=True):
            columns = zip(_Candidates.none(), *(part[number] for number in sorted(part)), strict=True)
            counts, words, p = (np.concatenate(each) for each in columns)
            used, index = np.unique(words, return_inverse=True)
            expected = ExpectedWords(
                starts=places,
                bounds=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts))),
                index=index.astype(np.int64),
                probabilities=p.astype(np.float32),
                forms=tuple(forms[i] for i in used.tolist()),
            )
            found.append(expected)
        return found

    def _likeliest(self, logits: torch.Tensor, window: _Window) -> _Candidates:
        """The candidates at the places of a window, from its logits (L, vocab)."""
        import torch

        starts, device, places = self._starts, logits.device, window.places
        begins = torch.from_numpy(starts.form_of >= 0).to(device)
        hard = begins & ~torch.from_numpy(starts.soft).to(device)
        rows = torch.tensor([place.token for place in places], device=device, dtype=torch.long)
        gaps = torch.tensor([place.gap for place in places], device=device, dtype=torch.bool)
        step = max(_CELLS["cuda" if device.type == "cuda" else "cpu"] // logits.shape[1], 1)
        found = []
        for i in range(0, len(places), step):
            shares = logits[rows[i : i + step]].float().softmax(dim=-1)
            shares *= torch.where(gaps[i : i + step, None], begins, hard)
            found.append([each.cpu().numpy() for each in shares.topk(min(CANDIDATES, len(begins)), dim=-1)])
        if not found:
            return _Candidates.none()
        p, token = (np.concatenate(each) for each in zip(*found, strict=True))
        words = starts.form_of[token]
        # a word of several tokens: its first token's probability is shared with what else begins like that
        whole = np.zeros((len(places), 1), dtype=p.dtype)
        for i, going_on in self._going_on(logits, window).items():
            column = np.flatnonzero(token[i] == window.ids[places[i].token])
            whole[i] = p[i, column].sum() * going_on
            p[i, column] *= 1.0 - going_on
        p, kept = np.hstack((p, whole)), np.hstack((p, whole)) >= _LEAST
        # words that no token begins are numbered behind the others
        own = [[self._numbers.setdefault(place.form, len(self._numbers))] for place in places]
        words = np.hstack((words, np.array(own, dtype=np.int64)))
        return _Candidates(kept.sum(axis=1), words[kept], p[kept])

    def _going_on(self, logits: torch.Tensor, window: _Window) -> dict[int, float]:
        """For each place whose word has several tokens the probability of all but the first, given it."""
        import torch

        longer = {i: place for i, place in enumerate(window.places) if place.end - place.token > 1}
        rows = [row for place in longer.values() for row in range(place.token + 1, place.end)]
        if not rows:
            return {}
        index = torch.tensor(rows, device=logits.device)
        ids = torch.tensor([window.ids[row] for row in rows], device=logits.device)
        scores = logits[index].float()
        log_p = scores.gather(1, ids[:, None]).squeeze(1) - scores.logsumexp(dim=-1)
        values = iter(log_p.double().cpu().tolist())
        return {
            i: math.exp(sum(next(values) for _ in range(place.token + 1, place.end)))
            for i, place in longer.items()
        }


def _windows(
    info: HostInfo, number: int, prompt: str, text: str, *, size: int, limit: int | None = None
) -> tuple[list[_Window], I64]:
    """The windows of at most ``size`` tokens in which a text is read, and the starts of all its places."""
    cleaned = clean(text)
    (tokenized,) = info.tokenizer.encode([cleaned.text])
    ids, offsets = tokenized.ids[:limit], tokenized.offsets[:limit]
    ends = [end for _, end in offsets]
    places = places_of(cleaned.text, offsets, prompt)
    before = max(size // 3, 1)
    step = max(size - before - 2, 1)  # a start token and one to spare
    windows = []
    for start in range(0, len(ids), step):
        if start == 0:
            context = prompt
            if len(prompt) > before:  # only its last tokens
                (whole,) = info.tokenizer.encode([prompt])
                context = prompt if len(whole.ids) <= before else prompt[whole.offsets[-before][0] :]
        else:
            first = ends[start - before - 1] if start > before else 0
            context = cleaned.text[first : ends[start - 1]]
        mine = tuple(
            place._replace(token=place.token - start, end=min(place.end - start, step))
            for place in places
            if start <= place.token < start + step
        )
        windows.append(_Window(number, start, context, ids[start : start + step], mine))
    spans = cleaned.original([(place.start, place.start + 1) for place in places])
    return windows, np.array([start for start, _ in spans], dtype=np.int64)


def places_of(text: str, offsets: Sequence[tuple[int, int]], prompt: str) -> list[_Place]:
    """Where the words of a cleaned text begin."""
    if not offsets:
        return []
    ends = np.maximum.accumulate([end for _, end in offsets])
    token_starts = np.concatenate(([0], ends[:-1]))
    found = [word for word in cut(text) if word.start < ends[-1]]
    first = np.searchsorted(ends, [word.start for word in found], side="right")
    last = np.searchsorted(token_starts, [word.end for word in found], side="left")
    places = []
    word_end = 0 if prompt[-1:].isalnum() else -1
    for word, token, end in zip(found, first.tolist(), last.tolist(), strict=True):
        token_start = int(token_starts[token])
        if token_start >= word_end:
            gap = token_start > word_end or _UNSPACED.search(text[token_start - 1 : token_start]) is not None
            places.append(_Place(word.start, token, end, gap, word.form))
        word_end = word.end
    return places


def _size(asked: tuple[str, str], words: ExpectedWords) -> int:
    """Roughly the bytes that it takes in memory."""
    return 2 * sum(map(len, asked)) + 16 * len(words.starts) + 12 * len(words.index) + 64 * len(words.forms)


def open_reader(
    reader: str | Host | Expectations | None,
    *,
    host: str | Host | None = None,
    device: str = "auto",
    dtype: str = "auto",
    limit: int | None = None,
    progress: Progress | None = None,
) -> Expectations | None:
    """A reader by the name of its model (as hosts are named), or a host that reads; None for ``none``.

    The name ``host`` stands for ``host``, the model that writes the marked texts. An unknown name is an error
    at once; the weights are loaded when the first text is read. ``limit`` bounds the tokens that are read of
    each text.
    """
    if reader == "host":
        if host is None:
            raise ConfigError("this detector does not know its host: name the model that is to read")
        reader = host
    if reader is None:
        return None
    if reader == NO_READER.name:
        return NO_READER
    if (own_folder := reader_in(reader)) is not None:
        return own_folder
    if isinstance(reader, Host):
        own = reader
        return HostExpectations(own.info, lambda: own, limit=limit, progress=progress or silent)
    if not isinstance(reader, str):
        return reader
    info = host_info(reader, progress=progress)
    load = functools.partial(load_host, reader, device=device, dtype=dtype, progress=progress)
    return HostExpectations(info, load, limit=limit, progress=progress or silent)
