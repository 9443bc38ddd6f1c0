"""Metrics for experiments, against their definitions and against closed forms."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from scipy import stats

from dewmark.errors import ConfigError, InputError, NumericalError
from dewmark_audit.intervals import bootstrap
from dewmark_lab.metrics import (
    auroc,
    auroc_interval,
    held_out,
    mean_interval,
    spread,
    threshold_at,
)


def scores(shift: float, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(shift, 1.0, size)


def tpr(positives, negatives, *, fpr: float) -> float:
    return float(np.mean(np.asarray(positives) > threshold_at(negatives, fpr=fpr)))


class TestAuroc:
    @pytest.mark.parametrize("seed", range(2))
    def test_the_definition_with_ties(self, seed):
        rng = np.random.default_rng(seed)
        high, low = rng.integers(2, 8, size=30), rng.integers(0, 6, size=40)
        wins = (high[:, None] > low[None, :]) + 0.5 * (high[:, None] == low[None, :])
        assert auroc(high, low) == pytest.approx(wins.mean(), abs=1e-12)

    def test_perfect_reversed_and_equal_scores(self):
        assert auroc([2, 3], [0, 1]) == 1.0
        assert auroc([0, 1], [2, 3]) == 0.0
        assert auroc([1, 1, 1], [1, 1]) == 0.5


class TestAurocInterval:
    @pytest.mark.parametrize("shift", [0.0, 1.0, 2.5])
    def test_coverage_is_close_to_nominal(self, shift):
        """Unit normals apart by ``shift``; 400 draws, so 95% coverage is seen within ±3·1.1%."""
        truth, covered = stats.norm.cdf(shift / math.sqrt(2.0)), 0
        for seed in range(400):
            value = auroc(scores(shift, 60, seed), scores(0.0, 90, 10_000 + seed))
            found = auroc_interval(value, positives=60, negatives=90)
            covered += found.low <= truth <= found.high
        assert covered / 400 > 0.95 - 3 * math.sqrt(0.95 * 0.05 / 400)

    def test_a_perfect_separation_is_not_certain(self):
        few, many = (auroc_interval(1.0, positives=n, negatives=n) for n in (20, 500))
        assert (few.value, few.high) == (1.0, 1.0)
        assert 0.8 < few.low < many.low < 0.999

    def test_it_is_symmetric_in_positives_and_negatives(self):
        low, high = (auroc_interval(value, positives=30, negatives=50) for value in (0.2, 0.8))
        assert (low.low, low.high) == pytest.approx((1 - high.high, 1 - high.low))
        assert auroc_interval(0.0, positives=5, negatives=5).low == 0.0

    @pytest.mark.parametrize("bad", [{"value": 1.2}, {"positives": 0}, {"negatives": 0}])
    def test_bad_input_is_rejected(self, bad):
        given = {"value": 0.9, "positives": 5, "negatives": 5, **bad}
        with pytest.raises(InputError, match="AUROC must lie in"):
            auroc_interval(given.pop("value"), **given)


class TestThreshold:
    @pytest.mark.parametrize("fpr", [0.0, 0.01, 0.29, 0.999])
    @pytest.mark.parametrize("size", [1, 99, 100, 101])
    def test_the_threshold_is_the_lowest_that_keeps_the_rate(self, fpr, size):
        for negatives in (scores(0, size), np.round(scores(0, size), 1)):
            threshold = threshold_at(negatives, fpr=fpr)
            allowed = math.floor(round(fpr * size, 6))
            assert np.sum(negatives > threshold) <= allowed
            below = negatives[negatives < threshold]
            if len(below):
                assert np.sum(negatives > below.max()) > allowed

    def test_equal_scores_pass_all_or_none(self):
        assert threshold_at([0, 1, 1, 1], fpr=0.5) == 1.0
        assert tpr([1, 2], [0, 1, 1, 1], fpr=0.5) == 0.5

    def test_rates_are_exact_decimals(self):
        assert threshold_at(np.arange(100), fpr=0.29) == 70  # 71 … 99 are 29 of 100
        assert threshold_at(np.arange(100), fpr=0.57) == 42


class TestHeldOut:
    def test_every_seed_uses_the_others_threshold(self):
        negatives = {1: [0.0, 1.0], 2: [10.0, 11.0], 3: [20.0, 21.0]}
        positives = {1: [15.0, 25.0], 2: [15.0, 25.0], 3: [15.0, 5.0]}
        found = held_out(positives, negatives, fpr=0.25)
        assert [seed.threshold for seed in found] == [20.0, 20.0, 10.0]
        assert [seed.tpr for seed in found] == [0.5, 0.5, 0.5]
        assert [seed.fpr for seed in found] == [0.0, 0.0, 1.0]
        (alone,) = held_out({1: [0.5]}, {1: [0.0, 1.0]}, fpr=0.5)
        assert (alone.threshold, alone.tpr, alone.fpr) == (0.0, 1.0, 0.5)  # of its own negatives

    def test_the_rate_on_held_out_negatives_is_the_nominal_one(self):
        """Exchangeable seeds: a held-out score exceeds the k-th largest of N with probability k/(N + 1)."""
        negatives = {seed: scores(0, 5000, seed) for seed in range(5)}
        found = held_out(negatives, negatives, fpr=0.05)
        error = math.sqrt(0.05 * 0.95 / 25_000) * 2  # the thresholds' own errors at most double it
        assert np.mean([seed.fpr for seed in found]) == pytest.approx(1001 / 20_001, abs=4 * error)

    def test_seeds_that_do_not_match_are_rejected(self):
        with pytest.raises(InputError, match="the same seeds"):
            held_out({"a": [1.0], "c": [1.0]}, {"a": [0.0], "b": [0.0]}, fpr=0.1)


class TestIntervals:
    def test_bootstrap_is_seeded_and_stratified(self):
        high, low = scores(1, 60), scores(0, 80, 1)
        sizes = set()

        def statistic(a, b):
            sizes.add((len(a), len(b)))
            assert set(a) <= set(high)
            assert set(b) <= set(low)
            return auroc(a, b)

        first = bootstrap(statistic, high, low, resamples=200, seed=3)
        assert sizes == {(60, 80)}
        assert first == bootstrap(auroc, high, low, resamples=200, seed=3)
        assert first != bootstrap(auroc, high, low, resamples=200, seed=4)
        assert first.low < first.value == auroc(high, low) < first.high

    def test_bootstrap_width_is_that_of_the_mean_s_normal_interval(self):
        high, low = scores(0, 400), scores(0, 300, 1)
        found = bootstrap(lambda a, b: float(a.mean() - b.mean()), high, low, resamples=4000)
        wide = 2 * 1.96 * math.sqrt(high.var() / 400 + low.var() / 300)
        assert found.high - found.low == pytest.approx(wide, rel=0.1)  # quantiles of 4,000: 3% standard error


def test_spread():
    found = spread([0.9, 0.8, 0.94])
    assert found.mean == pytest.approx(0.88)
    assert found.half_range == pytest.approx(0.07)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: auroc([], [1.0]), InputError, "positives must be"),
        (lambda: auroc([1.0], [[1.0]]), InputError, "negatives must be"),
        (lambda: auroc([1.0], [0.0, math.nan]), NumericalError, "negatives 1 is NaN"),
        (lambda: threshold_at([1.0], fpr=1.0), ConfigError, "got 1.0"),
        (lambda: bootstrap(auroc, [1.0], [0.0], resamples=0), ConfigError, "got 0"),
    ],
)
def test_bad_scores_are_rejected(call, error, said):
    with pytest.raises(error, match=re.escape(said)):
        call()


def test_the_interval_of_a_mean_has_nominal_coverage() -> None:
    """4,000 samples of five: coverage within four standard errors of 95% (0.0138)."""
    random = np.random.default_rng(3)
    found = [mean_interval(random.normal(2.0, 3.0, size=5)) for _ in range(4000)]
    covered = np.mean([each.low <= 2.0 <= each.high for each in found])
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4000)
    assert found[0].value == pytest.approx((found[0].low + found[0].high) / 2)
    with pytest.raises(InputError, match="at least two values, got 1"):
        mean_interval([1.0])
