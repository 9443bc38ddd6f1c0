"""Messages in a mark: one key matrix W makes 2¹⁶ matrices that differ in their signs.

Message m has the matrix W_m = D_a W D_b, where the diagonals of D_a and D_b are Walsh functions: rows of
Hadamard matrices. The even bits of m choose the function of the units' coordinates, its odd bits that of the
contexts'. Signs do not change the law of independent normals, so under every message z is exactly N(0, 1)
over keys; message 0 is W itself. Given a text's matrix M, the scores of all messages,

    S_m = Σ_ij (M ∘ W)_ij h_a(i) h_b(j),

are one two-dimensional Walsh transform of M ∘ W. Messages of fewer bits are the first ones, so who looks for
8 bits looks at 256 of the 65,536 and pays for 256.

Two messages a and a' are correlated by Σ_i e_i h_a(i) h_a'(i), e_i the share of M's energy in coordinate i.
Coordinates of a lexicon come by decreasing variance, so each gets a *slot* in the Walsh functions such that
neighbours differ in the low bits (the functions of short messages then alternate) and high bits are random.

Boundary: signs and transforms. `dewmark.dew.ring` has the matrices, and reads what a text carries.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import numpy as np

from dewmark.arrays import F32, I64
from dewmark.core.keys import MESSAGE_BITS, KeyStream

_SIDE_BITS = MESSAGE_BITS // 2


class _Side:
    """One side's d coordinates: the number that some bits of its slot make is a coordinate's class."""

    def __init__(self, d: int, bits: tuple[int, ...]) -> None:
        self.bits = bits
        self.slots = _slots(d)
        self.classes = np.zeros(d, dtype=np.int64)
        for place, bit in enumerate(bits):
            self.classes |= ((self.slots >> bit) & 1) << place
        self.size = 1 << len(bits)

    def signs(self, chosen: int) -> F32:
        """The Walsh function of a number of these bits, (d,)."""
        odd = np.bitwise_count(self.classes & chosen) & 1
        return np.where(odd, np.float32(-1.0), np.float32(1.0))


class Messages:
    """The messages made of some of the 16 ``bits``, over d_T x d_C coordinates.

    A Walsh function depends on a coordinate's class only, so that M ∘ W is first summed within pairs of
    classes. `arranged` sorts the coordinates for that.
    """

    def __init__(self, bits: Sequence[int], *, d_T: int, d_C: int) -> None:
        self.bits = tuple(sorted(bits))
        self._left = _Side(d_T, tuple(bit // 2 for bit in self.bits if bit % 2 == 0))
        self._right = _Side(d_C, tuple(bit // 2 for bit in self.bits if bit % 2 == 1))

    @property
    def count(self) -> int:
        """2^bits."""
        return 1 << len(self.bits)

    @functools.cached_property
    def numbers(self) -> I64:
        """The message of each place in `scores`, (count,)."""
        left = _spread(np.arange(self._left.size), self._left.bits, 0)
        right = _spread(np.arange(self._right.size), self._right.bits, 1)
        return (left[:, None] + right[None, :]).ravel()

    @functools.cached_property
    def _places(self) -> I64:
        """The coordinates of each pair of classes, (count, n), padded with d_T d_C."""
        left, right = self._left, self._right
        pairs = (left.classes[:, None] * right.size + right.classes[None, :]).ravel()
        order = np.argsort(pairs, kind="stable")
        sizes = np.bincount(pairs, minlength=self.count)
        ranks = np.arange(len(pairs)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        places = np.full((self.count, int(sizes.max())), len(pairs), dtype=np.int64)
        places[pairs[order], ranks] = order
        return places

    def signs(self, message: int) -> tuple[F32, F32]:
        """The diagonals of D_a (d_T,) and D_b (d_C,) of a message."""
        return self._left.signs(_gathered(message, self._left.bits, 0)), self._right.signs(
            _gathered(message, self._right.bits, 1)
        )

    def arranged(self, matrices: F32) -> F32:
        """Matrices (K, d_T, d_C) by pairs of classes, (K, count, n)."""
        flat = matrices.reshape(len(matrices), -1)
        return np.concatenate((flat, np.zeros((len(flat), 1), dtype=np.float32)), axis=1)[:, self._places]

    def scores(self, text: F32, keys: F32) -> F32:
        """⟨M, W_m⟩ of all messages m, (K, count), of M (1, count, n) and W (K, count, n) as `arranged`."""
        left, right = self._left.size, self._right.size
        single = text.shape[2] == 1  # einsum is slow then
        sums = keys[:, :, 0] * text[:, :, 0] if single else np.einsum("kcn,cn->kc", keys, text[0])
        grid = np.ascontiguousarray(sums.reshape(-1, left, right).transpose(1, 0, 2))
        once = walsh_transform(grid.reshape(left, -1)).reshape(grid.shape)
        turned = np.ascontiguousarray(once.transpose(2, 1, 0))
        twice = walsh_transform(turned.reshape(right, -1)).reshape(turned.shape)
        return np.ascontiguousarray(twice.transpose(1, 2, 0)).reshape(len(keys), -1)


def walsh_transform(x: F32) -> F32:
    """H x for x (2^k, N), H the Hadamard matrix in natural order: H_ab = (-1)^(number of common bits)."""
    x = x.copy()
    rows = len(x)
    step = 1
    while step < rows:
        halves = x.reshape(rows // (2 * step), 2, -1)
        upper, lower = halves[:, 0], halves[:, 1]
        total = upper + lower
        np.subtract(upper, lower, out=lower)
        upper[...] = total
        step *= 2
    return x


def _gathered(message: int, bits: Sequence[int], odd: int) -> int:
    """The number that a message's bits of one side make; the inverse of `_spread`."""
    return sum(((message >> (2 * bit + odd)) & 1) << place for place, bit in enumerate(bits))


def _spread(numbers: I64, bits: Sequence[int], odd: int) -> I64:
    """Numbers of one side's bits to the message bits that they are."""
    found = np.zeros_like(numbers)
    for place, bit in enumerate(bits):
        found += ((numbers >> place) & 1) << (2 * bit + odd)
    return found


@functools.cache
def _slots(d: int) -> I64:
    """A number of 8 bits for each coordinate, (d,).

    Bit b of a coordinate's rank is flipped by a public coin for each value of the bits below it. Every
    aligned 2^b coordinates then have all values of their lowest b bits.
    """
    coins = KeyStream(hashlib.sha256(b"dewmark/walsh slots").digest())
    rank = np.arange(d, dtype=np.int64)
    slots = np.zeros(d, dtype=np.int64)
    for bit in range(_SIDE_BITS):
        flips = (coins.words(1 << bit) & np.uint64(1)).astype(np.int64)
        slots |= (((rank >> bit) & 1) ^ flips[rank & ((1 << bit) - 1)]) << bit
    return slots
