"""One key and many texts: how their z-scores are correlated, and its false-alarm rate that follows.

The key test is exact for one text over random keys. An operator has one key and many texts, so the question
turns round: under this key, do unmarked texts of one kind score high together? ``docs/statistics.md``,
section 6, derives the answers.

With linear scores a text x is one matrix M_x, and corr(z_x, z_y) = ⟨m_x, m_y⟩ with m_x = M_x/‖M_x‖.
`direction` gives m_x, and everything below works on such unit vectors, from whatever scheme they come.
Matrices of more than `DIMENSIONS` entries are reduced to that many by a fixed count sketch. For tanh scores
the first term of the series counts, which carries nearly all of the covariance of two texts.

Texts whose correlation is above `BLOCK` are called marked together or not at all (`blocks`). For counts of
alarms only near-copies count as one (`copies`): the r that all texts of the kind share is what an audit of
this key wants to measure.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from dewmark.arrays import F32, F64, I64
from dewmark.splitmix import mixed
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import score_variance

DIMENSIONS = 4096
BLOCK = 0.5
_MOST_PAIRED = 2000  # texts of a kind whose pairs are all compared; more would add nothing
_ROWS = 1024  # of a Gram matrix held at once
_HIGHEST = 0.999  # correlation of texts that are practically one
_FEWEST_FREEDOM = 1.0
_TINY = 1e-9  # a variance of scores that leaves nothing to test


# Texts as unit vectors


def directions(evidences: Sequence[Evidence]) -> F32:
    """m of each text, (N, `DIMENSIONS`).

    Where factors are labels, all texts must come from one call of `BoundScheme.evidence`, so that labels are
    comparable.
    """
    found = np.zeros((len(evidences), DIMENSIONS), dtype=np.float32)
    for i, evidence in enumerate(evidences):
        found[i] = direction(evidence)
    return found


def direction(evidence: Evidence) -> F32:
    """m of one text, (`DIMENSIONS`,): its inner product with another text's is the correlation of their z.

    All zeros for a text that says nothing about any key.
    """
    variance = score_variance(evidence) if len(evidence) else 0.0
    if variance <= _TINY:
        return np.zeros(DIMENSIONS, dtype=np.float32)
    w = evidence.weights.astype(np.float32)
    T, C = evidence.T, evidence.C
    # between labels ρ is 0 or 1, so that every power of the series counts alike
    first = evidence.variance if T.ndim == C.ndim == 1 else evidence.kernel[0]
    if T.ndim == 2 and C.ndim == 2:
        found = np.asarray((T * w[:, None]).T @ C, dtype=np.float64).ravel()
        norm = float(np.linalg.norm(found))
        if len(found) <= DIMENSIONS:
            found = np.concatenate((found, np.zeros(DIMENSIONS - len(found))))
        else:
            bucket, sign = _sketch(len(found))
            found = np.bincount(bucket, weights=found * sign, minlength=DIMENSIONS).astype(np.float64)
    else:  # labels are orthogonal unit vectors without end: they are hashed
        norm = math.sqrt(variance / first)
        if T.ndim == 1 and C.ndim == 1:
            codes = mixed(T.astype(np.int64).view(np.uint64)) + C.astype(np.int64).view(np.uint64)
            entries = w
        else:
            labels, rows = (T, C) if T.ndim == 1 else (C, T)
            columns = np.arange(rows.shape[1], dtype=np.uint64)
            codes = (mixed(labels.astype(np.int64).view(np.uint64))[:, None] + columns).ravel()
            entries = np.asarray(rows * w[:, None], dtype=np.float32).ravel()
        hashes = mixed(codes)
        sign = 1.0 - 2.0 * (hashes >> np.uint64(63)).astype(np.float64)
        bucket = (hashes % np.uint64(DIMENSIONS)).astype(np.int64)
        found = np.bincount(bucket, weights=entries * sign, minlength=DIMENSIONS).astype(np.float64)
    length = math.sqrt(first / variance) * norm  # 1 for linear scores; the sketch itself has it only nearly
    return np.asarray(found * (length / np.linalg.norm(found)), dtype=np.float32)


@functools.lru_cache(maxsize=4)
def _sketch(size: int) -> tuple[I64, F64]:
    """The bucket and the sign of each entry of a matrix, (size,) each; the same everywhere."""
    rng = np.random.default_rng(0)
    return rng.integers(DIMENSIONS, size=size), rng.choice([-1.0, 1.0], size=size)


# Correlation


@dataclass(frozen=True, slots=True)
class Correlation:
    """The mean correlation of two different texts, with its standard error over texts (by the jackknife)."""

    r: float
    error: float

    @property
    def upper(self) -> float:
        """r that the texts do not exclude, within [0, 1)."""
        return min(max(self.r + 2.0 * self.error, 0.0), _HIGHEST)


def mean_correlation(m: F32) -> Correlation:
    """r of at least two texts with directions (N, D)."""
    n = len(m)
    total = m.sum(axis=0, dtype=np.float64)
    own = np.einsum("ij,ij->i", m, m, dtype=np.float64)
    with_others = m @ total - own  # (N,): the sum of each text's correlations with all others
    r = float(with_others.sum()) / (n * (n - 1))
    if n == 2:
        return Correlation(r, 1.0)
    without = (with_others.sum() - 2.0 * with_others) / ((n - 1) * (n - 2))
    error = math.sqrt(float((n - 1) / n * np.sum((without - without.mean()) ** 2)))
    return Correlation(r, error)


def effective_number(n: float, r: float) -> float:
    """The number of independent texts whose mean z varies over keys as that of n texts: n/(1 + (n − 1) r)."""
    return n / (1.0 + (n - 1.0) * max(r, 0.0))


def blocks(m: F32, *, above: float = BLOCK) -> I64:
    """The block (N,) of each text: texts with a correlation above the threshold, and theirs in turn."""
    from scipy.sparse import coo_array  # slow to import, and detection does without
    from scipy.sparse.csgraph import connected_components

    firsts, seconds = [], []
    for start in range(0, len(m), _ROWS):
        i, j = np.nonzero(m[start : start + _ROWS] @ m[start:].T > above)
        firsts.append(i + start)
        seconds.append(j + start)
    edges = np.concatenate(firsts), np.concatenate(seconds)
    graph = coo_array((np.ones(len(edges[0]), dtype=np.int8), edges), shape=(len(m), len(m)))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def copies(m: F32, r: float) -> I64:
    """The block (N,) of near-copies of each text of a kind whose mean correlation is r."""
    return blocks(m, above=(1.0 + max(r, 0.0)) / 2.0)


# The distribution of a key's rate


def rate_ceiling(r: float, level: float, *, share: float = 0.99) -> float:
    """The false-alarm rate at ``level`` that this share of keys does not exceed on texts of correlation r."""
    r = min(max(r, 0.0), _HIGHEST)
    return float(ndtr((math.sqrt(r) * ndtri(share) + ndtri(level)) / math.sqrt(1.0 - r)))


def matching_correlation(m: F32, level: float) -> float:
    """The r for which the distribution of a key's rate has the variance that pairs of texts give it.

    A key's rate is a mean over texts, so its second moment over keys is the mean of P(z_x > z_α, z_y > z_α)
    over pairs: exact, whatever the kind is made of. For equal correlations it is their common value.
    """
    from scipy.optimize import brentq  # slow to import, and detection does without

    rho = _pair_correlations(m)
    grid = np.linspace(-1.0, 1.0, 4001)
    both = np.interp(rho, grid, _both_above(grid, level)).mean()
    if both <= level * level:
        return 0.0
    highest = float(_both_above(np.array([_HIGHEST]), level)[0])
    if both >= highest:
        return _HIGHEST
    return float(brentq(lambda r: float(_both_above(np.array([r]), level)[0]) - both, 0.0, _HIGHEST))


def _pair_correlations(m: F32) -> F64:
    """The correlations of all pairs of different texts, of at most `_MOST_PAIRED` texts."""
    if len(m) > _MOST_PAIRED:
        m = m[np.random.default_rng(0).choice(len(m), size=_MOST_PAIRED, replace=False)]
    gram = np.asarray(m @ m.T, dtype=np.float64)
    return np.clip(gram[np.triu_indices(len(m), 1)], -1.0, 1.0)


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


def _both_above(rho: F64, level: float) -> F64:
    """P(X > z, Y > z) of standard normals with correlations ρ (N,), z the upper quantile of ``level``.

    α² + ∫_0^{arcsin ρ} exp(−z²/(1 + sin θ)) dθ / 2π.
    """
    z = -float(ndtri(level))
    half = np.arcsin(rho)[:, None] / 2.0
    theta = half * (1.0 + _NODES)
    with np.errstate(divide="ignore"):
        inside = np.exp(-z * z / np.maximum(1.0 + np.sin(theta), 1e-300))
    return np.asarray(level * level + (half[:, 0] * (inside @ _WEIGHTS)) / (2.0 * math.pi))


# This key on this kind


@dataclass(frozen=True, slots=True)
class KeyOnKind:
    """The z of texts of one kind under one key are N(m, ``spread``²), with m ~ N(``mean``, ``sd``²)."""

    mean: float
    sd: float
    spread: float

    def rate(self, level: float, *, confidence: float = 0.5) -> float:
        """The share of such texts with p ≤ level; with this confidence it is not higher."""
        mean = self.mean + self.sd * float(ndtri(confidence))
        return float(ndtr((mean + float(ndtri(level))) / self.spread))


def key_on_kind(z: F64, m: F32) -> KeyOnKind:
    """Fit one key on one kind to the z (N,) and the directions (N, D) of at least two of its texts.

    Copies count as one text, with their mean z. The prior of the mean takes the largest r that the texts do
    not exclude. The spread is 1 − r on average over keys; how far a key may be from that follows from the
    correlations left between texts beyond r, and the z themselves decide.
    """
    correlation = mean_correlation(m)
    label = copies(m, correlation.r)
    members = np.bincount(label)
    values = np.bincount(label, weights=z) / members
    n, r = len(values), correlation.upper
    left = (_pair_correlations(m) - correlation.r) / (1.0 - min(correlation.r, _HIGHEST))
    freedom = max(1.0 / max(float(np.mean(left**2)) - 2.0 / DIMENSIONS, 1e-3), _FEWEST_FREEDOM)
    within = float(np.sum((values - values.mean()) ** 2))
    variance = (freedom * (1.0 - r) + within) / (freedom + n - 1)
    if r == 0.0:
        return KeyOnKind(0.0, 0.0, math.sqrt(variance))
    precision = 1.0 / r + n / variance
    mean = float(values.mean()) * n / variance / precision
    return KeyOnKind(mean, math.sqrt(1.0 / precision), math.sqrt(variance))
