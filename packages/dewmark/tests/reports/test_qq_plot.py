"""The QQ plot of an audit shows the right points, and its band the right quantiles."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats

from dewmark.errors import ConfigError
from dewmark.reports.audit_page import qq_plot

UNIFORM = np.random.default_rng(0).uniform(size=300)
SVG = "{http://www.w3.org/2000/svg}"


def axes(plot: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The points, and the lower and upper edge of the band, in pixels from the lower left corner."""
    root = ElementTree.fromstring(plot)
    frame = root.find(f"{SVG}rect")
    left, bottom = float(frame.get("x")), float(frame.get("height"))
    dots = [each for each in root.findall(f"{SVG}circle") if each.get("r") == "2.2"]
    points = np.array([(float(each.get("cx")) - left, bottom - float(each.get("cy"))) for each in dots])
    band = root.find(f"{SVG}path").get("d").strip("MZ").split("L")
    edge = np.array([[float(part) for part in place.split()] for place in band])
    edge = np.stack((edge[:, 0] - left, bottom - edge[:, 1]), axis=1)
    return points, edge[: len(points)], edge[len(points) :][::-1]


def test_points_are_ordered_p_values_against_their_ranks() -> None:
    points, _, _ = axes(qq_plot(UNIFORM))
    expected = -np.log10(np.arange(1, 301) / 301)
    observed = -np.log10(np.sort(UNIFORM))
    scale = points[0] / (expected[0], observed[0])
    assert points[:, 0] == pytest.approx(scale[0] * expected, abs=0.1)
    assert points[:, 1] == pytest.approx(scale[1] * observed, abs=0.1)


def test_the_band_contains_each_uniform_order_statistic_with_95_percent() -> None:
    points, low, high = axes(qq_plot(UNIFORM))
    scale = points[0, 1] / -np.log10(UNIFORM.min())
    ranks = np.arange(1, 301)
    for edge, share in ((low, 0.975), (high, 0.025)):
        quantiles = stats.beta.ppf(share, ranks, 301 - ranks)
        assert edge[:, 1] == pytest.approx(scale * -np.log10(quantiles), abs=0.2)


def test_groups_are_named_and_nothing_can_be_injected() -> None:
    plot = qq_plot(UNIFORM, groups={"<b>": UNIFORM[:50]}, title="a & b")
    assert "&lt;b&gt; (50)" in plot
    assert "<title>a &amp; b</title>" in plot


def test_no_p_value_is_an_error() -> None:
    with pytest.raises(ConfigError, match="at least one p-value"):
        qq_plot([])
