"""The closed form against its definition: simulate keys, compare mean, variance and p-values."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from dewmark.core.whitening import normalize_rows
from dewmark.dew.paper.null_distribution import tanh_kernel
from dewmark.stats import key_test as kt
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import gaussian_test, key_test, power_series, score_variance

GAMMA = 0.5


def evidence(
    T: np.ndarray, C: np.ndarray, *, u: np.ndarray | None = None, w: np.ndarray | None = None
) -> Evidence:
    length = len(T)
    u = np.zeros(length) if u is None else u
    return Evidence(
        scores=np.tanh(GAMMA * u),
        alignments=u,
        weights=np.ones(length) if w is None else w.astype(float),
        positions=np.arange(length),
        T=T,
        C=C,
        kernel=tanh_kernel(GAMMA),
    )


def text_like(length: int, d_T: int = 24, d_C: int = 16, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Token and context rows with what real text has: repeated tokens, a common context component."""
    rng = np.random.default_rng(seed)
    vocabulary = normalize_rows(rng.normal(size=(max(length // 3, 2), d_T)))
    T = vocabulary[rng.integers(len(vocabulary), size=length)]
    C = normalize_rows(rng.normal(size=(length, d_C)) + 0.5)
    return T, C


def alignments_under_keys(
    T: np.ndarray, C: np.ndarray, *, keys: int, n: int = 256, seed: int = 1
) -> np.ndarray:
    """u (keys, L) by the literal projections, fresh Gaussian R_T and R_C for every key."""
    rng = np.random.default_rng(seed)
    out = np.empty((keys, len(T)))
    for i in range(keys):
        P_T = T @ rng.normal(size=(T.shape[1], n))
        P_C = C @ rng.normal(size=(C.shape[1], n))
        cosines = np.einsum("ij,ij->i", P_T, P_C) / np.linalg.norm(P_T, axis=1) / np.linalg.norm(P_C, axis=1)
        out[i] = math.sqrt(n) * cosines
    return out


@pytest.mark.parametrize("length", [30, 120])
def test_variance_and_p_values_match_fresh_keys(length: int) -> None:
    T, C = text_like(length)
    u = alignments_under_keys(T, C, keys=1500)
    sums = np.tanh(GAMMA * u).sum(axis=1)
    variance = score_variance(evidence(T, C))
    # a standard deviation from 1,500 draws is known to 1/sqrt(3000) = 1.8%; 6% leaves room for finite n
    assert sums.std() == pytest.approx(math.sqrt(variance), rel=0.06)
    assert abs(sums.mean()) < 4.5 * math.sqrt(variance / 1500)
    p = np.array([key_test(evidence(T, C, u=row)).p_value for row in u[:1000]])
    assert stats.kstest(p, "uniform").pvalue > 1e-3


def test_the_paper_s_test_is_wrong_on_the_same_text() -> None:
    """Correlated contexts: the test that takes L_eff = L alarms far too often, the key test does not."""
    T, C = text_like(120)
    u = alignments_under_keys(T, C, keys=1000)
    naive = np.mean([gaussian_test(evidence(T, C, u=row)).p_value < 0.01 for row in u])
    honest = np.mean([key_test(evidence(T, C, u=row)).p_value < 0.01 for row in u])
    assert naive > 0.04
    assert honest < 0.01 + 3.5 * math.sqrt(0.01 * 0.99 / 1000)


def test_weights_equal_repetition() -> None:
    T, C = text_like(40)
    u = np.random.default_rng(3).normal(size=40)
    counts = np.random.default_rng(4).integers(1, 5, size=40)
    again = np.repeat(np.arange(40), counts)
    once = key_test(evidence(T, C, u=u, w=counts))
    many = key_test(evidence(T[again], C[again], u=u[again]))
    assert once.z == pytest.approx(many.z, rel=1e-4)
    assert once.effective_length == pytest.approx(many.effective_length, rel=1e-4)


@pytest.mark.parametrize("kernel", [(1.0,), tanh_kernel(GAMMA)])
@pytest.mark.parametrize("limit", [0, kt.LINEAR_LIMIT])
def test_blocks_do_not_change_the_sum(monkeypatch: pytest.MonkeyPatch, kernel, limit: int) -> None:
    T, C = text_like(150)
    w = np.random.default_rng(0).integers(1, 4, size=150).astype(float)
    found = dataclasses.replace(evidence(T, C, w=w), kernel=kernel)
    monkeypatch.setattr(kt, "LINEAR_LIMIT", limit)
    whole = score_variance(found)
    monkeypatch.setattr(kt, "BLOCK", 32)
    assert score_variance(found) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("kernel", [(1.0,), tanh_kernel(GAMMA)])
@pytest.mark.parametrize("limit", [0, kt.LINEAR_LIMIT])
def test_a_variance_of_their_own_is_added_to_the_scores(monkeypatch, kernel, limit: int) -> None:
    """It stands on the diagonal of the covariance, in blocks as in the whole, and in the sizes."""
    T, C = text_like(150)
    rng = np.random.default_rng(0)
    w, own = rng.integers(1, 4, size=150).astype(float), rng.random(150)
    plain = dataclasses.replace(evidence(T, C, w=w), kernel=kernel)
    found = dataclasses.replace(plain, own=own)
    monkeypatch.setattr(kt, "LINEAR_LIMIT", limit)
    monkeypatch.setattr(kt, "BLOCK", 32)
    assert score_variance(found) == pytest.approx(score_variance(plain) + w**2 @ own, rel=1e-5)
    rows, columns = rng.permutation(150)[:90], slice(20, 110)
    added = kt.covariance(found, rows, columns) - kt.covariance(plain, rows, columns)
    np.testing.assert_allclose(added, np.diag(own)[rows][:, columns], atol=1e-6)
    assert found.variance * found.sizes == pytest.approx(plain.variance + own)


@pytest.mark.parametrize(
    "coefficients", [(0.7,), (0.7, 0.0, 0.2), (0.7, 0.0, 0.2, 0.0, 0.1), (0.7, 0.2), (0.6, 0.1, 0.3)]
)
def test_a_power_series_has_a_coefficient_for_each_power(coefficients) -> None:
    rho = np.linspace(-1.0, 1.0, 21, dtype=np.float32)
    expected = sum(c * rho.astype(float) ** power for power, c in enumerate(coefficients, start=1))
    np.testing.assert_allclose(power_series(rho, coefficients), expected, atol=1e-6)


def test_labels_are_orthogonal_unit_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    T, C = text_like(90)
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 20, size=90)
    one_hot = np.eye(20, dtype=np.float32)[labels]
    pairs = np.arange(90)
    for limit in (kt.LINEAR_LIMIT, 80):
        monkeypatch.setattr(kt, "LINEAR_LIMIT", limit)
        for a, b in (((labels, C), (one_hot, C)), ((T, labels), (T, one_hot))):
            for kernel in ((1.0,), tanh_kernel(GAMMA)):
                ours, theirs = (dataclasses.replace(evidence(*each), kernel=kernel) for each in (a, b))
                assert score_variance(ours) == pytest.approx(score_variance(theirs), rel=1e-5)
    assert score_variance(evidence(pairs, pairs)) == pytest.approx(90 * sum(tanh_kernel(GAMMA)), rel=1e-5)


def test_no_scored_units_give_no_evidence() -> None:
    empty = np.zeros((0, 4), dtype=np.float32)
    statistic = key_test(evidence(empty, empty))
    assert (statistic.z, statistic.p_value, statistic.effective_length) == (0.0, 1.0, 0.0)
