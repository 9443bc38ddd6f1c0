"""Rows of an encoder's ids for windows of a host's tokens.

Where each token of a window but the first begins with a space, no text is needed: what the encoder makes of
such a token does not depend on its neighbours, and is known beforehand. Other windows are cut by the words
of their texts, many at once (`dewmark.embeddings.joining`); and those few that hold half a character, or a
word that cannot be cut by itself, one by one.
Boundary: windows of ids in, rows of ids out (as bytes, `dewmark.embeddings.packing`), those that the
encoder's tokenizer gives of the windows' texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, repeat

from dewmark.embeddings.joining import HALF, SEPARATOR, UNKNOWN, Around, WordCutter
from dewmark.workspace import Tokenizer

__all__ = ["TokenRows", "texts_of", "token_rows"]

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
