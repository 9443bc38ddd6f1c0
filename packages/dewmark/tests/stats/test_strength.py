"""The strength of a mark: estimates and the closed form against simulated texts."""

from __future__ import annotations

import numpy as np
import pytest

from dewmark.errors import InputError
from dewmark.stats.strength import Strength, measure_strength


def simulated(texts: int, *, mean: float, spread: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = rng.uniform(50.0, 400.0, texts)
    return rng.normal(mean, spread, texts) * np.sqrt(lengths) + rng.normal(size=texts), lengths


def test_estimates_approach_the_truth():
    found = measure_strength(*simulated(20_000, mean=0.3, spread=0.1, seed=1))
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


def test_a_small_sample_promises_less_where_texts_are_long():
    wide = measure_strength(*simulated(6, mean=0.3, spread=0.0, seed=3))
    narrow = measure_strength(*simulated(5_000, mean=0.3, spread=0.0, seed=3))
    assert wide.spread > narrow.spread


def test_nothing_is_found_without_evidence():
    assert Strength(0.3, 0.1, 100).found(0.0, fpr=0.01) == pytest.approx(0.01)
    with pytest.raises(InputError, match="4 marked texts, got 1"):
        measure_strength(np.array([1.0, 2.0]), np.array([50.0, 0.0]))
