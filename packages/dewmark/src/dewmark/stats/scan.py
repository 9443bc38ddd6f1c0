"""Which parts of a text are marked: a scan finds significant windows, a posterior their boundaries.

``docs/locate.md`` derives what follows. A window w of consecutive scored units has z_w = S_w / √Var_w and a
share v_w of the error: all lengths (a geometric grid) get the same, and so do all windows of one length. With

    q_w = P(N(0,1) > z_w) / v_w,    Q = min_w q_w,    N(q) = the number of windows with q_w ≤ q,
    P(Q ≤ q) = q Σ_w v_w E[ 1/N(q) | q_w ≤ q ]  exactly.

It is simulated: draw a window by its share, its z beyond its threshold, all other scores given that z, and
count. Two standard errors are added, and the result never exceeds Bonferroni's bound.

A text of up to 2 x `REACH` scored units is one chunk, with windows of every length. A longer one is divided
into overlapping chunks: windows are up to `REACH` units long, each belongs to the chunk in which it begins,
and N counts only windows of the same chunk, which can only make the result more conservative.

All windows with p ≤ fpr contain marked units, all at once with probability 1 − fpr, so any choice among them
keeps that guarantee. The segments are the disjoint significant windows that maximise

    Σ_w ( Σ_{i in w} (π_i − ½ − REPEATED · r_i) − COST ),    π_i = P(unit i is marked | scores),

where π is the posterior of a two-state chain; neighbours are merged if that increases the same sum. What a
text repeats carries no mark and no evidence: a pair counts where it first occurs, and r_i is how many more
units around it than is usual in this text say nothing new. So a stretch that says again what was said before
is not joined to a marked one because a few new words in it score high by chance.

The rest of the text (sum S_0, the segments' S_1) is compared with the segments: with β the regression of S_0
on S_1 over keys, z_rest = (S_0 − βS_1)/σ is standard normal for a rest that was written without the key. How
far the rest's mean stays below that of the segments is a second z, corrected as that of a window is.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri

from dewmark.arrays import F64, I64
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic, covariance, one_sided_p, score_variance

Test = Callable[[Evidence], Statistic]

REACH = 1024
SHORTEST = 30
MIN_EFFECTIVE_LENGTH = 16.0
DRAWS = 1000
COST = 8.0
REPEATED = 0.2
"""What a segment loses by a unit that says nothing new; it gains ½ by one that is surely marked."""
_RATIO = 1.12  # of one window length to the next
_STEPS = 14  # windows begin 1/14 of their length apart
BATCH = 64  # draws held at a time
_JITTER = 1e-3  # relative to a score's variance; lets the covariance of near-equal pairs be factorised
# log10 of the levels q at which P(Q ≤ q) is computed; it is interpolated in between
_LEVELS = np.array([1.5, 1.0, 0.6, 0.3, 0.0, -0.3, -0.6, -1.0, -1.5, -2.0, -3.0, -4.5, -7.0, -11.0, -16.0])
_STRENGTHS = (0.35, 0.5, 0.75, 1.1)  # μ in standard deviations of one score
_LENGTHS = (60.0, 200.0, 600.0)  # mean length of marked stretches, in units
_MARKED = 0.3  # the prior share of marked units


@dataclass(frozen=True)
class Units:
    """The n scored units of a text: position ``place``, ``pair`` and ``weight`` in the sum, (n,) each.

    If weights are the numbers of occurrences, a pair counts wherever it occurs. If a scheme counts each pair
    once, its weights differ and a pair counts where it first occurs.
    """

    place: I64
    pair: I64
    weight: F64

    @classmethod
    def of(cls, evidence: Evidence) -> Units:
        """The scored units of a text."""
        place = np.flatnonzero(evidence.positions >= 0)
        pair = evidence.positions[place]
        counts = np.bincount(pair, minlength=evidence.pairs)
        if not np.array_equal(evidence.weights[: evidence.pairs], counts):
            first = np.sort(np.unique(pair, return_index=True)[1])
            return cls(place[first], pair[first], evidence.weights[pair[first]])
        return cls(place, pair, np.ones(len(pair)))

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, part: slice | NDArray[np.bool_]) -> Units:
        return Units(self.place[part], self.pair[part], self.weight[part])


@dataclass(frozen=True)
class Scan:
    """Windows [start, end) of scored units, their z and their share of the error, (W,) each.

    ``crowding`` (levels,) is Σ_w v_w E[1/N | q_w ≤ q] at the levels of this module.
    """

    start: I64
    end: I64
    z: F64
    share: F64
    crowding: F64

    @property
    def corrected(self) -> F64:
        """Family-wise p-values, (W,)."""
        return self._family_wise(log_ndtr(-self.z) / math.log(10.0) - np.log10(self.share))

    def correct(self, window: int, p_value: float) -> float:
        """The family-wise p-value of a window whose p-value comes from elsewhere, such as an exact test."""
        return float(self._family_wise(np.log10([max(p_value, 1e-320) / self.share[window]]))[0])

    def _family_wise(self, log_q: F64) -> F64:
        """P(Q ≤ q) for each log10 q; Bonferroni's bound below the last level."""
        log_p = np.minimum(_LEVELS + np.log10(np.maximum(self.crowding, 1e-300)), 0.0)
        inside = np.interp(log_q, _LEVELS[::-1], log_p[::-1], right=0.0)
        below = np.minimum(log_q, log_p[-1])
        return np.asarray(10.0 ** np.where(log_q < _LEVELS[-1], below, inside))


class Search:
    """The windows of one text, which are the same under every key, and the distribution of their least q.

    Windows consist of scored units only, and those with an effective length below `MIN_EFFECTIVE_LENGTH` are
    left out. The draws have a fixed seed and do not depend on the scores, so results are deterministic.
    """

    def __init__(self, evidence: Evidence, *, draws: int = DRAWS) -> None:
        self._evidence, self._draws = evidence, draws
        self.units = Units.of(evidence)
        self._step = REACH if len(self.units) > 2 * REACH else max(len(self.units), 1)
        # 1. the windows of a text of this length: 1/(number of lengths) of the error for those of each length
        length, longest = len(self.units), max(self._step, SHORTEST)
        count = math.ceil(math.log(longest / SHORTEST) / math.log(_RATIO)) + 1
        sizes = np.unique(np.geomspace(SHORTEST, longest, count).round().astype(np.int64))
        sizes = sizes[sizes <= length]
        parts = []
        for size in sizes.tolist():
            start = np.arange(0, length - size + 1, max(size // _STEPS, 1))
            start = np.union1d(start, [length - size])  # windows of every length cover the last units
            share = np.full(len(start), 1.0 / (len(sizes) * len(start)))
            parts.append(_Windows(start, start + size, share))
        family = _concatenate(parts)
        # 2. those that are effectively long enough, chunk by chunk
        kept, deviations = [], [np.zeros(0)]
        for begin, chunk in self._chunks():
            mine = family.where((family.start >= begin) & (family.start < begin + self._step)).shifted(-begin)
            mine = mine.where(chunk.effective_length(mine) >= MIN_EFFECTIVE_LENGTH)
            kept.append(mine.shifted(begin))
            deviations.append(chunk.deviation(mine))
            del chunk  # before the next one is made
        self.windows = _concatenate(kept)
        self._deviation = np.concatenate(deviations)

    def z(self, scores: F64) -> F64:
        """z (W, keys) of every window, for the scores (N, keys) of the text's pairs."""
        total = np.zeros((len(self.units) + 1, scores.shape[1]))
        np.cumsum(scores[self.units.pair] * self.units.weight[:, None], axis=0, out=total[1:])
        sums = total[self.windows.end] - total[self.windows.start]
        return np.asarray(sums / self._deviation[:, None])

    def scan(self, z: F64) -> Scan:
        """Test every window under the key that gave the windows these z, (W,)."""
        return Scan(self.windows.start, self.windows.end, z, self.windows.share, self._crowding)

    @functools.cached_property
    def _crowding(self) -> F64:
        rng = np.random.default_rng(0)
        crowding, variance = np.zeros(len(_LEVELS)), np.zeros(len(_LEVELS))
        for begin, chunk in self._chunks():
            inside = (self.windows.start >= begin) & (self.windows.start < begin + self._step)
            mine = self.windows.where(inside).shifted(-begin)
            if mass := mine.share.sum():
                inverse = chunk.inverse_counts(mine, max(BATCH, round(self._draws * mass)), rng)
                crowding += mass * inverse.mean(axis=0)
                variance += mass**2 * inverse.var(axis=0) / len(inverse)
            del chunk
        return np.asarray(np.minimum(crowding + 2.0 * np.sqrt(variance), self.windows.share.sum()))

    def _chunks(self) -> Iterator[tuple[int, _Chunk]]:
        """Overlapping parts of the text and where they begin; only one is in memory at a time."""
        if self._step >= len(self.units) > 0:
            yield 0, self._whole
            return
        for begin in range(0, len(self.units), self._step):
            yield begin, _Chunk(self._evidence, self.units[begin : begin + 2 * self._step])

    @functools.cached_property
    def _whole(self) -> _Chunk:
        return _Chunk(self._evidence, self.units)


@dataclass(frozen=True, slots=True)
class Segment:
    """Units [start, end) of a text, with the evidence that they are marked.

    ``z``, ``p_value`` and ``effective_length`` are those of the test on these units alone. ``corrected`` is
    the family-wise p-value: the share of keys for which some window of this text would look as striking if it
    were unmarked. ``share`` is the expected share of marked units.
    """

    start: int
    end: int
    z: float
    p_value: float
    corrected: float
    effective_length: float
    share: float


@dataclass(frozen=True, slots=True)
class Rest:
    """The units outside all segments.

    ``z`` and ``p_value`` are those of the rest given the segments: large p-values say that it carries no
    evidence of its own. ``p_like_segments`` is the probability that a rest with the segments' strength would
    score as low, corrected for the choice of the segments.
    """

    units: int
    effective_length: float
    z: float
    p_value: float
    p_like_segments: float


@dataclass(frozen=True, slots=True)
class Found:
    """The marked segments of a text, in order and disjoint, and the rest, if there are segments.

    ``p_value`` is the family-wise p-value of the most striking window, segment or not.
    """

    segments: list[Segment]
    rest: Rest | None
    p_value: float


NOTHING_FOUND = Found([], None, 1.0)


def search(
    evidences: Sequence[Evidence],
    *,
    levels: Sequence[float],
    tests: Sequence[Test],
    known: Sequence[float] | None = None,
) -> list[Found]:
    """The marked segments of one text under each of several keys, each at its own level.

    The evidences differ in their scores only. ``tests`` are the schemes' own tests of a whole text, one per
    key. If one gives a window a larger p-value than the normal approximation (because its scores are few or
    skewed and their distribution is known exactly), that p-value counts. P-values above both the level and
    ``known``, by default the level, are 1: few texts have smaller ones, and the others need no simulation.
    """
    if not evidences:
        return []
    prepared = Search(evidences[0])
    z = prepared.z(np.stack([evidence.scores for evidence in evidences], axis=1))
    # a corrected p-value is at least that of the disjoint windows of the same length: few texts need draws
    disjoint = len(prepared.units) // (prepared.windows.end - prepared.windows.start)
    least = np.min(log_ndtr(-z) + np.log(disjoint)[:, None], axis=0, initial=np.inf)
    highest = [max(level, other) for level, other in zip(levels, known or levels, strict=True)]
    return [
        _found(prepared, evidence, prepared.scan(z[:, k]), fpr=levels[k], known=highest[k], test=tests[k])
        if highest[k] > 0.0 and least[k] <= math.log(highest[k])  # a level shared by many keys may be 0
        else NOTHING_FOUND
        for k, evidence in enumerate(evidences)
    ]


def _found(
    prepared: Search, evidence: Evidence, windows: Scan, *, fpr: float, known: float, test: Test
) -> Found:
    units = prepared.units
    corrected = windows.corrected
    checked: set[int] = set()

    def check(w: int) -> None:
        own = test(restrict(evidence, units[windows.start[w] : windows.end[w]]))
        corrected[w] = max(corrected[w], windows.correct(w, own.p_value))
        checked.add(w)

    while (best := int(np.argmin(corrected))) not in checked and corrected[best] <= known:
        check(best)
    if corrected[best] > fpr:
        return Found([], None, float(corrected[best]) if corrected[best] <= known else 1.0)
    marked, gained = gains(evidence)
    gain = np.concatenate([[0.0], np.cumsum(gained)])
    while True:
        chosen = _choose(windows, np.flatnonzero(corrected <= fpr), gain)
        unchecked = [w for w in chosen if w not in checked]
        if not unchecked:
            break
        for w in unchecked:
            check(w)
    segments, outside = [], np.ones(len(units), dtype=bool)
    groups: list[list[int]] = []  # neighbours, if the gap between them loses less than a segment costs
    for w in chosen:
        if groups and gain[windows.start[w]] - gain[windows.end[groups[-1][-1]]] > -COST:
            groups[-1].append(w)
        else:
            groups.append([w])
    for members in groups:
        start, end = int(windows.start[members[0]]), int(windows.end[members[-1]])
        outside[start:end] = False
        own = test(restrict(evidence, units[start:end]))
        segments.append(
            Segment(
                start=int(units.place[start]),
                end=int(units.place[end - 1]) + 1,
                z=own.z,
                p_value=own.p_value,
                corrected=float(corrected[members].min()),
                effective_length=own.effective_length,
                share=float(marked[start:end].mean()),
            )
        )
    rest = rest_of(evidence, units, outside, windows, chosen)
    return Found(segments, rest, float(corrected[best]))


def rest_of(
    evidence: Evidence, units: Units, outside: NDArray[np.bool_], windows: Scan, chosen: Sequence[int]
) -> Rest:
    """Test the units outside the segments that the ``chosen`` windows make up."""
    rest, inside = (restrict(evidence, units[mask]) for mask in (outside, ~outside))
    if len(rest) == 0:
        return Rest(0, 0.0, 0.0, 1.0, 1.0)
    V, V_0, V_1 = (score_variance(each) for each in (restrict(evidence, units), rest, inside))
    C = (V - V_0 - V_1) / 2.0
    S_0, S_1 = rest.total, inside.total
    n_0, n_1 = float(rest.weights.sum()), float(inside.weights.sum())
    floor = _JITTER * V_0
    z = (S_0 - C / V_1 * S_1) / math.sqrt(max(V_0 - C**2 / V_1, floor))
    spread = max(V_0 / n_0**2 + V_1 / n_1**2 - 2.0 * C / (n_0 * n_1), floor / n_0**2)
    below = one_sided_p((S_1 / n_1 - S_0 / n_0) / math.sqrt(spread))
    return Rest(
        units=int(outside.sum()),
        effective_length=rest.effective_length(V_0),
        z=z,
        p_value=one_sided_p(z),
        p_like_segments=max(windows.correct(w, below) for w in chosen),
    )


def gains(evidence: Evidence) -> tuple[F64, F64]:
    """π (n,) of each scored unit, and what a segment gains by it, in order.

    A pair is evidence where it first occurs. What follows it without anything new, more than is usual in this
    text, counts as unmarked and belongs half to the unit before it.
    """
    units = Units.of(evidence)
    marked = np.zeros(len(units))
    if not len(units):
        return marked, marked
    first = np.sort(np.unique(units.pair, return_index=True)[1])
    place = units.place[first]
    gap = np.diff(place, prepend=place[0])
    pairs = units.pair[first]
    sizes = np.maximum(evidence.sizes[pairs], 1e-12)  # of units that weigh nothing the score is 0 too
    pi = posterior(evidence.scores[pairs] / np.sqrt(evidence.variance * sizes), gap)
    gain = np.zeros(len(units))
    repeated = REPEATED * np.maximum(gap - gap.mean(), 0.0) / 2.0
    gain[first] = pi - 0.5 - repeated - np.append(repeated[1:], 0.0)
    return pi[np.searchsorted(first, np.arange(len(units)), side="right") - 1], gain


def posterior(x: F64, gap: I64) -> F64:
    """π (n,): the probability that each unit is marked, by its z ``x`` and its distance from the last."""
    strength, length = np.array(list(itertools.product(_STRENGTHS, _LENGTHS))).T
    ratio = np.exp(x[:, None] * strength - strength**2 / 2.0)  # of densities, N(μ, 1) over N(0, 1)
    # the chain may change its state at every unit of the text, scored or not
    stay = (1.0 - 1.0 / (length * (1.0 - _MARKED))) ** gap[:, None]
    # forward: P(marked | scores up to i), and the likelihood of all scores; (n, grid)
    forward, likelihood = np.empty_like(ratio), np.zeros(len(strength))
    before = np.full(len(strength), _MARKED)
    for i, r in enumerate(ratio):
        ahead = _MARKED + (before - _MARKED) * stay[i]
        total = ahead * r + 1.0 - ahead
        forward[i] = before = ahead * r / total
        likelihood += np.log(total)
    # backward: the likelihood ratio of the remaining scores after a marked and after an unmarked unit
    backward = np.ones_like(ratio)
    for i in range(len(x) - 2, -1, -1):
        r = ratio[i + 1] * backward[i + 1]
        enter = _MARKED * (1.0 - stay[i + 1])
        backward[i] = ((enter + stay[i + 1]) * (r - 1.0) + 1.0) / (enter * (r - 1.0) + 1.0)
    odds = forward * backward
    weight = np.exp(likelihood - likelihood.max())
    return np.asarray((odds / (odds + 1.0 - forward)) @ (weight / weight.sum()))


@dataclass(frozen=True)
class _Windows:
    """Windows [start, end) and their shares v of the error, (W,) each."""

    start: I64
    end: I64
    share: F64

    def where(self, mask: NDArray[np.bool_]) -> _Windows:
        return _Windows(self.start[mask], self.end[mask], self.share[mask])

    def shifted(self, by: int) -> _Windows:
        return _Windows(self.start + by, self.end + by, self.share)


def _concatenate(parts: Sequence[_Windows]) -> _Windows:
    none = np.zeros(0, dtype=np.int64)
    return _Windows(
        np.concatenate([none, *(part.start for part in parts)]),
        np.concatenate([none, *(part.end for part in parts)]),
        np.concatenate([np.zeros(0), *(part.share for part in parts)]),
    )


class _Chunk:
    """Consecutive scored units and the covariance of their scores over keys.

    Units that vary with no other, because their pairs have no rows, are left out of its matrices.
    """

    def __init__(self, evidence: Evidence, units: Units) -> None:
        pairs, pair = np.unique(units.pair, return_inverse=True)
        variance = evidence.variance * evidence.sizes[pairs]
        self._spread = units.weight * np.sqrt(variance[pair])
        single = _without_rows(evidence, pairs) & (np.bincount(pair, minlength=len(pairs)) == 1)
        # the sum of the variances of single units before each place, and how many others there are
        self._single, rest = single[pair], np.flatnonzero(~single[pair])
        self._apart = _running(np.where(self._single, self._spread, 0.0) ** 2)
        self._at = _running(~self._single)
        self._pair_variance = variance[~single]
        self._pair, self._weight = _running(~single)[pair[rest]], units.weight[rest]
        self._covariance = covariance(evidence, pairs[~single], pairs[~single])
        # _block[a, b]: the covariance of the weighted sum of the first a scores with that of the first b
        self._block = np.zeros((len(rest) + 1, len(rest) + 1))
        above = self._block[0, 1:]
        # by rows, which fit into the cache; a cumulative sum in place would copy all of it
        for row, own, weight in zip(self._block[1:, 1:], self._pair, self._weight, strict=True):
            row[...] = self._covariance[own, self._pair]
            row *= self._weight
            row *= weight
            row += above
            above = row
        for row in self._block:
            np.cumsum(row, out=row)

    def deviation(self, windows: _Windows) -> F64:
        """√Var_w, (W,), with a floor where opposite scores cancel up to rounding."""
        a, b, block = self._at[windows.start], self._at[windows.end], self._block
        squares = _running(self._spread**2)
        floor = _JITTER * (squares[windows.end] - squares[windows.start])
        apart = self._apart[windows.end] - self._apart[windows.start]
        return np.asarray(np.sqrt(np.maximum(block[a, a] - 2.0 * block[a, b] + block[b, b] + apart, floor)))

    def effective_length(self, windows: _Windows) -> F64:
        """The effective length of each window, (W,)."""
        total = _running(self._spread)
        length = total[windows.end] - total[windows.start]
        return np.asarray(np.square(length / np.maximum(self.deviation(windows), 1e-12)))

    def inverse_counts(self, windows: _Windows, draws: int, rng: np.random.Generator) -> F64:
        """1/N(q) at each level, (draws, levels); each draw makes one window pass, chosen by its share."""
        from scipy.linalg import cholesky  # slow to import, and most texts do without

        sd = self.deviation(windows)[:, None]
        # units that weigh next to nothing (a reader foresaw them) have rounding errors of the others' size
        factor = np.array(self._covariance, dtype=np.float64, order="F")  # which LAPACK need not copy
        if len(factor):
            usual = self._pair_variance.mean()
            np.einsum("ii->i", factor)[:] += _JITTER * np.maximum(self._pair_variance, usual)
            factor = cholesky(factor, lower=True, overwrite_a=True)
        passing = rng.choice(len(sd), size=draws, p=windows.share / windows.share.sum())
        depth = rng.random(draws)
        out = np.empty((draws, len(_LEVELS)))
        tails = np.minimum(10.0 ** _LEVELS[:, None] * windows.share, 0.5)  # (levels, W)
        thresholds = -ndtri(tails)[:, :, None]
        start, end = self._at[windows.start], self._at[windows.end]
        first, last = self._apart[windows.start, None], self._apart[windows.end, None]
        for i in range(0, draws, BATCH):
            chosen, u = passing[i : i + BATCH], depth[i : i + BATCH]
            # weighted sums (W, draws) of scores drawn for the distinct pairs
            scores = factor @ rng.standard_normal((len(factor), len(chosen)))
            total = np.zeros((len(self._single) + 1, len(chosen)))
            total[1:][~self._single] = scores[self._pair] * self._weight[:, None]
            alone = rng.standard_normal((np.count_nonzero(self._single), len(chosen)))
            total[1:][self._single] = alone * self._spread[self._single, None]
            np.cumsum(total, axis=0, out=total)
            free = (total[windows.end] - total[windows.start]) / sd
            rows = self._block[end[chosen]] - self._block[start[chosen]]
            shared = (rows[:, end] - rows[:, start]).T
            shared += np.maximum(np.minimum(last, last[chosen].T) - np.maximum(first, first[chosen].T), 0.0)
            correlation = shared / sd / sd[chosen].T
            own = free[chosen, np.arange(len(chosen))]
            shifted = np.empty_like(free)
            for level, threshold in enumerate(thresholds):
                # the chosen window's z, from beyond its threshold
                drawn = -ndtri(tails[level, chosen] * u)
                np.multiply(correlation, drawn - own, out=shifted)
                shifted += free
                out[i : i + BATCH, level] = 1.0 / np.maximum((shifted >= threshold).sum(axis=0), 1)
        return out


def _running(values: NDArray[Any]) -> NDArray[Any]:
    """The sums of the first 0, 1, … of some values (n,), (n + 1,)."""
    sums = np.cumsum(values)
    return np.concatenate([np.zeros(1, dtype=sums.dtype), sums])


def _without_rows(evidence: Evidence, pairs: I64) -> NDArray[np.bool_]:
    """Which of some pairs have rows of zeros, so that their scores have only a variance of their own."""
    if evidence.own is None or evidence.T.ndim == 1:
        return np.zeros(len(pairs), dtype=bool)
    return np.asarray(~evidence.T[pairs].any(axis=1))


def _choose(windows: Scan, significant: I64, gain: F64) -> list[int]:
    """The disjoint windows among the significant ones with the largest sum of gains, in order."""
    order = significant[np.argsort(windows.end[significant], kind="stable")]
    start, end = windows.start[order], windows.end[order]
    value = gain[end] - gain[start] - COST
    before = np.searchsorted(end, start, side="right")  # windows that end before this one begins
    best = np.zeros(len(order) + 1)
    for i in range(len(order)):
        best[i + 1] = max(best[i], best[before[i]] + value[i])
    chosen, i = [], len(order)
    while i > 0:
        if best[i] > best[i - 1]:
            chosen.append(int(order[i - 1]))
            i = int(before[i - 1])
        else:
            i -= 1
    if not chosen and len(order):  # significant, but likely nowhere: take the least unlikely window
        chosen = [int(order[np.argmax(value)])]
    return chosen[::-1]


def restrict(evidence: Evidence, units: Units) -> Evidence:
    """The evidence of some units alone, with positions among them."""
    pairs, inverse = np.unique(units.pair, return_inverse=True)
    given = {name: getattr(evidence, name) for name in ("own", *evidence.of_pairs)}
    further: dict[str, Any] = {name: None if rows is None else rows[pairs] for name, rows in given.items()}
    return dataclasses.replace(
        evidence,
        scores=evidence.scores[pairs],
        alignments=evidence.alignments[pairs],
        weights=np.bincount(inverse, weights=units.weight, minlength=len(pairs)).astype(np.float64),
        positions=inverse,
        T=evidence.T[pairs],
        C=evidence.C[pairs],
        extra=0,
        whole=None,
        **further,
    )
