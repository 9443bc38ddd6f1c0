"""Every window of a text tested at once, with the family-wise error controlled.

A window w of consecutive scored units has z_w = S_w / √Var_w, S_w the weighted sum of its scores and Var_w
the block sum of the key covariance over its units. Fix the text and let the key be random: the z_w are then
jointly normal, with correlations that the text alone decides. Windows of every length compete, so each has a
share v_w of the error: all lengths (a geometric grid) have the same, and so have all windows of one length.

    q_w = P(N(0,1) > z_w) / v_w,    Q = min_w q_w

Bonferroni's bound is P(Q ≤ q) ≤ q Σ v_w, far too cautious where windows overlap. Exact is

    P(Q ≤ q) = q Σ_w v_w E[ 1/N(q) | q_w ≤ q ],    N(q) = how many windows have q_w ≤ q,

since the sum of the windows' own probabilities counts a key for which N windows pass N times. So: draw a
window by its share, its z from the tail beyond its threshold, all other scores given that z, and count. No
rare event is waited for: the draws are as good at 1e-12 as at 0.05. Two standard errors are added, and the
sum is never above Bonferroni's.

A text of up to 2 x `REACH` scored units is one chunk, with windows of every length. A longer one is cut into
overlapping chunks: windows are up to `REACH` units long, each belongs to the chunk in which it begins, and N
counts windows of the same chunk only, which makes the answer more cautious, never less. Memory beyond the
windows themselves does not grow with the text, and time grows in proportion to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky
from scipy.special import log_ndtr, ndtri

from dewmark.arrays import F64, I64
from dewmark.evidence import Evidence
from dewmark.stats.key_test import covariance

__all__ = ["Scan", "Units", "scan"]


REACH = 1024
SHORTEST = 30
MIN_EFFECTIVE_LENGTH = 16.0
DRAWS = 1000

_RATIO = 1.12  # of one window length to the next
_STEPS = 14  # windows begin 1/14 of their length apart
_BATCH = 64  # draws held at a time
_JITTER = 1e-3  # of a score's variance: lets the covariance of near-equal pairs be factorised
# log10 of the levels q at which P(Q ≤ q) is computed; in between it is interpolated
_LEVELS = np.array([1.5, 1.0, 0.6, 0.3, 0.0, -0.3, -0.6, -1.0, -1.5, -2.0, -3.0, -4.5, -7.0, -11.0, -16.0])


@dataclass(frozen=True)
class Units:
    """The n scored units of a text: ``place`` (n,) in the text, ``pair`` (n,) and ``weight`` (n,) in the sum.

    A pair whose weight is the number of its occurrences counts wherever it occurs. A scheme that counts each
    pair once gives other weights: there a pair counts where it first occurs.
    """

    place: I64
    pair: I64
    weight: F64

    @classmethod
    def of(cls, evidence: Evidence) -> Units:
        """The units that the evidence of a text scores."""
        place = np.flatnonzero(evidence.positions >= 0)
        pair = evidence.positions[place]
        if not np.array_equal(evidence.weights, np.bincount(pair, minlength=len(evidence))):
            first = np.sort(np.unique(pair, return_index=True)[1])
            return cls(place[first], pair[first], evidence.weights[pair[first]])
        return cls(place, pair, np.ones(len(pair)))

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, part: slice) -> Units:
        return Units(self.place[part], self.pair[part], self.weight[part])


@dataclass(frozen=True)
class Scan:
    """Windows [start, end) of scored units, their z and their share of the error; all (W,).

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
        """The family-wise p-value of a window whose own is known otherwise, e.g. from an exact law."""
        return float(self._family_wise(np.log10([max(p_value, 1e-320) / self.share[window]]))[0])

    def _family_wise(self, log_q: F64) -> F64:
        """P(Q ≤ q) for each log10 q; below the last level Bonferroni's bound."""
        log_p = np.minimum(_LEVELS + np.log10(np.maximum(self.crowding, 1e-300)), 0.0)
        inside = np.interp(log_q, _LEVELS[::-1], log_p[::-1], right=0.0)
        below = np.minimum(log_q, log_p[-1])
        return np.asarray(10.0 ** np.where(log_q < _LEVELS[-1], below, inside))


def scan(evidence: Evidence, *, draws: int = DRAWS) -> Scan:
    """Test every window of a text; windows count scored units only.

    Windows worth fewer than `MIN_EFFECTIVE_LENGTH` independent units are left out. The draws have a fixed
    seed and do not depend on the scores, so one text always gets one answer.
    """
    units = Units.of(evidence)
    step = REACH if len(units) > 2 * REACH else max(len(units), 1)
    family = _family(len(units), longest=step)
    rng = np.random.default_rng(0)
    kept, z = [], [np.zeros(0)]
    crowding, variance = np.zeros(len(_LEVELS)), np.zeros(len(_LEVELS))
    for begin in range(0, len(units), step):
        mine = family.where((family.start >= begin) & (family.start < begin + step)).shifted(-begin)
        chunk = _Chunk(evidence, units[begin : begin + 2 * step])
        mine = mine.where(chunk.effective_length(mine) >= MIN_EFFECTIVE_LENGTH)
        kept.append(mine.shifted(begin))
        z.append(chunk.z(mine))
        if mass := mine.share.sum():
            inverse = chunk.inverse_counts(mine, max(_BATCH, round(draws * mass)), rng)
            crowding += mass * inverse.mean(axis=0)
            variance += mass**2 * inverse.var(axis=0) / len(inverse)
    windows = _joined(kept)
    bound = np.minimum(crowding + 2.0 * np.sqrt(variance), windows.share.sum())
    return Scan(windows.start, windows.end, np.concatenate(z), windows.share, bound)


@dataclass(frozen=True)
class _Windows:
    """Windows [start, end) and each one's share v of the error; all (W,)."""

    start: I64
    end: I64
    share: F64

    def where(self, mask: NDArray[np.bool_]) -> _Windows:
        return _Windows(self.start[mask], self.end[mask], self.share[mask])

    def shifted(self, by: int) -> _Windows:
        return _Windows(self.start + by, self.end + by, self.share)


def _joined(parts: Sequence[_Windows]) -> _Windows:
    none = np.zeros(0, dtype=np.int64)
    return _Windows(
        np.concatenate([none, *(part.start for part in parts)]),
        np.concatenate([none, *(part.end for part in parts)]),
        np.concatenate([np.zeros(0), *(part.share for part in parts)]),
    )


def _family(length: int, *, longest: int) -> _Windows:
    """The windows of a text of ``length`` scored units, up to ``longest`` units long."""
    count = math.ceil(math.log(max(longest / SHORTEST, 1.0)) / math.log(_RATIO)) + 1
    sizes = np.unique(np.geomspace(SHORTEST, max(longest, SHORTEST), count).round().astype(np.int64))
    sizes = sizes[sizes <= length]
    parts = []
    for size in sizes.tolist():
        start = np.arange(0, length - size + 1, max(size // _STEPS, 1))
        start = np.union1d(start, [length - size])  # the text's last units are in a window of every length
        parts.append(_Windows(start, start + size, np.full(len(start), 1.0 / (len(sizes) * len(start)))))
    return _joined(parts)


class _Chunk:
    """Consecutive scored units and the covariance of their scores over keys."""

    def __init__(self, evidence: Evidence, units: Units) -> None:
        pairs, self._pair = np.unique(units.pair, return_inverse=True)
        self._weight = units.weight
        self._variance = evidence.variance
        self._scores = evidence.scores[pairs]
        self._covariance = covariance(evidence, pairs, pairs).astype(np.float64)
        # _block[a, b]: the covariance of the weighted sum of the first a scores with that of the first b
        self._block = np.zeros((len(units) + 1, len(units) + 1))
        self._block[1:, 1:] = self._covariance[np.ix_(self._pair, self._pair)]
        self._block[1:, 1:] *= np.outer(units.weight, units.weight)
        np.cumsum(self._block, axis=0, out=self._block)
        np.cumsum(self._block, axis=1, out=self._block)

    def deviation(self, windows: _Windows) -> F64:
        """√Var_w, (W,); where opposite scores all but cancel, what is left is rounding, and a floor holds."""
        a, b, block = windows.start, windows.end, self._block
        squares = np.concatenate([[0.0], np.cumsum(self._weight**2)])
        floor = _JITTER * self._variance * (squares[b] - squares[a])
        return np.asarray(np.sqrt(np.maximum(block[a, a] - 2.0 * block[a, b] + block[b, b], floor)))

    def effective_length(self, windows: _Windows) -> F64:
        """How many independent units each window is worth, (W,)."""
        total = np.concatenate([[0.0], np.cumsum(self._weight)])
        length = total[windows.end] - total[windows.start]
        return np.asarray(length**2 * self._variance / self.deviation(windows) ** 2)

    def z(self, windows: _Windows) -> F64:
        """z_w of the text's own scores, (W,)."""
        return self._sums(self._scores[:, None], windows)[:, 0] / self.deviation(windows)

    def inverse_counts(self, windows: _Windows, draws: int, rng: np.random.Generator) -> F64:
        """1/N(q) at each level, (draws, levels): for each draw one window, by its share, is made to pass."""
        sd = self.deviation(windows)[:, None]
        jitter = _JITTER * self._variance * np.eye(len(self._scores))
        factor = cholesky(self._covariance + jitter, lower=True, overwrite_a=True)
        passing = rng.choice(len(sd), size=draws, p=windows.share / windows.share.sum())
        depth = rng.random(draws)
        out = np.empty((draws, len(_LEVELS)))
        for i in range(0, draws, _BATCH):
            chosen, u = passing[i : i + _BATCH], depth[i : i + _BATCH]
            free = self._sums(factor @ rng.standard_normal((len(factor), len(chosen))), windows) / sd
            rows = self._block[windows.end[chosen]] - self._block[windows.start[chosen]]
            correlation = (rows[:, windows.end] - rows[:, windows.start]).T / sd / sd[chosen].T
            own = free[chosen, np.arange(len(chosen))]
            for level, q in enumerate(10.0**_LEVELS):
                tail = np.minimum(q * windows.share, 0.5)
                drawn = -ndtri(tail[chosen] * u)  # the chosen window's z, from beyond its threshold
                passed = free + correlation * (drawn - own) >= -ndtri(tail)[:, None]
                out[i : i + _BATCH, level] = 1.0 / np.maximum(passed.sum(axis=0), 1)
        return out

    def _sums(self, scores: F64, windows: _Windows) -> F64:
        """Weighted sums over windows (W, M) of M draws of the distinct pairs' scores (N, M)."""
        total = np.zeros((len(self._pair) + 1, scores.shape[1]))
        np.cumsum(scores[self._pair] * self._weight[:, None], axis=0, out=total[1:])
        return total[windows.end] - total[windows.start]
