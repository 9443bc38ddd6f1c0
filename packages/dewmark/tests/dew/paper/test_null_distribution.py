"""The paper's scores on unmarked text: covariance, one score, and sums, against scipy and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from dewmark.dew.paper.null_distribution import alignment_sf, beta_test, sum_sf, tanh_kernel, tanh_variance
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import power_series


def drawn(n: int, count: int, *, seed: int = 0) -> np.ndarray:
    """√n times the first coordinate of uniform points on the sphere of R^n."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, n))
    return math.sqrt(n) * x[:, 0] / np.linalg.norm(x, axis=1)


@pytest.mark.parametrize("n", [3, 16, 576])
def test_one_alignment_follows_the_beta_distribution(n: int) -> None:
    u = drawn(n, 20_000)
    p = np.array([alignment_sf(float(x), n) for x in u[:2000]])
    assert stats.kstest(p, "uniform").pvalue > 1e-3
    assert alignment_sf(math.sqrt(n), n) == 0.0
    assert alignment_sf(-math.sqrt(n), n) == 1.0
    assert alignment_sf(0.0, n) == pytest.approx(0.5)


def test_many_dimensions_are_gaussian() -> None:
    for u in (0.5, 2.0, 4.0):
        assert alignment_sf(u, 10**7) == pytest.approx(stats.norm.sf(u), rel=1e-4)


@pytest.mark.parametrize(("gamma", "n"), [(0.5, 8), (0.5, 576), (2.0, 64)])
def test_saturated_variance_is_the_integral(gamma: float, n: int) -> None:
    half = (n - 1) / 2

    def integrand(v: float) -> float:
        return math.tanh(gamma * math.sqrt(n) * (2 * v - 1)) ** 2 * stats.beta.pdf(v, half, half)

    exact, _ = integrate.quad(integrand, 0, 1, points=[0.5], limit=400)
    assert tanh_variance(gamma, n) == pytest.approx(exact, rel=1e-4)


def test_saturated_variance_tends_to_the_gaussian_one() -> None:
    assert tanh_variance(0.5, 10**6) == pytest.approx(sum(tanh_kernel(0.5)), rel=1e-4)


def test_one_token_is_the_distribution_of_one_alignment() -> None:
    for u in (-1.0, 0.3, 2.5):
        assert sum_sf(math.tanh(0.5 * u), 1, gamma=0.5, n=12) == pytest.approx(alignment_sf(u, 12), rel=1e-9)


@pytest.mark.parametrize("length", [2, 10, 60])
def test_sums_match_simulation(length: int) -> None:
    sums = np.tanh(0.5 * drawn(10, 40_000 * length, seed=length).reshape(40_000, length)).sum(axis=1)
    for quantile in (0.1, 0.5, 0.9, 0.99):
        at = float(np.quantile(sums, quantile))
        share = float(np.mean(sums >= at))
        # a share from 40,000 draws is known to its own binomial error
        error = 4.5 * math.sqrt(share * (1 - share) / 40_000)
        assert sum_sf(at, length, gamma=0.5, n=10) == pytest.approx(share, abs=error)


def test_deep_tails_keep_their_digits() -> None:
    """Two tokens: the tail of the sum by direct integration over the first score."""
    gamma, n, total = 0.5, 20, 1.9

    def joint(u: float) -> float:
        rest = total - math.tanh(gamma * u)
        density = stats.beta.pdf((1 + u / math.sqrt(n)) / 2, (n - 1) / 2, (n - 1) / 2) / (2 * math.sqrt(n))
        return density * alignment_sf(math.atanh(rest) / gamma, n) if rest < 1 else 0.0

    low = math.atanh(total - math.tanh(gamma * math.sqrt(n))) / gamma
    exact, _ = integrate.quad(joint, low, math.sqrt(n), limit=400)
    assert exact < 1e-8
    assert sum_sf(total, 2, gamma=gamma, n=n) == pytest.approx(exact, rel=0.05)


def test_sums_decrease_and_end_at_their_bounds() -> None:
    tail = [sum_sf(t, 30, gamma=0.5, n=50) for t in np.linspace(-29, 29, 30)]
    assert all(a >= b for a, b in itertools.pairwise(tail))
    assert sum_sf(31.0, 30, gamma=0.5, n=50) == 0.0
    assert sum_sf(-31.0, 30, gamma=0.5, n=50) == 1.0


def test_the_test_is_uniform_on_independent_scores() -> None:
    u = drawn(16, 200 * 20, seed=3).reshape(200, 20)
    p = []
    for row in u:
        scores = np.tanh(0.5 * row)
        evidence = Evidence.independent(scores, np.ones(20), np.arange(20), variance=sum(tanh_kernel(0.5)))
        p.append(beta_test(evidence, gamma=0.5, n=16).p_value)
    assert stats.kstest(p, "uniform").pvalue > 1e-3


def kappa(rho: np.ndarray, gamma: float) -> np.ndarray:
    return power_series(rho, tanh_kernel(gamma))


@pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0, 2.0])
def test_kappa_of_one_is_the_variance_of_the_saturated_score(gamma: float) -> None:
    variance, _ = integrate.quad(lambda x: np.tanh(gamma * x) ** 2 * stats.norm.pdf(x), -12, 12)
    assert sum(tanh_kernel(gamma)) == pytest.approx(variance, rel=1e-6)


@pytest.mark.parametrize("rho", [-0.9, 0.1, 0.5, 0.97])
def test_kappa_against_monte_carlo(rho: float) -> None:
    rng = np.random.default_rng(7)
    u = rng.normal(size=400_000)
    v = rho * u + np.sqrt(1 - rho**2) * rng.normal(size=u.size)
    products = np.tanh(0.5 * u) * np.tanh(0.5 * v)
    error = products.std() / np.sqrt(u.size)
    assert kappa(np.array([rho]), 0.5)[0] == pytest.approx(products.mean(), abs=4.5 * error + 1e-5)


def test_kappa_is_odd_and_small_gamma_is_linear() -> None:
    rho = np.linspace(-1, 1, 21)
    np.testing.assert_allclose(kappa(rho, 0.5), -kappa(-rho, 0.5), atol=1e-15)
    np.testing.assert_allclose(kappa(rho, 0.01), 1e-4 * rho, rtol=1e-3, atol=1e-9)  # remark in appendix A.3
