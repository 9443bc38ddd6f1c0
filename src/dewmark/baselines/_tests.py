"""The laws of sums of independent scores, and the checks of parameters that all baselines make.

Boundary: evidence in, a `Statistic` out; what a score is, the scheme knows.
"""

from __future__ import annotations

import math

from scipy.special import bdtrc, gammaincc

from dewmark.errors import ConfigError
from dewmark.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic
from dewmark.stats.nulls import one_sided_p

__all__ = ["binomial_test", "check", "gamma_test", "z_test"]


def check(*rules: tuple[bool, str, str, object]) -> None:
    """Refuse the first parameter whose rule does not hold; a rule is (holds, name, what it must, value)."""
    for holds, name, must, value in rules:
        if not holds:
            raise ConfigError(f"{name} must {must}, got {value}")


def z_test(evidence: Evidence) -> Statistic:
    """The weighted sum of independent scores, taken as normal."""
    if len(evidence) == 0:
        return NOTHING
    squares = float(evidence.weights @ evidence.weights)
    z = evidence.total / math.sqrt(squares * evidence.variance)
    return Statistic(z, one_sided_p(z), float(evidence.weights.sum()) ** 2 / squares)


def gamma_test(evidence: Evidence) -> Statistic:
    """Scores E − 1 with E ~ Exp(1): the sum of N such E follows the Gamma law of shape N."""
    n = len(evidence)
    if n == 0:
        return NOTHING
    return Statistic(z_test(evidence).z, float(gammaincc(n, max(evidence.total + n, 0.0))), float(n))


def binomial_test(evidence: Evidence, *, share: float, trials: int = 1) -> Statistic:
    """Scores (X − trials·share) / trials with X ~ Binomial(trials, share): the exact law of their sum."""
    n = len(evidence) * trials
    if n == 0:
        return NOTHING
    successes = round(evidence.total * trials + n * share)
    p_value = float(bdtrc(successes - 1, n, share)) if successes > 0 else 1.0
    return Statistic(z_test(evidence).z, p_value, float(len(evidence)))
