"""The two sides of DEW for the words of a lexicon: ê_T of a word and ê_C of the words before it, by table.

A unit's vector joins meaning and spelling: ê_T = [√(1−β) · meaning, √β · h(form)], where h hashes the form to
a public unit vector. Words with one meaning then differ, which a mark needs where only synonyms compete; a
translation keeps the first part only. Words outside the lexicon carry no mark; in a context they fill a place
and add nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri

from dewmark.arrays import F32, I64
from dewmark.core.whitening import normalize_rows
from dewmark.encoders.contexts import SummedContexts
from dewmark.encoders.lexicon import Lexicon
from dewmark.encoders.word_vectors import Centre

FORM_DIM = 64
"""The dimensions of a form's hashed vector."""

_NORMAL: F32 = ndtri((np.arange(256) + 0.5) / 256).astype(np.float32)


class LexiconTokens:
    """ê_T of words, (N, dim)."""

    def __init__(self, lexicon: Lexicon, *, form_share: float, centre: Centre = "running") -> None:
        self._lexicon = lexicon
        self._centre = centre
        self.form_share = form_share
        self.identity = f"{lexicon.identity}|{form_share}|{centre}"
        self.dim = lexicon.dim + (FORM_DIM if form_share else 0)

    def vectors(self, words: Sequence[str]) -> F32:
        """Words to unit rows (N, dim); words outside the lexicon to zero rows."""
        return self.of_rows(self._lexicon.rows(words))

    def of_rows(self, rows: I64) -> F32:
        """The same by rows of the lexicon (N,)."""
        meaning = self._lexicon.tokens(rows, centre=self._centre)
        if not self.form_share:
            return meaning
        forms = np.zeros((len(rows), FORM_DIM), dtype=np.float32)
        known = np.flatnonzero(rows)
        forms[known] = _form_vectors([self._lexicon.forms[row - 1] for row in rows[known].tolist()])
        parts = (math.sqrt(1.0 - self.form_share) * meaning, math.sqrt(self.form_share) * forms)
        return np.concatenate(parts, axis=1)


def _form_vectors(forms: Sequence[str]) -> F32:
    """Public unit vectors (N, FORM_DIM), one per spelling."""
    digests = b"".join(hashlib.blake2b(form.encode(), digest_size=FORM_DIM).digest() for form in forms)
    return normalize_rows(_NORMAL[np.frombuffer(digests, dtype=np.uint8).reshape(len(forms), FORM_DIM)])


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
