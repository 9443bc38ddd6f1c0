"""Plots show the right numbers, and the same plot gives the same file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from scipy import stats

from dewmark.errors import ConfigError
from dewmark.reports.plots import png, power_curve, qq_plot, save_figure, trade_off
from dewmark.stats.metrics import rate

UNIFORM = np.random.default_rng(0).uniform(size=300)


def curve() -> Figure:
    lengths = [50, 100, 200]
    return power_curve(
        lengths, [0.4, 0.7, 0.9], [0.3, 0.6, 0.8], [0.5, 0.8, 1.0], measured={50: rate(7, 16)}, fpr=0.01
    )


def test_qq_points_are_ordered_p_values_against_their_ranks() -> None:
    (axes,) = qq_plot(UNIFORM).axes
    points = next(line for line in axes.lines if line.get_marker() == "o")
    ranks = np.arange(1, 301)
    assert points.get_xdata() == pytest.approx(-np.log10(ranks / 301))
    assert points.get_ydata() == pytest.approx(-np.log10(np.sort(UNIFORM)))


def test_the_band_contains_each_uniform_order_statistic_with_95_percent() -> None:
    (axes,) = qq_plot(UNIFORM).axes
    (band,) = (each for each in axes.collections if isinstance(each, PolyCollection))
    corners = {(round(x, 6), round(y, 6)) for x, y in band.get_paths()[0].vertices}
    for rank in (1, 10, 150, 300):
        expected = -np.log10(rank / 301)
        for share in (0.025, 0.975):
            end = -np.log10(stats.beta.ppf(share, rank, 301 - rank))
            assert (round(float(expected), 6), round(float(end), 6)) in corners


def test_many_p_values_are_thinned_but_small_ones_are_kept() -> None:
    p = np.random.default_rng(1).uniform(size=200_000)
    (axes,) = qq_plot(p).axes
    points = next(line for line in axes.lines if line.get_marker() == "o")
    assert len(points.get_ydata()) <= 2_000
    assert points.get_ydata()[:50] == pytest.approx(-np.log10(np.sort(p)[:50]))


def test_groups_have_their_own_curves_and_a_zero_does_not_break_the_scale() -> None:
    figure = qq_plot([0.0, 0.2, 0.9], groups={"de": [0.1, 0.2], "fr": [0.0]}, title="T")
    (axes,) = figure.axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["95% if uniform", "de (2)", "fr (1)", "all texts (3)"]
    assert axes.get_title(loc="left") == "T"
    assert np.isfinite(axes.get_ylim()).all()


def test_a_power_curve_shows_model_band_and_measurement() -> None:
    (axes,) = curve().axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["95% interval", "model", "measured share"]
    assert axes.lines[0].get_ydata() == pytest.approx([0.4, 0.7, 0.9])


def test_files_are_reproducible(tmp_path: Path) -> None:
    assert png(qq_plot(UNIFORM)).startswith(b"\x89PNG\r\n\x1a\n")
    assert png(qq_plot(UNIFORM)) == png(qq_plot(UNIFORM))
    for name in ("a.svg", "b.svg"):
        save_figure(curve(), tmp_path / name)
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_suffix_chooses_the_format(tmp_path: Path) -> None:
    figure = qq_plot(UNIFORM)
    for name, start in (("a.png", b"\x89PNG"), ("b/c.svg", b"<?xml"), ("d.pdf", b"%PDF")):
        save_figure(figure, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    with pytest.raises(ConfigError, match=r"saved as .png, .svg or .pdf, got qq.jpg"):
        save_figure(figure, tmp_path / "qq.jpg")


def test_no_p_values() -> None:
    with pytest.raises(ConfigError, match="at least one p-value"):
        qq_plot([])


def test_matplotlib_is_imported_lazily_and_left_unchanged() -> None:
    code = (
        "import sys, dewmark.reports.plots as plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import matplotlib\n"
        "before = matplotlib.rcParams.copy()  # a plain dict would choose a backend\n"
        "plots.png(plots.qq_plot([0.1, 0.5]))\n"
        "assert matplotlib.rcParams.copy() == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
