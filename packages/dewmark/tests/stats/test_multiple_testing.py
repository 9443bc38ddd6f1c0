"""Adjusted p-values: the definitions, an independent implementation, and the guaranteed error rates."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import stats

from dewmark.errors import ConfigError, NumericalError
from dewmark.stats.multiple_testing import benjamini_hochberg, holm, sidak_min

CORRECTIONS = [benjamini_hochberg, holm]


def bh_by_definition(p: np.ndarray) -> np.ndarray:
    """q_i = min over values t ≥ p_i of m t / #{p ≤ t}, at most 1."""
    return np.array([min(1.0, *(len(p) * t / np.sum(p <= t) for t in p[p >= value])) for value in p])


def holm_by_definition(p: np.ndarray) -> np.ndarray:
    """The largest of p_(k) (m − k + 1) over the k up to its own, at most 1."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    adjusted, largest = np.empty(len(p)), 0.0
    for k, i in enumerate(order):
        largest = max(largest, min(1.0, p[i] * (len(p) - k)))
        adjusted[i] = largest
    return adjusted


def with_ties(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 12, size=30) / 11.0


def test_a_worked_example():
    p = [0.01, 0.04, 0.03, 0.005]
    assert benjamini_hochberg(p) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize("seed", range(4))
def test_definitions_with_and_without_ties(seed):
    for p in (with_ties(seed), np.random.default_rng(seed).uniform(size=40) ** 3):
        assert benjamini_hochberg(p) == pytest.approx(bh_by_definition(p), rel=1e-12)
        assert benjamini_hochberg(p) == pytest.approx(stats.false_discovery_control(p), rel=1e-12)
        assert holm(p) == pytest.approx(holm_by_definition(p), rel=1e-12)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_every_correction_keeps_order_and_never_lowers(correction):
    p = with_ties(3)
    adjusted = correction(p)
    order = np.argsort(p, kind="stable")
    assert np.all(np.diff(adjusted[order]) >= 0)
    assert np.all((adjusted >= p - 1e-15) & (adjusted <= 1.0))
    for value in np.unique(p):
        assert len(np.unique(adjusted[p == value])) == 1


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_one_test_needs_no_correction(correction):
    assert correction([0.03]) == pytest.approx([0.03])
    assert correction([]).shape == (0,)
    assert correction([0.0, 1.0]).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize(
    ("p", "error", "said"),
    [
        ([0.1, float("nan")], NumericalError, "p-value 1 is NaN"),
        ([0.1, 1.2], ConfigError, "got 1.2"),
        ([-1e-9], ConfigError, "got -1e-09"),
        ([float("inf")], ConfigError, "got inf"),
        ([[0.1]], ConfigError, "shape (1, 1)"),
    ],
)
def test_bad_p_values_are_rejected(correction, p, error, said):
    with pytest.raises(error, match=re.escape(said)):
        correction(p)


def test_tiny_p_values_are_not_lost():
    assert sidak_min(1e-40, tests=1000) == pytest.approx(1e-37)
    assert sidak_min(1.0, tests=5) == 1.0
    assert sidak_min(0.01, tests=4) == pytest.approx(1 - 0.99**4)
    with pytest.raises(ConfigError, match="at least one test"):
        sidak_min(0.5, tests=0)


def test_sidak_is_exact_for_the_smallest_of_independent_tests():
    smallest = np.random.default_rng(1).uniform(size=(20_000, 50)).min(axis=1)
    corrected = [sidak_min(p, tests=50) for p in smallest]
    assert stats.kstest(corrected, "uniform").pvalue > 0.001


def test_false_discoveries_stay_below_the_level():
    """40 true nulls and 10 strong signals: E[FDP] = 0.2 · 40/50 = 0.16 for independent tests, exactly."""
    rng = np.random.default_rng(5)
    shares = []
    for _ in range(3000):
        null = rng.uniform(size=40)
        signal = stats.norm.sf(rng.normal(3.0, 1.0, size=10))
        rejected = benjamini_hochberg(np.concatenate([null, signal])) <= 0.2
        shares.append(rejected[:40].sum() / max(rejected.sum(), 1))
    error = np.std(shares) / np.sqrt(len(shares))
    assert np.mean(shares) == pytest.approx(0.16, abs=4 * error)


def test_holm_keeps_the_family_wise_level_under_full_dependence():
    """All tests equal: Holm's first step is Bonferroni's, so a false alarm needs p ≤ α/m."""
    p = np.random.default_rng(9).uniform(size=20_000)
    alarms = [bool((holm([value] * 5) <= 0.25).any()) for value in p]
    assert np.mean(alarms) == pytest.approx(0.05, abs=4 * np.sqrt(0.05 * 0.95 / len(p)))
