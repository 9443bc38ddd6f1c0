"""The simulated key test against literal projections, and the closed form against the simulation."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from dewmark.core.whitening import normalize_rows
from dewmark.dew.paper.monte_carlo import FEWEST_KEYS, monte_carlo_test, most_keys, simulated_sums
from dewmark.dew.paper.null_distribution import tanh_kernel
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import score_variance

GAMMA = 0.5
SECRET = bytes(32)


def saturate(u: np.ndarray) -> np.ndarray:
    return np.tanh(GAMMA * u)


def first_sums(evidence: Evidence, *, keys: int, **options) -> np.ndarray:
    return np.fromiter(simulated_sums(evidence, saturate, **options), dtype=float, count=keys)


def text(length: int, *, d_T: int = 24, d_C: int = 16, labels: str = "", seed: int = 0) -> Evidence:
    """Pairs with repeated tokens, correlated contexts and uneven weights; ``labels`` drops semantics."""
    rng = np.random.default_rng(seed)
    vocabulary = normalize_rows(rng.normal(size=(max(length // 3, 2), d_T)))
    which = rng.integers(len(vocabulary), size=length)
    return Evidence(
        scores=np.zeros(length),
        alignments=np.zeros(length),
        weights=rng.integers(1, 4, size=length).astype(float),
        positions=np.arange(length),
        T=which if "T" in labels else vocabulary[which],
        C=np.arange(length) if "C" in labels else normalize_rows(rng.normal(size=(length, d_C)) + 0.3),
        kernel=tanh_kernel(GAMMA),
    )


@pytest.mark.parametrize(
    ("kind", "labels", "n"),
    [("gaussian", "", 128), ("orthogonal", "", 48), ("gaussian", "T", 128), ("gaussian", "TC", 128)],
)  # fmt: skip
def test_the_closed_form_has_the_simulated_spread(kind: str, labels: str, n: int) -> None:
    """Gaussian and orthogonal projections, all four modes."""
    evidence = text(60, labels=labels)
    sums = first_sums(evidence, n=n, kind=kind, secret=SECRET, keys=1000)
    # a standard deviation from 1,000 draws is known to 1/sqrt(2000) = 2.2%; 3.5 of them, and 1/n for finite n
    assert sums.std() == pytest.approx(math.sqrt(score_variance(evidence)), rel=0.078 + 1 / n)
    assert abs(sums.mean()) < 4.5 * sums.std() / math.sqrt(1000)


def test_simulated_keys_have_the_distribution_of_real_ones() -> None:
    evidence = text(40)
    n, rng = 32, np.random.default_rng(5)
    literal = np.empty(800)
    for i in range(len(literal)):
        P_T = normalize_rows(evidence.T @ rng.normal(size=(24, n)))
        P_C = normalize_rows(evidence.C @ rng.normal(size=(16, n)))
        u = math.sqrt(n) * np.einsum("ij,ij->i", P_T, P_C)
        literal[i] = evidence.weights @ saturate(u)
    imagined = first_sums(evidence, n=n, secret=SECRET, keys=800)
    assert stats.ks_2samp(literal, imagined).pvalue > 1e-3


@pytest.mark.parametrize("n", [4, 16])
def test_ranks_are_uniform_even_in_few_dimensions(n: int) -> None:
    """The rank needs no limit: a text's sums under literal keys rank uniformly among simulated ones."""
    evidence = text(12)
    sums = first_sums(evidence, n=n, secret=SECRET, keys=99)
    again = first_sums(dataclasses.replace(evidence, scores=np.ones(12)), n=n, secret=SECRET, keys=99)
    assert np.array_equal(sums, again)  # the same text always meets the same keys, whatever it scored
    rng = np.random.default_rng(1)
    p = []
    for _ in range(300):
        P_T = normalize_rows(evidence.T @ rng.normal(size=(24, n)))
        P_C = normalize_rows(evidence.C @ rng.normal(size=(16, n)))
        scores = saturate(math.sqrt(n) * np.einsum("ij,ij->i", P_T, P_C))
        p.append((1 + np.count_nonzero(sums >= evidence.weights @ scores)) / 100)
    # 100 possible values: compare with the discrete uniform distribution by its mean and its lower tail
    assert np.mean(p) == pytest.approx(0.505, abs=4.5 * math.sqrt(1 / 12 / 300))
    assert np.mean(np.array(p) <= 0.1) < 0.1 + 4.5 * math.sqrt(0.09 / 300) + 0.06  # 99 keys know 10% to 3%


def test_sequential_p_values_are_uniform_over_real_keys() -> None:
    """Few dimensions, literal real keys, a fresh secret for each: P(p ≤ α) = α."""
    evidence, n, rng = text(12), 8, np.random.default_rng(2)
    p = []
    for i in range(200):
        P_T = normalize_rows(evidence.T @ rng.normal(size=(24, n)))
        P_C = normalize_rows(evidence.C @ rng.normal(size=(16, n)))
        scores = saturate(math.sqrt(n) * np.einsum("ij,ij->i", P_T, P_C))
        real = dataclasses.replace(evidence, scores=scores)
        p.append(monte_carlo_test(real, saturate, n=n, secret=i.to_bytes(32)).p_value)
    for level in (0.05, 0.2, 0.5, 0.8):
        margin = 4 * math.sqrt(level * (1 - level) / len(p))
        assert np.mean(np.array(p) <= level) == pytest.approx(level, abs=margin)


@pytest.mark.parametrize("level", [0.05, 0.001])
def test_every_level_can_be_reached(level: float) -> None:
    strong = dataclasses.replace(text(4, d_T=4, d_C=4), scores=np.full(4, 50.0))
    statistic = monte_carlo_test(strong, saturate, n=4, secret=SECRET, level=level)
    assert statistic.p_value == 1 / (most_keys(level) + 1) <= level


def test_a_plain_text_is_settled_by_few_keys() -> None:
    drawn = []

    def counted(u: np.ndarray) -> np.ndarray:
        drawn.append(1)
        return saturate(u)

    statistic = monte_carlo_test(text(20), counted, n=16, secret=SECRET, level=1e-6)
    assert 0.2 < statistic.p_value < 0.8  # all its scores are 0, the middle of a symmetric distribution
    assert len(drawn) < 100 < FEWEST_KEYS


def test_simulated_keys_depend_on_secret_and_text() -> None:
    one, other = text(20), text(20, seed=1)
    sums = first_sums(one, n=16, secret=SECRET, keys=20)
    assert np.array_equal(sums, first_sums(one, n=16, secret=SECRET, keys=20))
    assert not np.allclose(sums, first_sums(one, n=16, secret=bytes([1] * 32), keys=20))
    assert not np.allclose(sums, first_sums(other, n=16, secret=SECRET, keys=20))


def test_z_is_the_closed_form() -> None:
    strong = dataclasses.replace(text(50), scores=np.full(50, 0.4))
    statistic = monte_carlo_test(strong, saturate, n=64, secret=SECRET)
    assert statistic.p_value == 1 / (FEWEST_KEYS + 1)
    assert statistic.z == pytest.approx(strong.total / math.sqrt(score_variance(strong)))
