"""Plots show the right numbers, and the same plot gives the same file."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from dewmark.stats.metrics import rate
from dewmark_lab.reports.plots import power_curve, trade_off

UNIFORM = np.random.default_rng(0).uniform(size=300)


def curve() -> Figure:
    lengths = [50, 100, 200]
    return power_curve(
        lengths, [0.4, 0.7, 0.9], [0.3, 0.6, 0.8], [0.5, 0.8, 1.0], measured={50: rate(7, 16)}, fpr=0.01
    )


def test_a_power_curve_shows_model_band_and_measurement() -> None:
    (axes,) = curve().axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["95% interval", "model", "measured share"]
    assert axes.lines[0].get_ydata() == pytest.approx([0.4, 0.7, 0.9])


def test_the_trade_off_shows_every_point_the_budget_and_the_choice() -> None:
    curves = {
        "bias": [(50.0, 2.0, "lambda=1"), (40.0, 4.0, "lambda=2")],
        "gumbel": [(60.0, 6.0, "alpha=0.5")],
    }
    figure = trade_off(curves, unmarked=60.0, budget=1.05, chosen=(60.0, 6.0), title="T")
    (axes,) = figure.axes
    drawn = [(line.get_label(), list(zip(*line.get_data(), strict=True))) for line in axes.lines]
    assert ("bias", [(50.0, 2.0), (40.0, 4.0)]) in drawn
    assert ("gumbel", [(60.0, 6.0)]) in drawn
    assert drawn[-1] == ("chosen", [(60.0, 6.0)])
    (band,) = axes.patches
    assert band.get_x() == pytest.approx(60.0 / 1.05)
    assert band.get_x() + band.get_width() == pytest.approx(60.0 * 1.05)
    assert [text.get_text() for text in axes.texts] == ["lambda=1", "lambda=2", "alpha=0.5"]
    without = trade_off(curves, unmarked=60.0, budget=1.05)
    assert "chosen" not in [line.get_label() for line in without.axes[0].lines]
