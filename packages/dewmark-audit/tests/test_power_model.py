"""The power model on z-scores that follow it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from dewmark.errors import InputError
from dewmark_audit.power_model import PowerModel, fit_model, measure_strength
from dewmark_audit.strength import Strength

LENGTHS = (25, 50, 100, 200, 400)


def marked(count: int, *, mean: float, spread: float, length: int = 400, seed: int = 0) -> np.ndarray:
    """z (texts, LENGTHS) of texts whose scores are N(m_i, 1), m_i ~ N(mean, spread²), NaN beyond ``length``.

    The sum of L scores over √L: z(L) ~ N(mean √L, 1 + spread² L).
    """
    rng = np.random.default_rng(seed)
    scores = rng.normal(rng.normal(mean, spread, size=(count, 1)), 1.0, size=(count, max(LENGTHS)))
    z = scores.cumsum(axis=1)[:, np.array(LENGTHS) - 1] / np.sqrt(LENGTHS)
    z[:, np.array(LENGTHS) > length] = np.nan
    return z


def test_the_fit_recovers_the_parameters() -> None:
    model = fit_model(marked(600, mean=0.3, spread=0.1), LENGTHS)
    # the mean over 600 texts is known to √((1 + 0.01·400)/600/400) < 0.005, variances to √(2/600) = 6%
    assert model.slope == pytest.approx(0.3, abs=0.018)
    assert model.between == pytest.approx(0.01, rel=0.25)
    assert model.noise == pytest.approx(1.0, rel=0.25)


def test_the_smallest_length_reaches_the_rate() -> None:
    model = PowerModel(slope=0.3, noise=1.0, between=0.002)
    for target in (0.5, 0.9, 0.99):
        least = model.length_for(target, fpr=0.01)
        assert least is not None
        assert model.tpr(least, fpr=0.01) >= target > model.tpr(least - 1, fpr=0.01)
    # μ√L = z_α at TPR 1/2, whatever the spread
    assert model.length_for(0.5, fpr=0.01) == int(np.ceil((norm.isf(0.01) / 0.3) ** 2))


def test_texts_that_cannot_be_marked_limit_the_rate() -> None:
    """TPR tends to Φ(μ/τ): with μ = τ no length finds nine texts in ten."""
    model = PowerModel(slope=0.1, noise=1.0, between=0.01)
    assert model.length_for(0.9, fpr=0.01) is None
    assert model.tpr(1e9, fpr=0.01) == pytest.approx(norm.cdf(1.0), abs=1e-3)
    assert PowerModel(slope=-0.1, noise=1.0, between=0.0).length_for(0.5, fpr=0.01) is None


def marked_texts(texts: int, *, mean: float, spread: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = rng.uniform(50.0, 400.0, texts)
    return rng.normal(mean, spread, texts) * np.sqrt(lengths) + rng.normal(size=texts), lengths


def test_the_strength_approaches_the_truth():
    found = measure_strength(*marked_texts(20_000, mean=0.3, spread=0.1, seed=1))
    # standard errors: 0.14/√20,000 = 0.001 for the mean, about 0.001 for the spread
    assert found.mean == pytest.approx(0.3, abs=0.005)
    assert found.spread == pytest.approx(0.1, abs=0.005)


@pytest.mark.parametrize(("length", "fpr"), [(30.0, 0.01), (120.0, 0.01), (120.0, 1e-4), (1000.0, 0.01)])
def test_share_found_agrees_with_simulation(length, fpr):
    rng = np.random.default_rng(2)
    n = 200_000
    z = rng.normal(0.3, 0.1, n) * np.sqrt(length) + rng.normal(size=n)
    threshold = -float(np.quantile(rng.normal(size=2_000_000), fpr))
    share = float((z > threshold).mean())
    assert Strength(0.3, 0.1, 100).found(length, fpr=fpr) == pytest.approx(share, abs=0.01)


def test_nothing_is_found_without_evidence():
    assert Strength(0.3, 0.1, 100).found(0.0, fpr=0.01) == pytest.approx(0.01)
    with pytest.raises(InputError, match="4 marked texts, got 1"):
        measure_strength(np.array([1.0, 2.0]), np.array([50.0, 0.0]))
