"""Power measured on samples that follow the model."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from tests.test_power_model import LENGTHS, marked

from dewmark.errors import InputError
from dewmark_audit import power
from dewmark_audit.power import Power, choose_cuts, measure_power


def measured(z: np.ndarray, *, fpr: float, share: float = 1.0) -> Power:
    """The power of texts of which the given share of tokens is effective, with texts of 16 judged."""
    effective = np.where(np.isnan(z), np.nan, share * np.array(LENGTHS))
    return measure_power(z, effective, LENGTHS, fpr=fpr, least_effective=16.0)


def test_expected_and_measured_shares_agree() -> None:
    found = measured(marked(400, mean=0.25, spread=0.08), fpr=0.01)
    for length in LENGTHS:
        row = found.row(length)
        assert row.measured is not None
        truth = norm.sf((norm.isf(0.01) - 0.25 * np.sqrt(length)) / np.sqrt(1 + 0.0064 * length))
        assert row.measured.rate == pytest.approx(truth, abs=4 * np.sqrt(truth * (1 - truth) / 400))
        assert row.tpr.value == pytest.approx(truth, abs=0.06)
        assert row.tpr.low <= row.tpr.value <= row.tpr.high
        assert row.mean_z == pytest.approx(
            0.25 * np.sqrt(length), abs=4 * np.sqrt((1 + 0.0064 * length) / 400)
        )


def test_the_interval_covers_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extrapolate from 200 to 400 tokens: a 95% interval from 30 texts should cover the truth."""
    truth = norm.sf((norm.isf(0.01) - 0.25 * 20.0) / np.sqrt(1 + 0.0064 * 400))
    monkeypatch.setattr(power, "RESAMPLES", 200)
    inside = 0
    for seed in range(25):
        found = measured(marked(30, mean=0.25, spread=0.08, length=200, seed=seed), fpr=0.01)
        row = found.row(400)
        assert row.measured is None
        inside += row.tpr.low <= truth <= row.tpr.high
    # percentile intervals of small samples are a little narrow; Binomial(25, 0.88) is below 17 with 0.2%
    assert inside >= 17


def test_unmarked_texts_are_found_at_the_false_positive_rate() -> None:
    found = measured(marked(300, mean=0.0, spread=0.0), fpr=0.05)
    # the slope of 300 texts is 0 ± 0.003, so at 400 tokens z is 0 ± 0.06: a share of 0.05 ± 0.007
    assert found.row(400).tpr.value == pytest.approx(0.05, abs=0.03)
    assert found.row(100).measured.rate == pytest.approx(0.05, abs=0.05)


def test_shorter_texts_count_at_shorter_lengths() -> None:
    z = np.vstack([marked(6, mean=0.4, spread=0.05), marked(6, mean=0.4, spread=0.05, length=60, seed=1)])
    found = measured(z, fpr=0.01)
    assert found.row(50).measured.trials == 12
    assert found.row(200).measured.trials == 6
    assert found.row(150).measured is None  # no cut there


def test_a_length_that_the_detector_refuses_finds_nothing() -> None:
    """A fifth of the tokens is effective, so 16 effective tokens take 80 tokens, however strong the mark."""
    found = measured(marked(40, mean=1.0, spread=0.0), fpr=0.01, share=0.2)
    assert [found.row(length).measured.hits for length in LENGTHS] == [0, 0, 40, 40, 40]
    assert found.row(79).tpr.value == found.row(50).tpr.high == 0.0
    assert found.row(80).tpr.value > 0.99
    assert set(found.shortest.values()) == {80}


def test_texts_that_never_reach_the_effective_length_are_never_found() -> None:
    z = marked(40, mean=1.0, spread=0.0)
    effective = np.tile(0.5 * np.array(LENGTHS), (40, 1))
    effective[:10] = 12.0
    found = measure_power(z, effective, LENGTHS, fpr=0.01, least_effective=16.0)
    assert found.row(400).measured.hits == 30
    assert found.row(400).tpr.value == pytest.approx(0.75)
    assert found.shortest == {0.5: 32, 0.9: None, 0.99: None}


def test_cuts_are_the_given_lengths_and_some_between() -> None:
    cuts = choose_cuts([50, 100, 1000], 300)
    assert {50, 100} <= set(cuts)
    assert (cuts[0], cuts[-1]) == (25, 300)
    assert len(cuts) >= 8


def test_too_few_or_too_short_texts() -> None:
    z = np.vstack([marked(3, mean=0.3, spread=0.1), np.full((9, len(LENGTHS)), np.nan)])
    with pytest.raises(InputError, match="needs 4 marked texts of at least 25 tokens, got 3"):
        measured(z, fpr=0.01)
    with pytest.raises(InputError, match="texts of at least 25 tokens, the longest has 20"):
        choose_cuts([50], 20)
