"""The two sides of DEW for the words of a lexicon: ê_T of a word and ê_C of the words before it, by table.

Words outside the lexicon carry no mark; in a context they fill a place and add nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dewmark.arrays import F32, I64
from dewmark.encoders.contexts import SummedContexts
from dewmark.encoders.lexicon import Lexicon


class LexiconTokens:
    """ê_T of words, (N, dim)."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon
        self.identity = lexicon.identity
        self.dim = lexicon.dim

    def vectors(self, words: Sequence[str]) -> F32:
        """Words to unit rows (N, dim); words outside the lexicon to zero rows."""
        return self.of_rows(self._lexicon.rows(words))

    def of_rows(self, rows: I64) -> F32:
        """The same by rows of the lexicon (N,)."""
        return self._lexicon.tokens(rows)


class LexiconContexts:
    """ê_C of windows: the words of the lexicon among them, weighted down by frequency."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon
        self.dim = lexicon.dim

    def vectors(self, windows: Sequence[tuple[str, ...]]) -> F32:
        """Windows of any length to unit rows (N, dim); one without words of the lexicon gives a zero row."""
        return self.summed(windows).vectors

    def summed(self, windows: Sequence[tuple[str, ...]]) -> SummedContexts:
        """The same contexts as sums of weighted vectors."""
        rows = np.zeros((len(windows), max(map(len, windows), default=0)), dtype=np.int64)
        for line, window in zip(rows, windows, strict=True):
            line[: len(window)] = self._lexicon.rows(window)
        return self.of_rows(rows)

    def of_rows(self, windows: I64) -> SummedContexts:
        """The contexts of windows (W, k) of rows of the lexicon, 0 where there is no word of it.

        They are sums of weighted vectors, one per distinct word.
        """
        rows, index = np.unique(windows, return_inverse=True)
        empty = int(len(rows) > 0 and rows[0] == 0)
        return SummedContexts(self._lexicon.contexts(rows[empty:]), index.reshape(windows.shape) - empty)
