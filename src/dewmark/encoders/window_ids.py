"""Rows of ids as bytes, and batches of them.

Between two steps of a language model each object that Python touches costs its time. The ids of a word are
kept as the bytes of an int32 array: those of a text are joined in one call, and a batch in another.

Rows of ids of many short texts at once, from the ids of their words.

Windows of a growing text share all their words but one, and every step of a decoding loop waits for their
ids. With the ids of each word in memory, a batch of texts is joined to one, split, looked up and joined in a
few calls; one by one they cost several times as much. Between two texts stands a word that no text holds,
`SEPARATOR`; its ids are what ends a row and begins the next, with a mark between them that is in no row.

Ids of short texts by a fast tokenizer of transformers, word by word: most words have been seen before.

Windows of a growing text share all their words but one, and every step of a decoding loop waits for their
ids. `Cutter` keeps the ids of words where the tokenizer cuts at spaces before all else, so that the ids of a
text are those of its words. It works on a copy of the tokenizer's backend, without the padding and with the
truncation of the model.
Boundary: texts in, rows of ids out (as bytes, `dewmark.encoders.window_ids`), those that the tokenizer itself
gives with its special tokens.

Rows of an encoder's ids for windows of a host's tokens.

Where each token of a window but the first begins with a space, no text is needed: what the encoder makes of
such a token does not depend on its neighbours, and is known beforehand. Other windows are cut by the words
of their texts, many at once (`dewmark.encoders.window_ids`); and those few that hold half a character, or a
word that cannot be cut by itself, one by one.
Boundary: windows of ids in, rows of ids out (as bytes, `dewmark.encoders.window_ids`), those that the
encoder's tokenizer gives of the windows' texts.
"""

from __future__ import annotations

import copy
import json
import unicodedata
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from dewmark.errors import InputError
from dewmark.workspace import Tokenizer

if TYPE_CHECKING:
    import torch

__all__ = [
    "HALF",
    "SEPARATOR",
    "UNKNOWN",
    "WIDTH",
    "Around",
    "Cutter",
    "TokenRows",
    "WordCutter",
    "Words",
    "cutter_of",
    "ids_and_mask",
    "packed",
    "padded",
    "texts_of",
    "token_rows",
]

_INT = "i"

WIDTH = array(_INT).itemsize  # bytes of an id

_NO_ID = b"\xff"  # each byte of -1


def packed(ids: Iterable[int]) -> bytes:
    """Ids as bytes."""
    return array(_INT, ids).tobytes()


def padded(rows: Sequence[bytes], *, multiple: int = 1) -> torch.Tensor:
    """Rows of ids as one batch (N, T), int32, -1 where no id is; T is a multiple of ``multiple``."""
    import torch

    longest, step = max(map(len, rows)) or WIDTH, WIDTH * multiple
    width = -(-longest // step) * step
    joined = bytearray().join([row.ljust(width, _NO_ID) for row in rows])
    return torch.frombuffer(joined, dtype=torch.int32).view(len(rows), -1)


def ids_and_mask(batch: torch.Tensor, *, fill: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, (N, T) each, int64, of a batch (N, T); the id ``fill`` stands where none is."""
    present = batch >= 0
    return batch.long().masked_fill_(~present, fill), present.long()


Around = tuple[bytes, bytes]  # what stands before and after the ids of a text's words

_WORD, HALF = "\ud800", "\ud801"  # halves of surrogate pairs are in no text

SEPARATOR = f" {_WORD} "

_MARK, UNKNOWN = packed([-2]), packed([-3])  # of an id below 2²⁴ one byte is 0, of these none

_LIMIT = 1 << 17  # words in memory, beside those learned beforehand

_CHARACTERS = 48  # of a word that is kept


class Words(dict[str, bytes]):
    """The ids of words, by ``cut`` when they are first asked for; `UNKNOWN`, if a word is not whole."""

    def __init__(self, cut: Callable[[Sequence[str]], list[bytes]]) -> None:
        self._cut = cut
        self._learned: dict[str, bytes] = {}

    def __missing__(self, word: str) -> bytes:
        if HALF in word:
            return UNKNOWN
        (ids,) = self._cut([word])
        if len(word) <= _CHARACTERS:
            if len(self) >= _LIMIT + len(self._learned):
                self.clear()
                self.update(self._learned)
            self[word] = ids
        return ids

    def learn(self, words: Iterable[str]) -> None:
        """Cut words, never to forget them."""
        new = [word for word in words if word not in self._learned]
        self.keep(dict(zip(new, self._cut(new), strict=True)))

    def keep(self, known: dict[str, bytes]) -> None:
        """Words whose ids are never forgotten."""
        self._learned |= known
        self.update(known)


class WordCutter(ABC):
    """An encoder's tokenizer that cuts texts word by word.

    ``around`` is what it puts before and after the ids of a text's words; None, if it does not cut so. The
    ids of a word are `UNKNOWN` where they depend on what stands before it.
    """

    def __init__(self, around: Around | None, words: Words) -> None:
        self.around = around
        self._words = words
        if around is not None:
            before, after = around
            words.keep({_WORD: after + _MARK + before})

    @abstractmethod
    def rows(self, texts: Sequence[str]) -> list[bytes]:
        """The ids of each text, special ones included."""

    @abstractmethod
    def finished(self, rows: list[bytes]) -> list[bytes]:
        """Words joined, with what stands around them, as `rows` gives them; `UNKNOWN` stays."""

    def learn(self, texts: Iterable[str]) -> None:
        """Cut the words of texts beforehand, and never forget them."""
        if self.around is not None:
            self._words.learn(dict.fromkeys(chain.from_iterable(text.split(" ") for text in texts)))

    def part(self, text: str) -> bytes:
        """The ids of some words."""
        return b"".join(map(self._words.__getitem__, text.split(" ")))

    def many(self, texts: Sequence[str], around: Around) -> list[bytes]:
        """The row of each of some texts; `UNKNOWN`, if one must be seen as a whole."""
        joined = SEPARATOR.join(texts)
        if joined.count(_WORD) >= len(texts) or HALF in joined:
            raise InputError("a text holds a lone surrogate, which is no character: decode it properly")
        return self.joined(joined, around)

    def joined(self, texts: str, around: Around) -> list[bytes]:
        """The rows of texts with `SEPARATOR` between them; `UNKNOWN`, if one must be seen as a whole."""
        before, after = around
        joined = b"".join((before, *map(self._words.__getitem__, texts.split(" ")), after))
        rows = joined.split(_MARK)
        if UNKNOWN in joined:
            rows = [UNKNOWN if UNKNOWN in row else row for row in rows]
        return self.finished(rows)


# Pre-tokenizers that cut at every space, and normalisers that look at no more than one character or one run
# of marks with what carries them: none of them sees two words at once.
_CUT_AT_SPACES = frozenset({"BertPreTokenizer", "WhitespaceSplit", "Whitespace"})

_LOCAL = frozenset(
    {"BertNormalizer", "Precompiled", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"}
)


def cutter_of(tokenizer: Any, longest: int | None) -> Cutter | None:  # noqa: ANN401 - any of transformers
    """A cutter that gives at most ``longest`` ids a text, if the tokenizer is of the usual kind."""
    usual = (
        getattr(tokenizer, "is_fast", False)
        and tokenizer.padding_side == tokenizer.truncation_side == "right"
    )
    if not usual or longest is None or tokenizer.pad_token_id is None:
        return None
    return Cutter(tokenizer.backend_tokenizer, longest=longest)


class Cutter(WordCutter):
    """A tokenizer that gives rows of ids; used by one thread at a time."""

    def __init__(self, backend: Any, *, longest: int) -> None:  # noqa: ANN401 - a Tokenizer of tokenizers
        self._plain = copy.deepcopy(backend)
        self._plain.no_padding()
        self._plain.no_truncation()
        self._backend = copy.deepcopy(self._plain)
        self._backend.enable_truncation(longest)
        self._longest = longest
        super().__init__(_around(self._plain) if _cuts_at_spaces(backend) else None, Words(self._cut))

    def rows(self, texts: Sequence[str]) -> list[bytes]:
        """The ids of each text, special ones included."""
        if self.around is None or not texts:
            return self._whole(texts)
        rows = self.many(texts, self.around)
        return [
            self._whole([text])[0] if row == UNKNOWN else row for text, row in zip(texts, rows, strict=True)
        ]

    def finished(self, rows: list[bytes]) -> list[bytes]:
        """Rows, none of them longer than the encoder takes."""
        assert self.around is not None
        after, most = self.around[1], self._longest * WIDTH
        if max(map(len, rows)) <= most:
            return rows
        return [row if len(row) <= most else row[: most - len(after)] + after for row in rows]

    def _whole(self, texts: Sequence[str]) -> list[bytes]:
        return [packed(found.ids) for found in self._backend.encode_batch_fast(list(texts))]

    def _cut(self, words: Sequence[str]) -> list[bytes]:
        """The ids of words; `UNKNOWN` for those that cannot be cut without what stands before."""
        if len(words) == 1:  # less work before and after it than a batch
            found = [self._plain.encode(words[0], add_special_tokens=False)]
        else:
            found = self._plain.encode_batch_fast(list(words), add_special_tokens=False)
        return [
            packed(each.ids) if _stands_alone(word) else UNKNOWN
            for word, each in zip(words, found, strict=True)
        ]


def _around(backend: Any) -> Around | None:  # noqa: ANN401 - a Tokenizer of tokenizers
    """What the tokenizer puts before and after a text."""
    plain = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a").ids
    for start in range(len(full) - len(plain) + 1):
        if plain and full[start : start + len(plain)] == plain:
            return packed(full[:start]), packed(full[start + len(plain) :])
    return None


def _stands_alone(word: str) -> bool:
    """Whether a word is cut alike after anything: it begins with nothing that may join, even with a space."""
    first = word[:1]
    joins = first != "" and (unicodedata.category(first)[0] == "M" or first in "\u200c\u200d")
    return not joins


def _cuts_at_spaces(backend: Any) -> bool:  # noqa: ANN401 - a Tokenizer of tokenizers
    """Whether the ids of a text are those of its words, by what the tokenizer is made of."""
    parts = json.loads(backend.to_str())
    first = _steps(parts["pre_tokenizer"], "pretokenizers")[:1]
    normal = _steps(parts["normalizer"], "normalizers")
    spaced = any(" " in token["content"] for token in parts["added_tokens"])
    return bool(first) and first[0] in _CUT_AT_SPACES and set(normal) <= _LOCAL and not spaced


def _steps(part: dict[str, Any] | None, within: str) -> list[str]:
    """The kinds of which a part of a tokenizer is made, in their order."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [kind for each in part[within] for kind in _steps(each, within)]
    return [str(part["type"])]


_LEARNED = 1 << 16  # tokens of which all that is learned is their words: the frequent ones come first


def token_rows(cutter: WordCutter, tokenizer: Tokenizer, *, prefix: str = "") -> TokenRows | None:
    """Rows of windows of a host's tokens, cut here beforehand; ``prefix`` goes before each text.

    None, if the encoder's tokenizer must see whole texts.
    """
    if cutter.around is None:
        return None
    if tokenizer.pieces is not None:
        cutter.learn(piece for piece in tokenizer.pieces if piece is not None)
    else:
        cutter.learn(tokenizer.decode([[token] for token in range(min(tokenizer.size, _LEARNED))]))
    return TokenRows(cutter, cutter.around, tokenizer, prefix=prefix)


def texts_of(tokenizer: Tokenizer, windows: Sequence[Sequence[int]]) -> list[str]:
    """The text of each window of ids, -1 where none is."""
    return tokenizer.decode([[token for token in window if token >= 0] for window in windows])


class TokenRows:
    """The rows of windows of a host's ids, -1 where none is; used by one thread at a time."""

    def __init__(self, cutter: WordCutter, around: Around, tokenizer: Tokenizer, *, prefix: str) -> None:
        self._cutter, self._tokenizer, self._prefix = cutter, tokenizer, prefix
        self._single: _SingleTokens | None = None
        if tokenizer.pieces is not None:
            self._single = _SingleTokens(cutter, around, tokenizer.pieces, prefix=prefix)

    def __call__(self, windows: Sequence[Sequence[int]]) -> list[bytes]:
        """The row of each of several windows, all of one length."""
        if self._single is None:
            return self._by_texts(windows)
        try:
            rows = _filled(self._single.rows(windows), windows, self._single.joined)
        except IndexError:  # an id that the tokenizer does not know
            return self._by_texts(windows)
        return _filled(rows, windows, self._by_texts)

    def _by_texts(self, windows: Sequence[Sequence[int]]) -> list[bytes]:
        return self._cutter.rows([self._prefix + text for text in texts_of(self._tokenizer, windows)])


class _SingleTokens:
    """The pieces of text that tokens stand for, and their ids.

    ``first`` has the ids of each token that stands first, ``later`` of each that stands anywhere else: of
    those that depend on their neighbours `UNKNOWN`.
    """

    def __init__(
        self, cutter: WordCutter, around: Around, pieces: Sequence[str | None], *, prefix: str
    ) -> None:
        self._cutter, self._around, self._separator = cutter, around, SEPARATOR + prefix
        self._before = around[0] + cutter.part(prefix)
        # one more, at -1: what is no token is no text
        self._pieces = [*(HALF if piece is None else piece for piece in pieces), ""]
        shared: dict[bytes, bytes] = {}
        parts = [shared.setdefault(ids, ids) for ids in map(cutter.part, self._pieces)]
        alone = prefix == "" or prefix.endswith(" ")
        self._first = [ids if alone and UNKNOWN not in ids else UNKNOWN for ids in parts]
        self._later = [
            ids if piece == "" or piece.startswith(" ") else UNKNOWN
            for piece, ids in zip(self._pieces, self._first, strict=True)
        ]

    def rows(self, windows: Sequence[Sequence[int]]) -> list[bytes]:
        """Rows of windows by their tokens' ids; `UNKNOWN` where these do not stand alone."""
        first, *others = zip(*windows, strict=True)
        later = (map(self._later.__getitem__, column) for column in others)
        parts = zip(
            repeat(self._before), map(self._first.__getitem__, first), *later, repeat(self._around[1])
        )
        return self._cutter.finished([UNKNOWN if UNKNOWN in each else b"".join(each) for each in parts])

    def joined(self, windows: Sequence[Sequence[int]]) -> list[bytes]:
        """Rows of windows by the words of their texts; `UNKNOWN` where these do not stand alone."""
        each = map(self._pieces.__getitem__, chain.from_iterable(windows))
        separated = zip(repeat(self._separator), *[each] * len(windows[0]))
        return self._cutter.joined("".join(chain.from_iterable(separated)), self._around)[1:]


def _filled(
    rows: list[bytes],
    windows: Sequence[Sequence[int]],
    others: Callable[[Sequence[Sequence[int]]], list[bytes]],
) -> list[bytes]:
    """Rows with the unknown ones given by another way."""
    if UNKNOWN not in rows:
        return rows
    found = iter(others([window for window, row in zip(windows, rows, strict=True) if row == UNKNOWN]))
    return [next(found) if row == UNKNOWN else row for row in rows]
