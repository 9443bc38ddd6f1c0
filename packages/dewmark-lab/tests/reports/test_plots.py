"""Plots show the right numbers, and the same plot gives the same file."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from dewmark.stats.rates import rate
from dewmark_lab.reports.plots import power_curve


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
