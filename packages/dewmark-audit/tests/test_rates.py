"""Rates with exact intervals, against the binomial distribution."""

from __future__ import annotations

import json

import pytest
from scipy import stats

from dewmark.errors import ConfigError, InputError
from dewmark_audit.rates import rate


def test_clopper_pearson_against_the_beta_distribution():
    found = rate(3, 50, confidence=0.9)
    assert found.rate == 0.06
    assert found.low == pytest.approx(stats.beta.ppf(0.05, 3, 48))
    assert found.high == pytest.approx(stats.beta.ppf(0.95, 4, 47))
    assert json.loads(json.dumps(found.to_dict()))["hits"] == 3


def test_clopper_pearson_ends():
    assert (rate(0, 10).low, rate(10, 10).high) == (0.0, 1.0)
    assert rate(0, 10).high == pytest.approx(1 - 0.025 ** (1 / 10))


@pytest.mark.parametrize("p", [0.01, 0.3])
def test_clopper_pearson_coverage_is_at_least_nominal(p):
    n = 40
    intervals = [rate(k, n) for k in range(n + 1)]
    covered = sum(stats.binom.pmf(k, n, p) for k, i in enumerate(intervals) if i.low <= p <= i.high)
    assert 0.95 <= covered < 1.0


@pytest.mark.parametrize(
    ("hits", "trials", "confidence", "error", "said"),
    [(3, 2, 0.95, InputError, "3 of 2"), (0, 0, 0.95, InputError, "0 of 0"), (1, 2, 9, ConfigError, "got 9")],
)
def test_impossible_rates_are_rejected(hits, trials, confidence, error, said):
    with pytest.raises(error, match=said):
        rate(hits, trials, confidence=confidence)
