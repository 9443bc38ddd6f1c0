from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from dewmark.stats.nulls import gaussian_threshold, one_sided_p, power_series, tanh_kernel


def kappa(rho: np.ndarray, gamma: float) -> np.ndarray:
    return power_series(rho, tanh_kernel(gamma))


@pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0, 2.0])
def test_kappa_of_one_is_the_variance_of_the_saturated_score(gamma: float) -> None:
    variance, _ = integrate.quad(lambda x: np.tanh(gamma * x) ** 2 * stats.norm.pdf(x), -12, 12)
    assert sum(tanh_kernel(gamma)) == pytest.approx(variance, rel=1e-6)


@pytest.mark.parametrize("rho", [-0.9, -0.4, 0.1, 0.5, 0.8, 0.97])
def test_kappa_against_monte_carlo(rho: float) -> None:
    rng = np.random.default_rng(7)
    u = rng.normal(size=2_000_000)
    v = rho * u + np.sqrt(1 - rho**2) * rng.normal(size=u.size)
    products = np.tanh(0.5 * u) * np.tanh(0.5 * v)
    error = products.std() / np.sqrt(u.size)
    assert kappa(np.array([rho]), 0.5)[0] == pytest.approx(products.mean(), abs=4.5 * error + 1e-5)


def test_kappa_is_odd_and_small_gamma_is_linear() -> None:
    rho = np.linspace(-1, 1, 21)
    np.testing.assert_allclose(kappa(rho, 0.5), -kappa(-rho, 0.5), atol=1e-15)
    np.testing.assert_allclose(kappa(rho, 0.01), 1e-4 * rho, rtol=1e-3, atol=1e-9)  # remark in appendix A.3


def test_gaussian_threshold_has_the_level_it_names() -> None:
    tau = gaussian_threshold(0.01, variance=0.16, effective_length=200)
    assert one_sided_p(tau / np.sqrt(0.16 / 200)) == pytest.approx(0.01)
