"""A text as one public matrix, what is cut from it, and z under any key: all tests of words end here.

With a key's matrix W (d_T, d_C) of independent standard normals, everything that a text says about a key is

    M = Σ_i w_i (t_i − μ_i) c_iᵀ,    F = f(M),    z = ⟨F, W⟩ / ‖F‖,

exactly N(0, 1) over keys, for texts of any length, because F is a function of the text alone. Under one key
the correlation between the z of two texts is the cosine between their matrices, so what all texts of a kind
have in common is what makes false alarms come in blocks. Three things remove it:

- the expected unit μ_i is subtracted: what a language model expected (`dewmark.dew.reading`), or the text's
  mean unit t̄. The differences are not normalised afterwards;
- a word counts where it is new in the text, a frequent one up to four times (`dewmark.dew.reading`);
- M is flattened. What a language or a kind of text shares, E[t cᵀ], grows with the length of the text and
  lies in few directions, while a mark lies in all alike. So no singular value may exceed ``limit`` times
  their root mean square:

    f(M) = M − Σ_j (s_j − b)₊ l_j r_jᵀ,    b = limit · ‖f(M)‖/√min(L, d)

A text with many more pairs than the space has dimensions d can spare evidence, and has more in common with
others: from L = 2d on the limit falls with ∛L, down to `_LEAST_LIMIT`.

‖f(M)‖² is computed in double precision from f(M) itself: as a difference of two norms it would lose its
digits where little is left of M (drills, lists): b then shrinks towards 0, and below `LEAST_SHARE` of the
evidence there is nothing to test.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F32, F64, U64, Mask
from dewmark.core.keys import KeyStream
from dewmark.dew.form import FormKey, FormPairs
from dewmark.dew.reading import Pairs
from dewmark.dew.reading import Reading as Batch
from dewmark.scheme import Reading
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, TINY, Statistic, key_test
from dewmark.stats.two_sums import larger_of

__all__ = ["TextMatrix", "UseKey", "WordReading", "passage_test", "start_columns", "text_matrices"]

_DIRECTIONS, _OF_LONG = 24, 64  # at most so many are cut, of texts with up to 2d pairs and of longer ones
_ITERATIONS = 3  # of the search for them
_ROUNDS = 30  # until the bound settles
_LEAST_LIMIT = 1.05  # where nearly all directions are cut alike
LEAST_SHARE = 0.01
"""A text is tested if at least this share of its evidence is left after flattening; ordinary ones keep 5% or
more."""
_ALIKE = 1e-5  # of two columns, relative to the first: too near for half the digits
_PAIRS_AT_ONCE, _TEXTS_AT_ONCE = 4096, 64


def z_scores(F: F64, square: F64, W: F32) -> F64:
    """z (B, K) of B texts with F (B, d_T, d_C) and ‖F‖² (B,) under K keys with W (K, d_T, d_C).

    z is 0 where there is nothing to test.
    """
    return standard(F.reshape(len(F), -1) @ W.reshape(len(W), -1).T, square[:, None])


def standard(sums: F64, square: F64) -> F64:
    """z of sums ⟨F, W⟩, which have the variance ``square`` = ‖F‖² over keys; 0 where that is 0."""
    return np.asarray(sums * (square > TINY) / (square + (square <= TINY)) ** 0.5)


@dataclass(frozen=True)
class Cuts:
    """The q directions of a text's matrix that stand out, and by how much.

    ``left`` (q, d_T) and ``right`` (q, d_C) are unit rows, ``sizes`` (q,) what is cut from each singular
    value.
    """

    left: F64
    right: F64
    sizes: F64


@dataclass(frozen=True)
class UseKey:
    """The secret numbers of a plain key, or of one use of a key: W (d_T, d_C), and what gives h if known."""

    W: F32 = field(repr=False)
    form: FormKey | None = None


@dataclass(frozen=True)
class KeyedEvidence(Evidence):
    """Evidence under the numbers of a key; its ``whole`` is a `TextMatrix`."""

    key: UseKey | None = field(default=None, repr=False)

    @property
    def shown(self) -> tuple[F64, Mask]:
        """What is shown of each word, (L,): u, h, or (u + h)/√2 where it has both; and whether it has any."""
        shown, scored = super().shown
        if isinstance(self.whole, TextMatrix) and self.key is not None and self.key.form is not None:
            form, meant = self.whole.form, self.whole.pairs.positions >= 0
            h, places = self.key.form.noise(form.numbers), form.places
            shown[places] = np.where(meant[places], (shown[places] + h) / math.sqrt(2.0), h)
            scored[places] = True
        return shown, scored


@dataclass(frozen=True, kw_only=True)
class JointEvidence(KeyedEvidence):
    """Meaning and form in one sum: a pair's score is u + b v h / w, with h of the word where it first occurs.

    b makes the two sums of the whole text vary alike. Words that have only form are further pairs, without
    rows; ``meant`` (N,) says which pairs have a meaning. ``numbers`` (N,) and ``v`` (N,) are those of the
    words whose h counts; v is 0 where none does.
    """

    of_pairs: ClassVar[tuple[str, ...]] = ("meant", "numbers", "v")

    meant: Mask
    numbers: U64
    v: F64

    @property
    def meaning(self) -> KeyedEvidence:
        """Its pairs that have a meaning, without their places."""
        some = np.flatnonzero(self.meant[: self.pairs])
        return KeyedEvidence(
            scores=self.scores[some],
            alignments=self.alignments[some],
            weights=self.weights[some],
            positions=np.arange(len(some)),
            T=self.T[some],
            C=self.C[some],
            kernel=self.kernel,
            unit_rows=False,
            key=self.key,
        )

    @property
    def form(self) -> FormPairs:
        """Its words whose h counts."""
        some = np.flatnonzero(self.v)
        return FormPairs(self.numbers[some], some, self.v[some])


@dataclass(frozen=True)
class TextMatrix:
    """One text, ready to be tested under any key.

    ``T`` (N + q, d_T) are the differences t_i − μ_i of its pairs and ``C`` (N + q, d_C) their contexts, with
    the q directions of ``cuts`` behind them. ``F`` (d_T, d_C) is f(M), and ``square`` is ‖F‖², the variance
    over keys of ⟨F, W⟩; 0 if there is nothing to test.
    """

    pairs: Pairs
    T: F32
    C: F32
    cuts: Cuts
    F: F64
    square: float

    @functools.cached_property
    def blank(self) -> KeyedEvidence:
        """The evidence with all scores 0; the cuts are pairs that belong to no word."""
        weights = np.concatenate((self.pairs.weights, -self.cuts.sizes))
        return KeyedEvidence(
            scores=np.zeros(len(weights)),
            alignments=np.zeros(len(weights), dtype=np.float32),
            weights=weights,
            positions=self.pairs.positions,
            T=self.T,
            C=self.C,
            kernel=(1.0,),
            extra=len(self.cuts.sizes),
            unit_rows=False,
            whole=self,
        )

    @property
    def form(self) -> FormPairs:
        """The words whose h counts."""
        return self.pairs.form

    @property
    def effective_length(self) -> float:
        """How many independent words the text is worth."""
        return self.blank.effective_length(self.square)

    def under(self, key: UseKey) -> KeyedEvidence:
        """The evidence of meaning under a key: u of every pair, on its own scale for display."""
        n, T = self.blank.pairs, np.asarray(self.blank.T)
        u: F32 = np.einsum("ij,ij->i", T @ key.W, self.blank.C)
        norms = np.ones(len(u), dtype=np.float32)
        norms[:n] = np.linalg.norm(T[:n], axis=1)
        shown = np.divide(u, norms, out=np.zeros_like(u), where=norms > 0.0)
        return dataclasses.replace(self.blank, scores=u.astype(np.float64), alignments=shown, key=key)

    @functools.cached_property
    def joint(self) -> JointEvidence | None:
        """The evidence of meaning and form together, with all scores 0; None if one of them is missing."""
        blank, form = self.blank, self.form
        if self.square <= TINY or form.square == 0.0:
            return None
        n, pair = blank.pairs, blank.positions[form.places]
        (alone,) = np.nonzero(pair < 0)
        pair[alone] = n + np.arange(len(alone))
        positions = blank.positions.copy()
        positions[form.places] = pair
        rows = ("scores", "alignments", "weights", "T", "C")
        made = vars(blank) | {name: _widened(getattr(blank, name), n, len(alone)) for name in rows}
        weights = made["weights"]
        weights[n : n + len(alone)] = 1.0
        numbers, v = np.zeros(len(weights), dtype=np.uint64), np.zeros(len(weights))
        numbers[pair], v[pair] = form.numbers, form.weights
        own = self.square / form.square * np.square(v / weights)
        made |= {"positions": positions, "comparable": False, "own": own}
        meant = _widened(np.ones(len(blank), dtype=bool), n, len(alone))
        return JointEvidence(**made, meant=meant, numbers=numbers, v=v)

    def views(self, evidence: KeyedEvidence) -> Sequence[KeyedEvidence]:
        """The evidence of this text under a key, and the joint one if the key tells h."""
        key, joint = evidence.key, self.joint
        if key is None or key.form is None or joint is None:
            return [evidence]
        assert joint.own is not None
        u, shown = (
            _widened(rows, evidence.pairs, len(joint) - len(evidence))
            for rows in (evidence.scores, evidence.alignments)
        )
        scores = u + np.sqrt(joint.own) * key.form.noise(joint.numbers)
        return [evidence, dataclasses.replace(joint, scores=scores, alignments=shown, key=key)]

    def test(self, key: UseKey) -> Statistic:
        """The key test under a key."""
        z = float(z_scores(self.F[None], np.array([self.square]), key.W[None])[0, 0])
        z_form = math.nan if key.form is None else self.form.z(key.form)
        return statistic(z, z_form, self.square, self.effective_length)


def _widened(rows: NDArray[Any], n: int, more: int) -> NDArray[Any]:
    """Rows with so many ``more`` of zeros behind the first n, which take no memory until they are written."""
    found = np.zeros((len(rows) + more, *rows.shape[1:]), dtype=rows.dtype)
    found[:n], found[n + more :] = rows[:n], rows[n:]
    return found


@dataclass(frozen=True)
class WordReading(Reading):
    """A text read word by word, as one matrix; ``carrying`` is the share of its words that have a row."""

    matrix: TextMatrix
    carrying: float


@dataclass(frozen=True, slots=True)
class TwoSums(Statistic):
    """The result of the key test, and the two scores behind it; NaN where there is none."""

    z_meaning: float = math.nan
    z_form: float = math.nan


def statistic(z: float, z_form: float, square: float, length: float) -> Statistic:
    """The result of the key test, by the text's matrix and its words."""
    if square <= TINY:
        return NOTHING
    _, joint, p = map(float, larger_of(z, z_form))
    return TwoSums(joint, p, length, z, z_form)


def text_matrices(reading: Batch, *, limit: float) -> Iterator[TextMatrix]:
    """The matrices of a reading's texts, flattened to ``limit``.

    The rows of a long text are tens of megabytes: those of the reading go before those of a matrix are made.
    """
    texts = reading.texts
    for some in _groups(texts):
        rows = [(differences(each, reading.token_rows), reading.context_rows[each.windows]) for each in some]
        if some[-1] is texts[-1]:
            del reading
        sums = [_sum_of_pairs(T, C, pairs.weights) for pairs, (T, C) in zip(some, rows, strict=True)]
        cuts = cuts_of(np.stack([matrix for matrix, _ in sums]), some, limit=limit)
        rows.reverse()
        for pairs, (matrix, energy), cut in zip(some, sums, cuts, strict=True):
            F = matrix - (cut.left.T * cut.sizes) @ cut.right
            square = float(np.sum(np.square(F)))
            whole = float(np.sum(np.square(matrix)))
            T, C = rows.pop()
            T = np.concatenate((T, cut.left), dtype=np.float32)
            C = np.concatenate((C, cut.right), dtype=np.float32)
            yield TextMatrix(pairs, T, C, cut, F, square if testable(square, whole, energy) else 0.0)


def _sum_of_pairs(T: F32, C: F32, weights: F64) -> tuple[F64, float]:
    """M (d_T, d_C) of pairs T (N, d_T) and C (N, d_C), and Σ_i ‖w_i t_i c_iᵀ‖².

    In double precision a long text's rows would take hundreds of megabytes, so it is summed part by part.
    """
    M, norms = np.zeros((T.shape[1], C.shape[1])), np.zeros(len(T))
    for i in range(0, len(T), _PAIRS_AT_ONCE):
        part = slice(i, i + _PAIRS_AT_ONCE)
        t, c = T[part].astype(np.float64), C[part] * weights[part, None]
        M += t.T @ c
        norms[part] = np.linalg.norm(t, axis=1) * np.linalg.norm(c, axis=1)
    return M, float(np.sum(np.square(norms)))


def _groups(texts: Sequence[Pairs]) -> Iterator[Sequence[Pairs]]:
    """Texts in order, at most about `_PAIRS_AT_ONCE` pairs at a time."""
    start = size = 0
    for i, pairs in enumerate(texts):
        size += len(pairs.tokens)
        if size >= _PAIRS_AT_ONCE or i + 1 - start == _TEXTS_AT_ONCE or i == len(texts) - 1:
            yield texts[start : i + 1]
            start, size = i + 1, 0


def differences(pairs: Pairs, units: F32) -> F32:
    """t_i − μ_i of a text's pairs, (N, d_T); ``units`` (V, d_T) are the rows of units and expectations."""
    T = units[pairs.tokens]
    if not np.any(pairs.tokens != pairs.tokens[:1]):  # a lone unit is not its own mean
        return T
    mean = np.asarray((pairs.weights / pairs.weights.sum()).astype(np.float32) @ T)
    if pairs.expected is None:
        return np.asarray(T - mean)
    assert pairs.unforeseen is not None
    expected = units[pairs.expected]
    expected += pairs.unforeseen[:, None] * mean
    T -= expected
    return T


def cuts_of(M: F64, texts: Sequence[Pairs], *, limit: float) -> list[Cuts]:
    """What to cut from the matrices M (B, d_T, d_C) of texts.

    Texts that search for equally many directions do so together.
    """
    d = min(M.shape[1:])
    lengths = [float(pairs.weights.sum()) for pairs in texts]
    alike: dict[int, list[int]] = {}
    for i, pairs in enumerate(texts):
        alike.setdefault(most_directions(len(pairs.tokens), lengths[i], d=d), []).append(i)
    found: dict[int, Cuts] = {}
    for most, members in alike.items():
        directions = leading_directions(M[members].astype(np.float32), most)
        for i, values, left, right in zip(members, *directions, strict=True):
            sizes = cut_sizes(values, float(np.sum(np.square(M[i]))), lengths[i], d=d, limit=limit)
            found[i] = Cuts(left[:, : len(sizes)].T, right[:, : len(sizes)].T, sizes)
    return [found[i] for i in range(len(texts))]


def testable(kept: float, *energies: float) -> bool:
    """Whether ‖f(M)‖² is large enough beside ‖M‖² and Σ_i ‖w_i t_i c_iᵀ‖²."""
    return kept > max(TINY, *(LEAST_SHARE * energy for energy in energies))


def most_directions(pairs: int, length: float, *, d: int) -> int:
    """How many directions to look for in a text of so many pairs, whose weights sum to ``length``."""
    return min(_DIRECTIONS if length <= 2 * d else _OF_LONG, pairs, d)


def cut_sizes(values: F64, square: float, length: float, *, d: int, limit: float) -> F64:
    """What is cut from those of a matrix's singular values (q,) that stand out.

    ``square`` is ‖M‖², ``length`` the sum of the text's weights, and the largest value comes first.
    """
    if square <= TINY:
        return values[:0]
    limit = max(limit * min(2.0 * d / length, 1.0) ** (1 / 3), min(limit, _LEAST_LIMIT))
    bound = _bound(values, square, limit, rank=min(length, d))
    return values[values > bound] - bound


def leading_directions(matrices: F32, count: int) -> tuple[F64, F64, F64]:
    """The leading singular values (B, q) of matrices (B, d_T, d_C), float32, and their directions.

    These are (B, d_T, q) and (B, d_C, q).
    """
    right = start_columns(matrices.shape[-1], count)
    if not count:
        wide = matrices.astype(np.float64)
        return wide[:, 0, :0], wide[..., :0], wide.mT[..., :0]
    for _ in range(_ITERATIONS):
        right = _orthonormal(matrices.mT @ (matrices @ right))
    image, basis = (matrices @ right).astype(np.float64), right.astype(np.float64)
    squares, turn = np.linalg.eigh(image.mT @ image)
    squares, turn = np.flip(squares, -1), np.flip(turn, -1)
    values = np.sqrt(np.maximum(squares, 0.0))
    return values, image @ turn / (values + (values == 0.0))[:, None], basis @ turn


def _orthonormal(columns: F32) -> F32:
    """An orthonormal basis (B, d, q) of each space of columns (B, d, q)."""
    wide = columns.astype(np.float64)
    try:  # in double precision this is a QR decomposition at a third of the time, unless some are alike
        factor = np.linalg.cholesky(wide.mT @ wide)
    except np.linalg.LinAlgError:
        if half := len(wide) // 2:
            return np.concatenate([_orthonormal(part) for part in (columns[:half], columns[half:])])
        return np.linalg.qr(wide)[0].astype(np.float32)
    basis = wide @ np.linalg.inv(factor).mT
    alike = np.linalg.diagonal(factor).min(axis=-1) < _ALIKE * factor[:, 0, 0]
    for i in np.flatnonzero(alike):
        basis[i] = np.linalg.qr(wide[i])[0]
    return basis.astype(np.float32)


def _bound(values: F64, square: float, limit: float, *, rank: float) -> float:
    """b for a matrix of this squared norm with these singular values (q,) at the top, the largest first."""
    ordered = values.tolist()
    rest = [max(square - float(inner), 0.0) for inner in (0.0, *np.cumsum(np.square(values)))]
    bound, cut = limit * math.sqrt(square / rank), 0
    for _ in range(_ROUNDS):
        while cut < len(ordered) and ordered[cut] > bound:
            cut += 1
        last, bound = bound, limit * math.sqrt((rest[cut] + cut * bound * bound) / rank)
        if bound == last:
            break
    return bound


@functools.cache
def start_columns(rows: int, columns: int) -> F32:
    """Fixed public columns from which the search for directions starts, (rows, columns)."""
    stream = KeyStream(hashlib.sha256(b"dewmark/leading directions").digest())
    return stream.normals(rows, columns).astype(np.float32)


# Passages


def passage_test(evidence: Evidence, *, limit: float) -> Statistic:
    """The key test of some words of a text, which are flattened by themselves, as a whole text is.

    A scan of a text's windows (`dewmark.stats.scan`) sums the scores of words, from which nothing is cut.
    What unrelated texts have in common grows with the length of a window as it does with that of a text, and
    would make false alarms on passages come in blocks. So a window that a scan picks out must stand this test
    too, and the larger p-value counts. The passage's own matrix says what is cut, never the words around it:
    these may be marked, and would tell the test something about the key. Words that have only form count in
    the second sum alone; evidence of meaning alone is tested by the first.
    """
    if not isinstance(evidence, KeyedEvidence) or (key := evidence.key) is None or not evidence.pairs:
        return key_test(evidence)
    meaning, z_form = evidence, math.nan
    if isinstance(evidence, JointEvidence):
        meaning, z_form = evidence.meaning, math.nan if key.form is None else evidence.form.z(key.form)
    F, whole = flattened(meaning, limit=limit)
    square = float(np.sum(np.square(F)))
    energy = float(np.sum(np.square(meaning.weights[: meaning.pairs]) * meaning.sizes))
    if not testable(square, whole, energy):  # it has a length, but nothing to test
        return dataclasses.replace(NOTHING, effective_length=meaning.effective_length(whole))
    z = float(z_scores(F[None], np.array([square]), key.W[None])[0, 0])
    return statistic(z, z_form, square, meaning.effective_length(square))


def flattened(evidence: Evidence, *, limit: float) -> tuple[F64, float]:
    """f(M) (d_T, d_C) of the words of an evidence, and ‖M‖²."""
    n = evidence.pairs
    weights = evidence.weights[:n]
    T, C = (np.asarray(rows[:n], dtype=np.float64) for rows in (evidence.T, evidence.C))
    M, d, length = (T * weights[:, None]).T @ C, min(T.shape[1], C.shape[1]), float(weights.sum())
    whole = float(np.sum(np.square(M)))
    values, left, right = (
        each[0] for each in leading_directions(M[None].astype(np.float32), most_directions(n, length, d=d))
    )
    sizes = cut_sizes(values, whole, length, d=d, limit=limit)
    return M - (left[:, : len(sizes)] * sizes) @ right[:, : len(sizes)].T, whole
