"""The larger of z and (z + z_F)/√2: its p against the bivariate normal and against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from dewmark.stats.two_sums import larger_of


def p_by_quadrature(m: float) -> float:
    """1 − P(z ≤ m and z_F ≤ √2 m − z), by the density of z."""

    def inside(z: float) -> float:
        return float(stats.norm.pdf(z) * stats.norm.cdf(math.sqrt(2.0) * m - z))

    return float(stats.norm.sf(m)) + float(
        integrate.quad(lambda z: stats.norm.pdf(z) - inside(z), -40.0, m, epsabs=1e-14, limit=400)[0]
    )


@pytest.mark.parametrize("m", [-3.0, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0])
def test_p_is_that_of_the_bivariate_normal(m: float) -> None:
    assert float(larger_of(m, -100.0)[2]) == pytest.approx(p_by_quadrature(m), rel=1e-6)


def test_p_is_uniform_over_two_independent_scores() -> None:
    """Over 10⁶ pairs the share of p up to a level lies within 4.5 standard errors of it."""
    z, z_form = np.random.default_rng(1).standard_normal((2, 1_000_000))
    _, _, p = larger_of(z, z_form)
    for level in (0.5, 0.05, 0.01, 1e-3, 1e-4):
        assert np.mean(p <= level) == pytest.approx(level, abs=4.5 * math.sqrt(level / 1e6))


def test_far_out_two_looks_cost_a_factor_of_two() -> None:
    """Up to scores whose p no float holds; p and z fall and rise without a step."""
    m = np.linspace(5.0, 37.0, 2000)
    _, z, p = larger_of(m, m * (math.sqrt(2.0) - 1.0))  # both sums are m
    assert (np.diff(p) < 0.0).all()
    assert (np.diff(z) > 0.0).all()
    ratio = p / stats.norm.sf(m)
    assert (ratio > 1.9).all()
    assert (ratio <= 2.0 + 1e-9).all()
    _, z, p = larger_of(60.0, 60.0)
    assert float(p) == 0.0
    assert 80.0 < float(z) < 60.0 * math.sqrt(2.0)


def test_z_is_the_normal_quantile_of_p() -> None:
    z = np.linspace(-6.0, 8.0, 200)
    _, joint, p = larger_of(z, z[::-1])
    np.testing.assert_allclose(stats.norm.sf(joint), p, rtol=1e-9)


def test_without_a_second_sum_the_first_counts_alone() -> None:
    m, z, p = larger_of(np.array([1.0, 2.0]), np.array([np.nan, 2.0]))
    assert (m[0], z[0]) == (1.0, 1.0)
    assert p[0] == pytest.approx(stats.norm.sf(1.0))
    assert m[1] == pytest.approx(2.0 * math.sqrt(2.0))
