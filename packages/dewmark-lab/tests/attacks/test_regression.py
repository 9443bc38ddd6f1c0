"""Stealing DEW by regression: the estimate against theory, and against the real scheme on a tiny host."""

from __future__ import annotations

import numpy as np
import pytest
from tests.attacks.tiny import texts_of
from tests.fakes import COMPOSED

import dewmark
from dewmark.detect import score_texts
from dewmark.errors import ConfigError, InputError
from dewmark_lab.attacks.stealing.forging import DewForger
from dewmark_lab.attacks.stealing.regression import (
    Baseline,
    Moments,
    as_dew,
    cosine,
    estimate,
    fitted_tilt,
    moments_of,
    pairs_of,
    posterior_mean,
    residual_moments,
)
from dewmark_lab.testing.fake_host import FakeHost

D_T, D_C, BETA = 24, 20, 0.3


def isotropic(rng, number, dim):
    """Unit vectors in uniform directions."""
    rows = rng.normal(size=(number, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def draw(rng, W, vocabulary, number, *, beta):
    """Contexts, and for each a unit drawn from the vocabulary with odds exp(β tᵀWc)."""
    C = isotropic(rng, number, D_C)
    odds = np.exp(beta * vocabulary @ W @ C.T).cumsum(axis=0)
    chosen = (odds < rng.random(number) * odds[-1]).sum(axis=0)
    return vocabulary[chosen], C


def correlation(W, estimated, rng):
    T, C = isotropic(rng, 4000, D_T), isotropic(rng, 4000, D_C)
    true, ours = (np.einsum("ij,ij->i", T @ M, C) for M in (W, estimated))
    return np.corrcoef(true, ours)[0, 1]


@pytest.mark.parametrize("number", [1000, 4000])
def test_cosine_agrees_with_theory(number):
    """s/√(1 + s²) with s² = β²/(d_T d_C (1/N + 1/N')).

    A cosine with noise in d_T·d_C = 480 dimensions varies by about 1/√480 = 0.046 a key, and 4,000 pairs add
    1/√4000 = 0.016: over 6 keys the mean's deviation is 0.02. The first order in β leaves out a share of
    about β² = 0.09 of s, at most 0.03 of the cosine. 0.1 is their sum and 3.5 deviations.
    """
    found = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        W = rng.normal(size=(D_T, D_C))
        vocabulary = isotropic(rng, 300, D_T)
        base = Baseline.of([draw(rng, W, vocabulary, number, beta=0.0)])
        marked = Moments.of(*draw(rng, W, vocabulary, number, beta=BETA))
        found.append(correlation(W, estimate(marked, base), rng))
    s = BETA * np.sqrt(number / 2 / (D_T * D_C))
    assert abs(np.mean(found) - s / np.sqrt(1.0 + s * s)) < 0.1


def test_nothing_is_learned_from_unmarked_text():
    """The mean of 8 cosines in 480 dimensions deviates from 0 by 0.046/√8 = 0.016; 5 deviations are 0.08."""
    found = []
    for seed in range(8):
        rng = np.random.default_rng(100 + seed)
        W, vocabulary = rng.normal(size=(D_T, D_C)), isotropic(rng, 300, D_T)
        base = Baseline.of([draw(rng, W, vocabulary, 4000, beta=0.0)])
        marked = Moments.of(*draw(rng, W, vocabulary, 4000, beta=0.0))
        found.append(correlation(W, estimate(marked, base), rng))
    assert abs(np.mean(found)) < 0.08


def test_shared_context_component_reveals_the_mark():
    """If contexts share a component, the same number of units reveals much more."""
    results = {}
    for common in (0.0, 0.9):
        found = []
        for seed in range(4):
            rng = np.random.default_rng(seed)
            W, vocabulary = rng.normal(size=(D_T, D_C)), isotropic(rng, 300, D_T)
            mean = isotropic(rng, 1, D_C)

            def contexts(number, rng=rng, mean=mean, common=common):
                rows = common * mean + np.sqrt(1 - common**2) * isotropic(rng, number, D_C)
                return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

            def units(C, beta, rng=rng, W=W, vocabulary=vocabulary):
                odds = np.exp(beta * vocabulary @ W @ C.T).cumsum(axis=0)
                return vocabulary[(odds < rng.random(len(C)) * odds[-1]).sum(axis=0)]

            B, C = contexts(500), contexts(500)
            W_hat = estimate(Moments.of(units(C, BETA), C), Baseline.of([(units(B, 0.0), B)]))
            T, fresh = isotropic(rng, 4000, D_T), contexts(4000)
            true, ours = (np.einsum("ij,ij->i", T @ M, fresh) for M in (W, W_hat))
            found.append(np.corrcoef(true, ours)[0, 1])
        results[common] = np.mean(found)
    assert results[0.9] > results[0.0] + 0.15


@pytest.mark.parametrize("number", [2, 128])
def test_coordinates_are_learned_as_the_formula_says(number):
    """Cosines of the posterior mean, among the coordinates that vary more than the median and the others.

    A cosine over D effective directions varies by 1/√D a key: at most 0.06 here. The mean of 8 keys deviates
    by 0.02, and 4 deviations are 0.08.
    """
    length, v = 100, np.outer(1.0 / (3.0 + np.arange(40)), 1.0 / (6.0 + np.arange(60)))
    v /= v.sum()
    rho = length * number * v
    for block in (v > np.median(v), v <= np.median(v)):
        found = []
        for seed in range(8):
            rng = np.random.default_rng(seed)
            W = rng.standard_normal(v.shape)
            total = rho * W + rng.standard_normal(v.shape) * np.sqrt(rho)  # the texts' sum, where β = 1
            tilt = fitted_tilt(total, number * length, v)
            learned = posterior_mean(total, number * length, v, tilt=tilt)
            a, b = learned[block] * np.sqrt(v[block]), W[block] * np.sqrt(v[block])
            found.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        expected = np.sqrt((v * rho / (1.0 + rho))[block].sum() / v[block].sum())
        assert np.mean(found) == pytest.approx(expected, abs=0.08)


def test_moments_add_up_and_scores_have_unit_variance():
    rng = np.random.default_rng(5)
    T, C = isotropic(rng, 900, D_T), isotropic(rng, 900, D_C)
    whole, parts = Moments.of(T, C), Moments.of(T[:400], C[:400]) + Moments.of(T[400:], C[400:])
    assert whole.count == parts.count
    np.testing.assert_allclose(whole.cross, parts.cross, atol=1e-3)
    base = Baseline.of([(isotropic(rng, 900, D_T), isotropic(rng, 900, D_C))])
    W = estimate(whole, base)
    u = np.einsum("ij,ij->i", isotropic(rng, 20_000, D_T) @ W, isotropic(rng, 20_000, D_C))
    assert u.std() == pytest.approx(1.0, abs=0.05 + 4 * 0.005)  # with 900 units, isotropic up to about 5%
    with pytest.raises(InputError, match="no mark"):
        estimate(base.moments, base)


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(512)


def load_tokens(key, host):
    return dewmark.load_scheme(key, host=host.info, scheme="dew-paper", settings=COMPOSED)


@pytest.mark.parametrize(
    ("scheme", "settings"),
    [("dew-paper", {**COMPOSED, "lambda": 4.0}), ("dew", {"alpha": 0.7})],
    ids=["tokens", "words"],
)
def test_dew_is_forged_from_its_texts(host, bag_encoder, scheme, settings):
    """The estimate improves with more texts, and the victim's detector accepts forgeries made with it."""
    key = dewmark.Key(bytes(range(32)))
    victim = as_dew(dewmark.load_scheme(key, host=host.info, scheme=scheme, settings=settings))
    marked, base = texts_of(host, victim, 32, seed=0), texts_of(host, None, 32, seed=1000)
    fresh = texts_of(host, None, 20, seed=2000)
    baseline = Baseline.of(pairs_of(victim.reader, base))
    few, many = (estimate(moments_of(victim.reader, marked[:n]), baseline) for n in (2, 32))
    assert cosine(victim, many, fresh) > max(cosine(victim, few, fresh), 0.3)

    def mean_z(strength):
        texts = texts_of(host, DewForger(victim, many, strength=strength), 12, seed=3000)
        return np.mean([d.z for d in score_texts(victim, texts)])

    # 12 unmarked texts have a mean z of 0 ± 0.29 under a random key, and somewhat more under one key
    assert mean_z(5.0) > 2.0
    assert abs(mean_z(1e-6)) < 1.3
    assert mean_z(-5.0) < -2.0


def test_host_expectation_of_words_teaches_the_mark(host, bag_encoder):
    victim = as_dew(dewmark.load_scheme(dewmark.Key(bytes(32)), host=host.info, settings={"alpha": 0.7}))
    marked, base = texts_of(host, victim, 40, seed=0), texts_of(host, None, 40, seed=1000)
    fresh = texts_of(host, None, 20, seed=2000)
    baseline = Baseline.of(pairs_of(victim.reader, base))
    W = estimate(residual_moments(host, victim.reader, marked), baseline, residual=True)
    assert cosine(victim, W, fresh) > 0.2  # unmarked texts give 0 ± 0.05
    nothing = estimate(residual_moments(host, victim.reader, base), baseline, residual=True)
    assert abs(cosine(victim, nothing, fresh)) < 0.15


def test_invalid_victims_and_texts_are_rejected(host, bag_encoder):
    key = dewmark.Key(bytes(32))
    with pytest.raises(ConfigError, match="use counts"):
        as_dew(dewmark.load_scheme(key, host=host.info, scheme="kgw"))
    with pytest.raises(ConfigError, match="mode=token_only"):
        as_dew(dewmark.load_scheme(key, host=host.info, scheme="dew-paper", settings={"mode": "token_only"}))
    victim = as_dew(load_tokens(key, host))
    with pytest.raises(InputError, match="no text contains a unit"):
        moments_of(victim.reader, ["the"])
    with pytest.raises(InputError, match="no text contains a unit"):
        Baseline.of(pairs_of(victim.reader, ["the"]))
