"""Which texts share a member of a ring: linking, spectral clustering, and EM for a mixture of keys.

A text of member j has M ~ N(β n v∘W_j, n v) per coordinate (`sample_size`), so with R members the texts are a
mixture of Gaussians whose centres are random. EM alternates between each member's posterior mean

    Ŵ_j = β A_j/(1 + β² N_j v),   A_j = Σ_i r_ij M_i,   N_j = Σ_i r_ij n_i

and the members' odds of each text, log r_ij = β⟨M_i, Ŵ_j⟩ − β² n_i⟨v, Ŵ_j² + var⟩/2 + log N_j + const. A
text's own share of Ŵ_j is taken out first: otherwise every text recognises itself, and nothing ever moves.

`linked` collects the texts of one member around a start. EM starts from the leading eigenvectors of the
texts' Gram matrix (`spectral`) or from random labels, several times; the result with the most coherent
cluster is kept. *Coherence* is what an attacker can see: the mean correlation of two texts of a cluster, less
two standard errors, times the root of their number. The correlation is z²/D in a cluster of one member and R
times smaller in one of all members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dewmark.arrays import F32, F64, I64
from dewmark.errors import ConfigError
from dewmark_lab.attacks.stealing import sample_size
from dewmark_lab.attacks.stealing.regression import Observed
from dewmark_lab.attacks.stealing.signs import align

_ROUNDS = 30
_SETTLED = 1e-3


@dataclass(frozen=True)
class Clusters:
    """Odds (N, R) that each text belongs to each cluster, and each cluster's coherence (R,)."""

    odds: F64
    coherence: F64

    @property
    def best(self) -> int:
        """The most coherent cluster, from which a forger learns."""
        return int(np.argmax(self.coherence))

    def purity(self, members: I64) -> float:
        """The share of texts whose cluster is mostly of their own member; only the victim can compute it."""
        labels = self.odds.argmax(axis=1)
        found = sum(np.bincount(members[labels == label]).max() for label in np.unique(labels))
        return float(found / len(labels))


def told(seen: Observed, members: I64) -> Clusters:
    """The true clusters, for an upper bound."""
    odds = (members[:, None] == np.unique(members)).astype(np.float64)
    return Clusters(odds, _coherence(seen, odds))


def linked(seen: Observed, *, members: int, tilt: float = 1.0, seed: int = 0) -> Clusters:
    """The texts that a start collects one by one (`signs.align` without signs), and all others."""
    _check(seen, members)
    ones = [np.ones((1, size), dtype=np.float32) for size in seen.variances.shape]
    found = align(seen, *ones, members=members, tilt=tilt, starts=16, seed=seed)
    odds = np.zeros((len(seen), 1))
    odds[found.used] = 1.0
    return Clusters(odds, _coherence(seen, odds))


def spectral(seen: Observed, *, members: int, seed: int = 0) -> Clusters:
    """k-means on the leading eigenvectors of the Gram matrix of the texts' matrices."""
    from scipy.cluster.vq import kmeans2

    _check(seen, members)
    rows = seen.flat / np.linalg.norm(seen.flat, axis=1, keepdims=True)
    gram = (rows @ rows.T).astype(np.float64)
    np.fill_diagonal(gram, 0.0)  # a text agrees with itself whatever its member
    leading = np.linalg.eigh(gram)[1][:, -members:]
    leading /= np.maximum(np.linalg.norm(leading, axis=1, keepdims=True), 1e-12)
    _, labels = kmeans2(leading, members, iter=50, minit="++", rng=np.random.default_rng(seed))
    odds = np.eye(members)[labels]
    return Clusters(odds, _coherence(seen, odds))


def expectation_maximisation(
    seen: Observed, *, members: int, tilt: float = 1.0, restarts: int = 4, seed: int = 0
) -> Clusters:
    """EM from spectral clusters and from ``restarts`` random ones; the most coherent result.

    ``tilt`` is the mark's strength β, which anyone can measure by marking texts with a key of one's own.
    """
    _check(seen, members)
    rng = np.random.default_rng(seed)
    starts = [spectral(seen, members=members, seed=seed).odds]
    starts += [np.eye(members)[rng.integers(members, size=len(seen))] for _ in range(restarts)]
    found = []
    for start in starts:
        odds = _run(seen, start, tilt=tilt)
        found.append(Clusters(odds, _coherence(seen, odds)))
    return max(found, key=lambda each: float(np.max(each.coherence)))


def _check(seen: Observed, members: int) -> None:
    if not 2 <= members <= len(seen):
        raise ConfigError(f"members must lie in 2 … {len(seen)} (the number of texts), got {members}")


def _run(seen: Observed, odds: F64, *, tilt: float) -> F64:
    """Iterate until the odds (N, R) settle."""
    M, v = seen.flat, seen.variances.ravel().astype(np.float32)
    squares = np.square(M)
    counts = seen.counts.astype(np.float32)
    for _ in range(_ROUNDS):
        r = odds.astype(np.float32)
        N = counts @ r
        shrink: F32 = 1.0 / (1.0 + tilt * tilt * N[:, None] * v)  # (R, a·b), also the posterior variance of W
        W = tilt * (r.T @ M) * shrink
        own = tilt * r * (squares @ shrink.T)  # what each text contributes to its own score
        score = tilt * (M @ W.T - own)
        cost = 0.5 * tilt * tilt * counts[:, None] * ((np.square(W) + shrink) @ v)
        logits = (score - cost + np.log(np.maximum(N, 1.0))).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        new = np.exp(logits)
        new /= new.sum(axis=1, keepdims=True)
        moved = float(np.abs(new - odds).mean())
        odds = new
        if moved < _SETTLED / odds.shape[1]:
            break
    return odds


def _coherence(seen: Observed, odds: F64) -> F64:
    """The mean correlation of two texts of each cluster, less two standard errors, times √texts, (R,)."""
    rows = seen.flat / np.maximum(np.linalg.norm(seen.flat, axis=1, keepdims=True), 1e-12)
    totals = odds.T @ rows.astype(np.float64)
    own = np.square(odds).sum(axis=0)
    pairs = np.square(odds.sum(axis=0)) - own
    agreement = np.einsum("rd,rd->r", totals, totals) - own
    error = np.sqrt(2.0 / sample_size.effective_directions(seen.variances) / np.maximum(pairs, 1e-9))
    safe = agreement / np.maximum(pairs, 1e-9) - 2.0 * error
    return np.where(pairs > 0.5, safe * np.sqrt(odds.sum(axis=0)), -1.0)


CLUSTERINGS: dict[str, Callable[..., Clusters]] = {
    "linked": linked,
    "spectral": spectral,
    "em": expectation_maximisation,
}
"""The ways to sort texts by member, by name; all take ``members`` and ``seed``."""
