"""Everything one key may have written: members of a ring, payloads, epochs, and how a text's use is found.

A *use* of a key is an epoch, a member and a payload; each has its own matrix of independent standard normals.
The first 16 members of a ring have matrices of their own, from sub-keys. Member j beyond them has the matrix
of member j mod 16 under the signs of message j div 16 (in the high bits), so that a ring of thousands costs a
few products per text. Payloads use the low bits.

**Messages.** One key matrix W makes 2¹⁶ matrices that differ in their signs. Message m has the matrix W_m =
D_a W D_b, where the diagonals of D_a and D_b are Walsh functions: rows of Hadamard matrices. The even bits of
m choose the function of the units' coordinates, its odd bits that of the contexts'. Independent
normals keep their distribution if signs change, so under every message z is exactly N(0, 1) over keys;
message 0 is W itself. Given a text's matrix M, the scores of all messages,

    S_m = Σ_ij (M ∘ W)_ij h_a(i) h_b(j),

are one two-dimensional Walsh transform of M ∘ W. Messages of fewer bits are the first ones, so decoding
8 bits tests 256 hypotheses and corrects for 256.

Coordinates of a lexicon come by decreasing variance, so each gets a *slot* in the Walsh functions such that
neighbours differ in the low bits (the functions of short messages then alternate) and high bits are random.

**Turned signs.** A forger would try all signs in public coordinates, so the signs are in coordinates that the
key turns, with secret orthogonal O_T and O_C:

    W_m = A W B,    A = O_T D_a O_Tᵀ,    B = O_C D_b O_Cᵀ.

A and B are orthogonal and independent of W, so each W_m still has independent standard normals, and
⟨M, W_m⟩ = ⟨O_Tᵀ M O_C, D_a (O_Tᵀ W O_C) D_b⟩ is the same transform for all messages.

**Form.** Each independent member has an h of its own (`dewmark.dew.form`), whose signs the messages change by
the classes of words. The sums of all messages are one Walsh transform of the classes' sums.

**Finding the use.** Each use has the score m = max(z, (z + z_F)/√2), as a plain key has. Under one matrix
messages are correlated, so their number is paid for by Bonferroni; different matrices are independent over
keys, and Šidák's correction is exact. Use j has posterior probability ∝ exp(s_best s_j), where s is z or
(z + z_F)/√2, whichever is larger for the best use; an epoch, member or payload is named if it has 99% of
that. The probability by z alone is the use's ``share`` of the level of attribution (`dewmark.dew.origin`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F32, F64, I64
from dewmark.core.keys import INDEPENDENT, MESSAGE_BITS, Key, KeyStream, check_use
from dewmark.core.projections import draw_float32_matrix, haar_orthogonal
from dewmark.dew.form import FormKey, FormPairs, ratio, signed
from dewmark.dew.matrix import TextMatrix, UseKey, standard
from dewmark.errors import ConfigError
from dewmark.stats.multiple_testing import sidak_min
from dewmark.stats.two_sums import larger_of

CONFIDENCE = 0.99
"""The posterior probability from which an epoch, a member or a payload is named."""

TURNS = "ring/turns"
"""The purpose of the key's bytes from which O_T and O_C are drawn."""


R = TypeVar("R", F32, F64)

_SIDE_BITS = MESSAGE_BITS // 2


# Messages


class _Side:
    """One side's d coordinates, and the ``bits`` of messages that choose its Walsh function.

    The number that the same bits of its slot make is a coordinate's class (d,). ``numbers`` (size,) are these
    numbers as the bits of messages.
    """

    def __init__(self, d: int, bits: Sequence[int]) -> None:
        self.bits, self.size = bits, 1 << len(bits)
        self.classes = np.zeros(d, dtype=np.int64)
        self.numbers = np.zeros(self.size, dtype=np.int64)
        for place, bit in enumerate(bits):
            self.classes |= ((_slots(d) >> bit // 2) & 1) << place
            self.numbers += ((np.arange(self.size) >> place) & 1) << bit

    def signs(self, message: int) -> F32:
        """The Walsh function of a message, (d,)."""
        chosen = sum(((message >> bit) & 1) << place for place, bit in enumerate(self.bits))
        odd = np.bitwise_count(self.classes & chosen) & 1
        return np.where(odd, np.float32(-1.0), np.float32(1.0))


class Messages:
    """The messages made of some of the 16 ``bits``, over d_T x d_C coordinates.

    A Walsh function depends on a coordinate's class only, so that M ∘ W is first summed within pairs of
    classes. `arranged` sorts the coordinates for that.
    """

    def __init__(self, bits: Sequence[int], *, d_T: int, d_C: int) -> None:
        self.bits = tuple(sorted(bits))
        self._left = _Side(d_T, [bit for bit in self.bits if bit % 2 == 0])
        self._right = _Side(d_C, [bit for bit in self.bits if bit % 2 == 1])

    @property
    def count(self) -> int:
        """2^bits."""
        return 1 << len(self.bits)

    @functools.cached_property
    def numbers(self) -> I64:
        """The message of each place in `scores`, (count,)."""
        return (self._left.numbers[:, None] + self._right.numbers[None, :]).ravel()

    def packed(self, numbers: I64) -> I64:
        """The bits of these messages alone, of messages or of classes, as numbers below ``count``."""
        shifted = (((numbers >> bit) & 1) << place for place, bit in enumerate(self.bits))
        return sum(shifted, np.zeros_like(numbers))

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
        return self._left.signs(message), self._right.signs(message)

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


def walsh_transform(x: R) -> R:
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


# Uses


@dataclass(frozen=True, slots=True)
class KeyUse:
    """How a key marks one text. ``epoch`` None is the current one."""

    member: int = 0
    payload: int = 0
    epoch: str | None = None


@dataclass(frozen=True, slots=True)
class AskedUse:
    """The member and the payload that somebody asked to mark with; None where nobody did."""

    member: int | None = None
    payload: int | None = None

    @property
    def use(self) -> KeyUse:
        """The use that marks if nothing else chooses a member."""
        return KeyUse(member=self.member or 0, payload=self.payload or 0)


@dataclass(frozen=True)
class FoundUse:
    """The use that fits a text best: ``p_value`` is corrected for all ``n_hypotheses``, ``z`` is its own.

    ``z_meaning`` and ``z_form`` are the two scores behind it. ``payload_confidence``, ``member_confidence``
    and ``epoch_confidence`` are posterior probabilities; ``share`` is the use's by the meaning alone.
    """

    use: KeyUse
    z: float
    z_meaning: float
    z_form: float
    p_value: float
    n_hypotheses: int
    payload_confidence: float
    member_confidence: float
    epoch_confidence: float
    share: float


@dataclass(frozen=True)
class EpochMatrices:
    """One epoch's key: its independent matrices W (K, d_T, d_C), and what else the key may vary.

    ``forms`` give the h of the K independent members; a public detector has none. The turns O_T and O_C are
    drawn from ``secret``.
    """

    name: str | None
    members: int
    payload_bits: int
    W: F32 = field(repr=False)
    forms: tuple[FormKey, ...] = field(default=(), repr=False)
    secret: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, key: Key, *, d_T: int, d_C: int, form: bool = True) -> EpochMatrices:
        """Draw a key's matrices, and what gives h if words carry it."""
        keys = [key.independent_member(number) for number in range(key.independent)]
        W = np.stack([draw_float32_matrix(each, d_T=d_T, d_C=d_C) for each in keys])
        forms = tuple(map(FormKey.of, keys)) if form else ()
        return cls(key.epoch, key.members, key.payload_bits, W, forms, key.subkey(TURNS))

    @property
    def turns(self) -> tuple[F32, F32]:
        """O_T (d_T, d_T) and O_C (d_C, d_C)."""
        return _turn(self.secret, "units", self.W.shape[1]), _turn(self.secret, "contexts", self.W.shape[2])

    @property
    def per_matrix(self) -> int:
        """How many members share one matrix."""
        return self.members // len(self.W)

    @functools.cached_property
    def messages(self) -> Messages:
        """The signs in use: a payload's low bits, and a member's high ones."""
        high = [MESSAGE_BITS - 1 - bit for bit in range(self.per_matrix.bit_length() - 1)]
        return Messages([*range(self.payload_bits), *high], d_T=self.W.shape[1], d_C=self.W.shape[2])

    @functools.cached_property
    def _arranged(self) -> F32:
        return self.messages.arranged(self._turned_own)

    @functools.cached_property
    def _turned_own(self) -> F32:
        return self._turned(self.W)

    @functools.cached_property
    def payloads(self) -> NDArray[np.int64]:
        """The payload of each place in `Messages.scores`."""
        return self.messages.numbers & ((1 << self.payload_bits) - 1)

    @functools.cached_property
    def shared(self) -> NDArray[np.int64]:
        """The number, among the members of one matrix, of each place in `Messages.scores`."""
        numbers = self.messages.numbers
        bits = range(self.per_matrix.bit_length() - 1)
        shifted = ((numbers >> (MESSAGE_BITS - 1 - bit) & 1) << bit for bit in bits)
        return sum(shifted, np.zeros_like(numbers))

    def message(self, use: KeyUse) -> int:
        """The message whose signs a member and a payload have together."""
        shared = use.member // len(self.W)
        bits = range(self.per_matrix.bit_length() - 1)
        return use.payload + sum(((shared >> bit) & 1) << (MESSAGE_BITS - 1 - bit) for bit in bits)

    def matrix(self, use: KeyUse) -> F32:
        """The matrix (d_T, d_C) of a member and a payload."""
        check_use(use.member, use.payload, members=self.members, payload_bits=self.payload_bits)
        index, message = use.member % len(self.W), self.message(use)
        if message == 0:
            return np.asarray(self.W[index])
        left, right = self.messages.signs(message)
        (O_T, O_C), signed = self.turns, self._turned_own[index] * left[:, None] * right[None, :]
        return np.asarray(O_T @ signed @ O_C.T)

    def form(self, use: KeyUse) -> FormKey | None:
        """What gives the h of a member and a payload."""
        if not self.forms:
            return None
        return dataclasses.replace(self.forms[use.member % len(self.W)], message=self.message(use))

    def _turned(self, matrices: F32) -> F32:
        """Matrices (…, d_T, d_C) in the coordinates that have signs; where nothing has any, as they are."""
        if self.messages.count == 1:
            return matrices
        O_T, O_C = self.turns
        return np.asarray(O_T.T @ matrices @ O_C)

    def scores(self, F: F64) -> F64:
        """z of all uses, (K, messages), for a text's F (d_T, d_C)."""
        if self.messages.count == 1:  # in double precision, as a plain key has it
            sums: F64 = np.tensordot(self.W, F, 2)[:, None]
        else:
            sums = self.sums(F.astype(np.float32)).astype(np.float64)
        z: F64 = standard(sums, np.sum(np.square(F)))
        return z

    def form_scores(self, text: FormPairs) -> F64:
        """z_F of all uses, (K, messages), for a text's words; NaN where there are none."""
        if not self.forms:
            return np.full((len(self.W), self.messages.count), np.nan)
        bits = np.stack([form.bits(text.numbers) for form in self.forms])  # (K, N)
        values, classes = signed(bits, 0) * text.weights, self.messages.packed(bits.view(np.int64))
        sums: F64 = np.empty((self.messages.count, len(self.forms)))
        for i, (own, row) in enumerate(zip(classes, values, strict=True)):
            sums[:, i] = np.bincount(own, weights=row, minlength=self.messages.count)
        scores = walsh_transform(sums)[self.messages.packed(self.messages.numbers)].T
        return ratio(scores, text.square)

    def noise(self, number: int) -> F64:
        """h of one word in its context under all uses, (K, messages)."""
        one = FormPairs(np.array([number], dtype=np.uint64), np.zeros(1, dtype=np.int64), np.ones(1))
        return self.form_scores(one)

    def sums(self, M: F32) -> F32:
        """⟨M, W⟩ of all uses, (K, messages)."""
        return self.messages.scores(self.messages.arranged(self._turned(M)[None]), self._arranged)

    def use(self, index: int, place: int) -> KeyUse:
        """The use at a place of `scores`."""
        member = index + len(self.W) * int(self.shared[place])
        return KeyUse(member, int(self.payloads[place]), self.name)

    def leading_member(self, text: TextMatrix, *, payload: int = 0) -> int:
        """The member under which a text scores highest, with a payload."""
        z = larger_of(self.scores(text.F), self.form_scores(text.form))[0]
        z[:, self.payloads != payload] = -np.inf
        return self.use(*divmod(int(np.argmax(z)), z.shape[1])).member


class KeyMatrices:
    """The matrices of all uses of a key; ``epochs`` has the current one last. As secret as the key.

    Those that may be published have no forms: they find a mark, but do not tell who made it.
    """

    def __init__(self, epochs: Sequence[EpochMatrices]) -> None:
        self.epochs = tuple(epochs)

    @classmethod
    def of(cls, key: Key, *, d_T: int, d_C: int, form: bool = True) -> KeyMatrices:
        """Draw the matrices of a key and of those that it retired, and what gives h if words carry it."""
        return cls([EpochMatrices.of(each, d_T=d_T, d_C=d_C, form=form) for each in (*key.retired, key)])

    @classmethod
    def plain(cls, key: UseKey) -> KeyMatrices:
        """The only use of a plain key."""
        return cls([EpochMatrices(None, 1, 0, key.W[None], () if key.form is None else (key.form,))])

    def __repr__(self) -> str:
        return f"KeyMatrices({len(self.epochs)} epochs, {self.count} uses)"

    @property
    def current(self) -> EpochMatrices:
        """The epoch that marks."""
        return self.epochs[-1]

    @functools.cached_property
    def count(self) -> int:
        """The number of uses."""
        return sum(len(each.W) * each.messages.count for each in self.epochs)

    def epoch(self, name: str | None) -> EpochMatrices:
        """An epoch by its name; the current one by None."""
        return next((each for each in self.epochs if name is not None and each.name == name), self.current)

    def key(self, use: KeyUse) -> UseKey:
        """The numbers with which a use marks."""
        epoch = self.epoch(use.epoch)
        return UseKey(epoch.matrix(use), epoch.form(use))

    def published(self) -> KeyMatrices:
        """The matrices without what gives h; not those whose messages need the secret of the turns."""
        if any(each.messages.count > 1 for each in self.epochs):
            raise ConfigError("a key with payloads, or a ring of more than 16 members, cannot be published")
        return KeyMatrices([dataclasses.replace(each, forms=(), secret=b"") for each in self.epochs])

    @property
    def is_public(self) -> bool:
        """Whether they may be published: nothing in them gives h."""
        return not any(each.forms or each.secret for each in self.epochs)

    def sums(self, M: F32) -> F32:
        """⟨M, W⟩ of all uses, (count,), for a matrix M (d_T, d_C)."""
        return np.concatenate([each.sums(M).ravel() for each in self.epochs])

    def noise(self, number: int) -> F64:
        """h of one word in its context under all uses, (count,)."""
        return np.concatenate([each.noise(number).ravel() for each in self.epochs])

    def use(self, number: int) -> KeyUse:
        """The use at a place of `sums`."""
        for each in self.epochs:
            size = len(each.W) * each.messages.count
            if number < size:
                return each.use(*divmod(number, each.messages.count))
            number -= size
        raise IndexError(number)

    def find(self, text: TextMatrix) -> FoundUse:
        """The use that fits a text best."""
        meaning = [each.scores(text.F) for each in self.epochs]
        form = [each.form_scores(text.form) for each in self.epochs]
        # 1. The best use of each epoch: Bonferroni within a matrix, Šidák over the independent ones
        larger = [larger_of(*both) for both in zip(meaning, form, strict=True)]
        tops = [int(np.argmax(m)) for m, _, _ in larger]
        p_values = [
            min(float(p.flat[top]) * p.shape[1], 1.0) for (_, _, p), top in zip(larger, tops, strict=True)
        ]
        highest = [float(m.flat[top]) for (m, _, _), top in zip(larger, tops, strict=True)]
        best = min(range(len(larger)), key=lambda i: (p_values[i], -highest[i]))
        epoch, at = self.epochs[best], tops[best]
        index, place = divmod(at, meaning[best].shape[1])
        z_meaning, z_form = float(meaning[best].flat[at]), float(form[best].flat[at])
        # 2. Posterior probabilities by the meaning, and by the sum that decided
        shares = posterior(meaning)
        own = shares[best]
        if highest[best] > z_meaning:
            own = posterior([(z + z_F) / 2**0.5 for z, z_F in zip(meaning, form, strict=True)])[best]
        member = np.zeros(own.shape, dtype=bool)  # the uses with the same member, and with the same payload
        member[index] = epoch.shared == epoch.shared[place]
        payload = np.broadcast_to(epoch.payloads == epoch.payloads[place], own.shape)
        return FoundUse(
            use=epoch.use(index, place),
            z=float(larger[best][1].flat[at]),
            z_meaning=z_meaning,
            z_form=z_form,
            p_value=sidak_min(p_values[best], tests=sum(len(each.W) for each in self.epochs)),
            n_hypotheses=self.count,
            payload_confidence=min(float(own[payload].sum()), 1.0),
            member_confidence=min(float(own[member].sum()), 1.0),
            epoch_confidence=min(float(own.sum()), 1.0),
            share=min(float(shares[best].flat[at]), 1.0),
        )

    def meta(self) -> list[dict[str, Any]]:
        """What a stored detector keeps besides `arrays`."""
        return [
            {"name": each.name, "members": each.members, "payload_bits": each.payload_bits}
            for each in self.epochs
        ]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The matrices, for a stored detector."""
        secrets = {
            f"ring_{i}_secret": np.frombuffer(each.secret, dtype=np.uint8)
            for i, each in enumerate(self.epochs)
        }
        forms = {
            f"ring_{i}_form": np.array([form.words for form in each.forms])
            for i, each in enumerate(self.epochs)
            if each.forms
        }
        return {f"ring_{i}": each.W for i, each in enumerate(self.epochs)} | forms | secrets

    @classmethod
    def stored(cls, meta: Sequence[Mapping[str, Any]], arrays: Mapping[str, NDArray[Any]]) -> KeyMatrices:
        """Restore what `meta` and `arrays` describe."""
        epochs = [
            EpochMatrices(
                each["name"],
                each["members"],
                each["payload_bits"],
                np.array(arrays[f"ring_{i}"]),
                tuple(map(FormKey.stored, arrays.get(f"ring_{i}_form", ()))),
                arrays[f"ring_{i}_secret"].tobytes(),
            )
            for i, each in enumerate(meta)
        ]
        return cls(epochs)


def posterior(scores: Sequence[F64]) -> list[F64]:
    """The posterior probability of each use of each epoch, by their scores: ∝ exp(s_best s_j)."""
    top = max(float(each.max()) for each in scores)
    weights = [np.exp(max(top, 0.0) * (each - top)) for each in scores]
    total = sum(float(each.sum()) for each in weights)
    return [each / total for each in weights]


@functools.lru_cache(maxsize=16)
def _turn(secret: bytes, side: str, d: int) -> F32:
    """A uniformly random orthogonal matrix (d, d)."""
    stream = KeyStream(hashlib.sha256(f"dewmark/turn of {side}/".encode() + secret).digest())
    return haar_orthogonal(stream, d).astype(np.float32)


def random_member(seed: int, members: int) -> int:
    """The member that marks a text with this seed, if nobody chose one."""
    if members == 1:
        return 0
    return int(np.random.SeedSequence([seed, INDEPENDENT]).generate_state(1, np.uint64)[0] % members)
