"""What marking and detecting cost, drawn against what it may depend on: length, size of the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dewmark.reports.canvas import curve, grid, legend
from dewmark.reports.plots import styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["cost_curves"]


def _some_minor(value: float, place: float) -> str:
    """Names 2 and 5 times a power of ten; the other small ticks stay bare."""
    digit = round(value / 10.0 ** math.floor(math.log10(value)))
    return f"{value:,g}" if digit in (2, 5) else ""


def cost_curves(curves: Mapping[str, Sequence[tuple[float, float]]], *, xlabel: str, title: str) -> Figure:
    """Curves of (x, milliseconds) points by name, both axes logarithmic."""
    with styled():
        figure, [[axes]] = grid(1, 1, width=5.0, height=3.2)
        for number, points in enumerate(curves.values()):
            look = {**curve(number), "markersize": 4}
            axes.plot([x for x, _ in points], [y for _, y in points], **look)
        axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel="milliseconds", title=title)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:,g}")
            axis.set_minor_formatter(_some_minor)
        legend(figure, [(name, {**curve(i), "markersize": 4}) for i, name in enumerate(curves)])
    return figure
