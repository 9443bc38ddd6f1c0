"""Exact distributions of sums against brute force, and tests against the distributions of scipy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, gamma, norm

from dewmark.stats.evidence import Evidence
from dewmark_lab.schemes.independent_sums import binomial_test, convolved, gamma_test, z_test


def evidence(scores: list[float], weights: list[float] | None = None, *, variance: float = 1.0) -> Evidence:
    n = len(scores)
    return Evidence.independent(
        np.array(scores), np.array(weights or [1.0] * n), np.arange(n), variance=variance
    )


def test_z_test_divides_by_the_standard_deviation_of_the_weighted_sum() -> None:
    found = z_test(evidence([1.0, 2.0, -0.5], [1.0, 2.0, 2.0], variance=0.25))
    z = (1.0 + 4.0 - 1.0) / math.sqrt(9.0 * 0.25)
    assert found.z == pytest.approx(z)
    assert found.p_value == pytest.approx(norm.sf(z))
    assert found.effective_length == pytest.approx(25.0 / 9.0)


def test_exponential_scores_follow_the_gamma_distribution() -> None:
    assert gamma_test(evidence([2.0, 0.5, -0.5])).p_value == pytest.approx(gamma.sf(2.0 + 3.0, 3))


@pytest.mark.parametrize("trials", [1, 4])
def test_counts_follow_the_binomial_distribution(trials: int) -> None:
    """Five pairs with 0, 1, 1, ``trials`` and ``trials`` successes of ``trials``, expected share 0.3."""
    successes = np.array([0, 1, 1, trials, trials])
    found = binomial_test(
        evidence(list(successes / trials - 0.3), variance=0.21 / trials), share=0.3, trials=trials
    )
    assert found.p_value == pytest.approx(binom.sf(successes.sum() - 1, 5 * trials, 0.3))


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
def test_every_count_has_its_exact_p_value(share: float) -> None:
    """Also none at all; the sum of the scores has a rounding error, the count has not."""
    for n in range(1, 41):
        for successes in range(n + 1):
            scores = np.where(np.arange(n) < successes, 1.0, 0.0) - share
            found = binomial_test(evidence(list(scores), variance=share * (1.0 - share)), share=share)
            assert found.p_value == pytest.approx(binom.sf(successes - 1, n, share), rel=1e-9)


@pytest.mark.parametrize("test", [z_test, gamma_test, lambda e: binomial_test(e, share=0.5)])
def test_no_evidence_has_p_value_one(test) -> None:
    assert test(evidence([])).p_value == 1.0


def bernoulli_law(shares: np.ndarray) -> np.ndarray:
    return convolved([np.array([1.0 - share, share]) for share in shares])


def test_convolved_distribution_of_unequal_coins_is_exact() -> None:
    shares = np.array([0.1, 0.5, 0.7, 0.25, 0.9])
    expected = np.zeros(6)
    for outcome in itertools.product([0, 1], repeat=5):
        heads = np.array(outcome)
        expected[heads.sum()] += np.prod(np.where(heads, shares, 1.0 - shares))
    np.testing.assert_allclose(bernoulli_law(shares), expected, atol=1e-15)
    equal = bernoulli_law(np.full(300, 0.3))
    np.testing.assert_allclose(equal, binom.pmf(np.arange(301), 300, 0.3), rtol=1e-9)
    assert bernoulli_law(np.zeros(0)).tolist() == [1.0]
