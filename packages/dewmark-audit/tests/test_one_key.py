"""What one key does to many texts: closed forms against keys that are drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dewmark.core.whitening import normalize_rows
from dewmark.dew.paper.null_distribution import tanh_kernel
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import cross_variance, score_variance
from dewmark_audit import one_key


def evidence(seed: int, *, d: int = 12, pairs: int = 40, lean: float = 0.5, **changed: object) -> Evidence:
    """A text whose units and contexts share a direction with those of all other texts."""
    rng = np.random.default_rng(seed)
    shared = np.random.default_rng(0).normal(size=(2, d))
    T = normalize_rows(rng.normal(size=(pairs, d)) + lean * shared[0])
    C = normalize_rows(rng.normal(size=(pairs, d)) + lean * shared[1])
    fields = {"T": T, "C": C, "kernel": (1.0,), "weights": rng.integers(1, 4, size=pairs).astype(float)}
    nothing = np.zeros(pairs)
    return Evidence(scores=nothing, alignments=nothing, positions=np.arange(pairs), **{**fields, **changed})


def kind(n: int, r: float, *, dims: int = 2000, seed: int = 0) -> np.ndarray:
    """Directions (n, dims) of texts with correlation r between any two, up to 1/√dims."""
    own = normalize_rows(np.random.default_rng(seed).normal(size=(n, dims)))
    own[:, 0] = 0.0
    own = math.sqrt(1.0 - r) * normalize_rows(own)
    own[:, 0] = math.sqrt(r)
    return own.astype(np.float32)


def test_r_is_the_correlation_of_z_over_keys() -> None:
    """Twenty texts under 20,000 literal keys W: mean correlation, and the variance of the mean z."""
    texts = [evidence(seed) for seed in range(20)]
    m = one_key.directions(texts)
    M = np.array([((e.T * e.weights[:, None]).T @ e.C).ravel() for e in texts])
    W = np.random.default_rng(1).normal(size=(M.shape[1], 20_000))
    z = (M @ W) / np.array([[math.sqrt(score_variance(e))] for e in texts])
    assert z.std(axis=1) == pytest.approx(np.ones(20), rel=0.025)  # 1/√(2·20,000) = 0.5%
    simulated = np.corrcoef(z)[~np.eye(20, dtype=bool)].mean()
    found = one_key.mean_correlation(m)
    assert found.r > 0.02
    assert found.r == pytest.approx(simulated, abs=0.004)
    effective = one_key.effective_number(20, found.r)
    assert z.mean(axis=0).var() == pytest.approx(1 / effective, rel=0.05)


@pytest.mark.parametrize("kernel", [(1.0,), tanh_kernel(0.5)])
def test_directions_have_the_correlations_of_the_evidence(kernel: tuple[float, ...]) -> None:
    texts = [evidence(seed, kernel=kernel) for seed in range(6)]
    gram = one_key.directions(texts) @ one_key.directions(texts).T
    spread = [math.sqrt(score_variance(each)) for each in texts]
    for i in range(6):
        for j in range(i):
            exact = cross_variance(texts[i], texts[j]) / (spread[i] * spread[j])
            assert gram[i, j] == pytest.approx(exact, abs=1e-5 if len(kernel) == 1 else 0.01)


def test_large_matrices_are_sketched_without_bias() -> None:
    texts = [evidence(seed, d=96, lean=1.0) for seed in range(16)]
    m = one_key.directions(texts)
    assert m.shape == (16, one_key.DIMENSIONS)
    spread = np.array([math.sqrt(score_variance(each)) for each in texts])
    pairs = [(i, j) for i in range(16) for j in range(i)]
    exact = np.array([cross_variance(texts[i], texts[j]) / (spread[i] * spread[j]) for i, j in pairs])
    error = np.array([m[i] @ m[j] for i, j in pairs]) - exact
    assert error.std() < math.sqrt(2 / one_key.DIMENSIONS)
    assert abs(error.mean()) < 2 * math.sqrt(2 / one_key.DIMENSIONS)  # all pairs share one sketch
    assert one_key.mean_correlation(m).r == pytest.approx(exact.mean() + error.mean(), abs=1e-4)


def test_labels_are_the_same_in_all_texts() -> None:
    """Two texts that share 30 of 40 equally weighted pairs have correlation 3/4."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2**60, size=50)
    texts = [
        Evidence.independent(np.zeros(40), np.ones(40), np.arange(40), labels=labels[start : start + 40])
        for start in (0, 10)
    ]
    first, second = one_key.directions(texts)
    assert first @ second == pytest.approx(0.75, abs=4 / math.sqrt(one_key.DIMENSIONS))
    assert all(text.comparable for text in texts)
    assert not Evidence.independent(np.zeros(40), np.ones(40), np.arange(40)).comparable


def test_the_law_of_a_keys_rate_against_simulated_keys() -> None:
    """4,000 keys on 3,000 texts: mean rate, its variance, and the 99th percentile over keys."""
    rng = np.random.default_rng(2)
    for r, level in ((0.05, 0.01), (0.3, 0.01), (0.7, 0.05)):
        g, e = rng.normal(size=(2_000, 1)), rng.normal(size=(2_000, 1_500))
        rates = np.mean(math.sqrt(r) * g + math.sqrt(1 - r) * e > stats.norm.isf(level), axis=1)
        z = stats.norm.isf(level)
        both = stats.multivariate_normal(cov=[[1.0, r], [r, 1.0]]).cdf([-z, -z])
        assert rates.mean() == pytest.approx(level, abs=4 * math.sqrt((both - level**2) / 2_000))
        # a rate grows with g, so its quantile lies between those of g's shares: √(.99·.01/2000) = 0.0022
        low, high = (one_key.rate_ceiling(r, level, share=0.99 + sign * 0.0067) for sign in (-1, 1))
        counting = 3 * math.sqrt(high / 1_500)  # of 1,500 texts
        assert low - counting < np.quantile(rates, 0.99) < high + counting
    assert one_key.rate_ceiling(0.0, 0.01) == pytest.approx(0.01)


def test_matching_correlation_of_texts_that_are_alike() -> None:
    m = kind(300, 0.2)
    for level in (0.05, 0.01):
        assert one_key.matching_correlation(m, level) == pytest.approx(0.2, abs=0.02)
    assert one_key.matching_correlation(np.eye(50, dtype=np.float32), 0.01) == 0.0


def test_matching_correlation_gives_the_variance_of_the_rate_of_templates() -> None:
    """Five templates: r is 0.18, but the rate over keys varies as if it were larger."""
    parts = [kind(20, 0.9, seed=seed) for seed in range(5)]
    for part, mine in enumerate(parts):
        mine[:, [0, part + 1]] = mine[:, [part + 1, 0]]
    m = np.concatenate(parts)
    W = np.random.default_rng(3).normal(size=(m.shape[1], 20_000)).astype(np.float32)
    rates = np.mean(m @ W > stats.norm.isf(0.01), axis=0)
    r = one_key.matching_correlation(m, 0.01)
    assert r > one_key.mean_correlation(m).r + 0.1
    drawn = stats.norm.sf((stats.norm.isf(0.01) - math.sqrt(r) * np.random.default_rng(4).normal(size=10**6))
                          / math.sqrt(1 - r))  # fmt: skip
    # all pairs of different texts; a text with itself adds its own binomial share
    own = 0.01 * 0.99 / len(m)
    assert rates.var() - own == pytest.approx(drawn.var(), rel=0.15)


def test_blocks_and_copies() -> None:
    letters, welsh = kind(12, 0.95, seed=1), kind(30, 0.7, seed=2)
    welsh[:, [0, 1]] = welsh[:, [1, 0]]
    m = np.concatenate([letters, welsh, kind(20, 0.0, seed=3)])
    sizes = sorted(np.bincount(one_key.blocks(m)).tolist())
    assert sizes == [*[1] * 20, 12, 30]
    # within their own kind, texts of one language are no copies of one another, nor letters of one form
    assert len(np.unique(one_key.copies(welsh, one_key.mean_correlation(welsh).r))) == 30
    assert len(np.unique(one_key.copies(letters, one_key.mean_correlation(letters).r))) == 12
    mixed = np.concatenate([letters, kind(20, 0.0, seed=3)])
    assert len(np.unique(one_key.copies(mixed, one_key.mean_correlation(mixed).r))) == 21


@pytest.mark.parametrize(("r", "texts"), [(0.01, 12), (0.2, 30), (0.8, 12)])
def test_the_rate_of_this_key_is_bounded(r: float, texts: int) -> None:
    """Over 300 keys the bound holds for at least 90% of them, and the prediction is near the truth."""
    rng = np.random.default_rng(5)
    m = kind(texts, r)
    held, errors = 0, []
    for _ in range(300):
        g = rng.normal()
        z = math.sqrt(r) * g + math.sqrt(1 - r) * rng.normal(size=texts)
        law = one_key.key_on_kind(z, m)
        truth = stats.norm.sf((stats.norm.isf(0.01) - math.sqrt(r) * g) / math.sqrt(1 - r))
        held += law.rate(0.01, confidence=0.95) >= truth
        errors.append(law.rate(0.01) - truth)
    # Binomial(300, 0.95) is below 271 with probability 0.001; the spread is estimated too
    assert held >= 271
    prior = stats.norm.sf((stats.norm.isf(0.01) - math.sqrt(r) * rng.normal(size=4000)) / math.sqrt(1 - r))
    assert np.std(errors) < max(prior.std(), 0.005)


def test_r_that_texts_do_not_exclude_is_two_standard_errors_higher() -> None:
    assert one_key.Correlation(0.1, 0.05).upper == pytest.approx(0.2)
    assert one_key.Correlation(-0.2, 0.05).upper == 0.0
    assert one_key.Correlation(0.5, 1.0).upper < 1.0


def test_z_that_vary_as_they_do_over_keys_leave_the_spread_there() -> None:
    """Unrelated texts: the prior of the spread is 1, and the sample variance of these z, too."""
    for z in ([-1.0, 0.0, 1.0], [0.5, -0.5, 1.5, 0.5 - math.sqrt(2.0)]):
        values = np.array(z) / np.std(z, ddof=1)
        law = one_key.key_on_kind(values, np.eye(len(z), dtype=np.float32))
        assert (law.mean, law.sd) == (0.0, 0.0)
        assert law.spread == pytest.approx(1.0, abs=1e-9)


def test_copies_do_not_narrow_the_bound() -> None:
    base = kind(20, 0.1)
    z = np.random.default_rng(6).normal(size=20)
    one = one_key.key_on_kind(z, base)
    copied = np.concatenate([base, np.repeat(base[:1], 30, axis=0)])
    many = one_key.key_on_kind(np.concatenate([z, np.repeat(z[:1], 30)]), copied)
    assert many.sd >= 0.95 * one.sd


def test_a_text_that_says_nothing_has_no_direction() -> None:
    """Two pairs that cancel, and no pairs at all."""
    text = evidence(1, pairs=2)
    same = {"T": np.repeat(text.T[:1], 2, axis=0), "C": np.repeat(text.C[:1], 2, axis=0)}
    nothing = evidence(1, pairs=2, **same, weights=np.array([1.0, -1.0]))
    assert not one_key.directions([nothing, evidence(1, pairs=0, T=text.T[:0], C=text.C[:0])]).any()
