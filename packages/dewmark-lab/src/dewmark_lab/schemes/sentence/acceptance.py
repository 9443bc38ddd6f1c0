"""The exact distribution over random keys of the number of accepted sentence transitions.

After a sentence in bin a, the key accepts M of K bins for the next sentence: a uniform subset for each a,
independent between them. A text whose sentences go n_ab times from bin a to bin b scores

    S = Σ_ab n_ab [b accepted after a],    E S = γ N,    γ = M/K,    N = Σ_ab n_ab

The likelihood ratio depends on S alone, if each sentence of marked text is accepted with some probability
above γ. The text is fixed, so S is a sum over a of independent sums over M bins drawn without replacement:
the number of subsets of each size and sum is counted bin by bin, and the distributions of all a are
convolved. Repeating a transition is therefore no new evidence: it makes the steps of S larger, not its tail
lighter.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F64, I64
from dewmark.stats.key_test import NOTHING, Statistic, one_sided_p

Partition = NDArray[np.bool_]
"""(K, K), True where the second bin is accepted after the first."""


def acceptance_pmf(counts: I64, accepted: int) -> F64:
    """The probabilities of S = 0, 1, …, max S, for transitions (K, K) and ``accepted`` = M of K bins."""
    pmf = np.ones(1)
    for row in counts[counts.any(axis=1)]:
        pmf = np.convolve(pmf, _one_bin(row, accepted))
    return pmf


def _one_bin(row: I64, accepted: int) -> F64:
    """The distribution of the sum of M of the K numbers of ``row``, drawn without replacement."""
    ways = np.zeros((accepted + 1, int(np.sort(row)[-accepted:].sum()) + 1))
    ways[0, 0] = 1.0
    width = ways.shape[1]
    for n in row.tolist():
        for size in range(accepted, 0, -1):  # downwards: each number is drawn at most once
            ways[size, n:] += ways[size - 1, : max(width - n, 0)]
    pmf: F64 = ways[accepted] / math.comb(len(row), accepted)
    return pmf


def score_of(counts: I64, partition: Partition) -> int:
    """S for transitions (K, K) and a partition (K, K)."""
    return int(counts[partition].sum())


def exact_test(counts: I64, partition: Partition) -> Statistic:
    """P(at least S) over keys. z is S standardized, and L_eff = N² γ(1 − γ) / Var S."""
    total = int(counts.sum())
    if total == 0:
        return NOTHING
    accepted, score = int(partition[0].sum()), score_of(counts, partition)
    share = accepted / len(counts)
    pmf = acceptance_pmf(counts, accepted)
    values = np.arange(len(pmf))
    variance = float(pmf @ (values - share * total) ** 2)
    # S is the same under every key if all bins are visited equally often after each
    z = (score - share * total) / math.sqrt(variance) if variance > 1e-9 else 0.0
    effective = total**2 * share * (1.0 - share) / max(variance, 1e-9)
    return Statistic(z, min(float(pmf[score:].sum()), 1.0), min(effective, float(np.count_nonzero(counts))))


def least_p_value(counts: I64, accepted: int) -> float:
    """The p-value of this text under the key that fits it best, which depends on the text alone."""
    return float(acceptance_pmf(counts, accepted)[-1])


def paper_test(counts: I64, partition: Partition) -> Statistic:
    """The published test, which takes sentences as independent: z = (S − γN) / √(N γ(1 − γ))."""
    total = int(counts.sum())
    if total == 0:
        return NOTHING
    share = float(partition[0].mean())
    z = (score_of(counts, partition) - share * total) / math.sqrt(total * share * (1.0 - share))
    return Statistic(z, one_sided_p(z), float(total))
