"""Rows of ids of many short texts at once, from the ids of their words.

Windows of a growing text share all their words but one, and every step of a decoding loop waits for their
ids. With the ids of each word in memory, a batch of texts is joined to one, split, looked up and joined in a
few calls; one by one they cost several times as much. Between two texts stands a word that no text holds,
`SEPARATOR`; its ids are what ends a row and begins the next, with a mark between them that is in no row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from dewmark.embeddings.packing import packed
from dewmark.errors import InputError

__all__ = ["HALF", "SEPARATOR", "UNKNOWN", "Around", "WordCutter", "Words"]

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
