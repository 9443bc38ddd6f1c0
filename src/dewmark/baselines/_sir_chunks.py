"""The context of a token in SIR: the whole chunks of words that stand before it.

A word is a run of characters without spaces; in scripts that write none, one character. What stands before
a token ends in a word that may still grow, so that one does not count yet: with n words begun before it, a
token has ⌊(n − 1)/c⌋ whole chunks of c words behind it, and its context is the last few of them. Spaces are
not looked at, so it does not matter whether they belong to the token before or after. Marking counts the
words of a text that grows (`GrowingWords`), scoring those of a finished one (`chunks_before`): both agree.

Boundary: text only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from dewmark.arrays import I64

__all__ = ["GrowingWords", "chunks_before", "context_of", "words_of"]


# Thai, Lao, Burmese, Khmer, kana and Han put no spaces between words.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


def words_of(text: str) -> list[str]:
    """The words of a text."""
    return _WORD.findall(text)


def context_of(words: Sequence[str], chunks: int, *, size: int, reach: int) -> str:
    """The text of the last ``reach`` of the first ``chunks`` chunks of ``size`` words each."""
    end = chunks * size
    return " ".join(words[max(end - reach * size, 0) : end])


def chunks_before(text: str, starts: Sequence[int], *, size: int) -> tuple[list[str], I64]:
    """The words of a text, and for tokens that start at these characters, how many chunks are whole."""
    found = list(_WORD.finditer(text))
    begun = np.searchsorted([match.start() for match in found], np.asarray(starts, dtype=np.int64))
    return [match.group() for match in found], np.maximum(begun - 1, 0) // size


class GrowingWords:
    """The words of a text that is written piece by piece."""

    def __init__(self) -> None:
        self._whole: list[str] = []
        self._tail = ""  # from the last word on, which may still grow

    def append(self, piece: str) -> None:
        """The text goes on with ``piece``."""
        self._tail += piece
        found = list(_WORD.finditer(self._tail))
        if found:
            self._whole += [match.group() for match in found[:-1]]
            self._tail = self._tail[found[-1].start() :]

    def chunks(self, size: int) -> int:
        """How many chunks are whole."""
        return len(self._whole) // size

    def context(self, *, size: int, reach: int) -> str:
        """The context of the next token."""
        return context_of(self._whole, self.chunks(size), size=size, reach=reach)
