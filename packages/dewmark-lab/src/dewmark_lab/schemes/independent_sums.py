"""The null distribution of a sum of independent scores: a test for each distribution that a score can follow.

Fix the text and let the key be random: the scores of distinct (context, token) pairs are independent, so the
distribution of their sum is known exactly. The functions take `Evidence` and return a `Statistic`, or build a
distribution as an array of probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import bdtrc, gammaincc

from dewmark.arrays import F64
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic, one_sided_p


def z_test(evidence: Evidence) -> Statistic:
    """The weighted sum of independent scores, by the normal approximation."""
    if len(evidence) == 0:
        return NOTHING
    squares = float(evidence.weights @ evidence.weights)
    z = evidence.total / math.sqrt(squares * evidence.variance)
    return Statistic(z, one_sided_p(z), float(evidence.weights.sum()) ** 2 / squares)


def gamma_test(evidence: Evidence) -> Statistic:
    """Scores E − 1 with E ~ Exp(1): the sum of N such E follows the Gamma distribution of shape N."""
    n = len(evidence)
    if n == 0:
        return NOTHING
    return Statistic(z_test(evidence).z, float(gammaincc(n, max(evidence.total + n, 0.0))), float(n))


def binomial_test(evidence: Evidence, *, share: float, trials: int = 1) -> Statistic:
    """Scores (X − trials·share) / trials with X ~ Binomial(trials, share): the exact test of their sum."""
    n = len(evidence) * trials
    if n == 0:
        return NOTHING
    successes = round(evidence.total * trials + n * share)
    p_value = float(bdtrc(successes - 1, n, share)) if successes > 0 else 1.0
    return Statistic(z_test(evidence).z, p_value, float(len(evidence)))


def convolved(pmfs: Sequence[F64]) -> F64:
    """The distribution of a sum of independent integers, from the distribution of each.

    Halves are convolved directly: all terms are positive, so even the smallest tail keeps its relative
    precision.
    """
    if len(pmfs) <= 1:
        return pmfs[0] if len(pmfs) else np.ones(1)
    middle = len(pmfs) // 2
    return np.convolve(convolved(pmfs[:middle]), convolved(pmfs[middle:]))
