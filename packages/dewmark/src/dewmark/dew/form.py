"""Form: the mark of the exact words, beside that of their meaning.

The word with row i, after words with the rows j₁ … j_k, has the number

    q = i + Σ_n (j_n + 1) G^n mod 2⁶⁴,    G = 0x9E3779B97F4A7C15,

and a key gives the number a standard normal h: two secret words of 64 bits, each followed by a round of
SplitMix64, make 64 random bits of q. 48 of them are h = Φ⁻¹((bits + ½)/2⁴⁸). The other 16 are its *class*:
a key has 2¹⁶ messages (`dewmark.dew.ring`), and under message m the sign of h changes with the number of bits
that m and the class have in common. So the sums of all messages are one Walsh transform of the classes' sums.

Different numbers have independent h, and a text counts each of its numbers once, so over keys

    z_F = Σ_i v_i h_i / √(Σ_i v_i²)

is standard normal for every text that was written without the key, whatever the weights v are that the text
alone determines. The matrix W says nothing of h, and texts show only which words won. But SplitMix64 is no
cipher: exact values of h, as the scores of single words have them, are for the holder alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtri

from dewmark.arrays import F64, I64, U64, Mask
from dewmark.core.keys import Key
from dewmark.splitmix import GOLDEN, mixed

__all__ = [
    "CLASS_BITS",
    "NO_FORM",
    "AllForms",
    "FormKey",
    "FormPairs",
    "form_pairs",
    "pair_numbers",
]

CLASS_BITS = 16
"""The low bits of a number's 64 that are its class."""


def powers(k: int) -> U64:
    """G, G², … (k,), by which the rows of a context are multiplied: equal sums would be equal contexts."""
    return np.array([pow(GOLDEN, n, 1 << 64) for n in range(1, k + 1)], dtype=np.uint64)


def pair_numbers(rows: I64, windows: I64) -> U64:
    """q (N,) of words with these rows (N,) in contexts of these rows (N, k)."""
    return rows.astype(np.uint64) + window_numbers(windows)


def window_numbers(windows: I64) -> U64:
    """The part of q that a context adds: (N,) of windows (N, k)."""
    return np.asarray(
        ((windows + 1).astype(np.uint64) * powers(windows.shape[1])).sum(axis=1, dtype=np.uint64)
    )


@dataclass(frozen=True)
class FormKey:
    """What gives h: two secret words of 64 bits, and the message whose signs h has."""

    first: int = field(repr=False)
    second: int = field(repr=False)
    message: int = field(default=0, repr=False)

    @classmethod
    def of(cls, key: Key) -> FormKey:
        """The numbers of a plain key, or of one member of a ring."""
        first, second = key.stream("form").words(2).tolist()
        return cls(first, second)

    @classmethod
    def stored(cls, words: I64) -> FormKey:
        """From `words`."""
        return cls(*words.view(np.uint64).tolist())

    def bits(self, numbers: U64) -> U64:
        """64 random bits of each number."""
        return mixed(mixed(numbers + np.uint64(self.first)) ^ np.uint64(self.second))

    def noise(self, numbers: U64) -> F64:
        """h of each number."""
        return signed(self.bits(numbers), self.message)

    @property
    def words(self) -> I64:
        """The two words and the message as signed integers, (3,), for torch."""
        return np.array([self.first, self.second, self.message], dtype=np.uint64).view(np.int64)


def signed(bits: U64, message: int) -> F64:
    """h of random bits (N,), under a message."""
    h = ndtri(((bits >> np.uint64(CLASS_BITS)).astype(np.float64) + 0.5) * 2.0 ** (CLASS_BITS - 64))
    odd = np.bitwise_count(bits & np.uint64(message)) & 1
    return np.asarray(np.where(odd, -h, h))


@dataclass(frozen=True)
class FormPairs:
    """The N words of a text whose h counts: numbers q (N,), their places among its units, and v (N,).

    ``rows`` (N,) are their rows of the lexicon, where they are known.
    """

    numbers: U64
    places: I64
    weights: F64
    rows: I64 | None = None

    @property
    def square(self) -> float:
        """The variance of Σ v h over keys."""
        return float(self.weights @ self.weights)

    def z(self, key: FormKey) -> float:
        """z_F under a key; NaN if no word counts."""
        return float(ratio(self.weights @ key.noise(self.numbers), self.square))


@dataclass(frozen=True)
class AllForms:
    """The words of several texts whose h counts, one text after the other; ``ends`` (texts,) divide them."""

    numbers: U64
    weights: F64
    ends: I64

    @classmethod
    def of(cls, texts: Sequence[FormPairs]) -> AllForms:
        """Those of some texts."""
        numbers, weights = ([getattr(each, name) for each in texts] for name in ("numbers", "weights"))
        ends = np.cumsum([len(each) for each in numbers])
        return cls(np.concatenate(numbers), np.concatenate(weights), ends)

    def z(self, key: FormKey) -> F64:
        """z_F of each text under a key, (texts,); NaN where no word counts."""
        sums = np.concatenate(([0.0], np.cumsum(self.weights * key.noise(self.numbers))))
        squares = np.concatenate(([0.0], np.cumsum(self.weights**2)))
        ends = np.concatenate(([0], self.ends))
        return ratio(np.diff(sums[ends]), np.diff(squares[ends]))


def ratio(sums: F64, squares: F64 | float) -> F64:
    """Sums divided by their standard deviations; NaN where that is 0."""
    some = np.asarray(squares) > 0.0
    return np.where(some, sums, np.nan) / np.sqrt(np.where(some, squares, 1.0))


NO_FORM = FormPairs(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64), np.zeros(0))


def form_pairs(numbers: U64, windows: U64, *, possible: Mask) -> FormPairs:
    """The words of one text whose h counts, with equal weights.

    ``numbers`` (L,) are those of its words, ``windows`` (L,) what their contexts add to them. A word counts
    where it is ``possible`` (L,), its context occurs for the first time, and so does its number.
    """
    first = np.zeros(len(numbers), dtype=bool)
    first[np.unique(windows, return_index=True)[1]] = True
    places = np.flatnonzero(possible & first)
    places = places[np.sort(np.unique(numbers[places], return_index=True)[1])]
    rows = (numbers - windows)[places].astype(np.int64)
    return FormPairs(numbers[places], places, np.ones(len(places)), rows)
