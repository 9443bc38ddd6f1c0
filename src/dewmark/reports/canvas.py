"""What figures of several panels share: grids, one legend above them, the look of the n-th curve.

Boundary: matplotlib only; what is drawn is in `figures`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from dewmark.reports.plots import COLOURS, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DASHED", "DOTTED", "Line", "curve", "grid", "legend", "panels", "small_png"]

Line = tuple[str, Mapping[str, Any]]  # of a legend: its name, and how it is drawn

DASHED, DOTTED = (0, (4, 2)), (0, (1, 3))
_LOOKS: tuple[tuple[Any, str], ...] = (
    ("-", "o"),
    ((0, (4, 1.5)), "s"),
    ((0, (1, 1.2)), "^"),
    ((0, (5, 1.5, 1, 1.5)), "D"),
)
_WIDEST = 5  # panels side by side
_PALETTE = 48  # colours of a picture, blends at edges counted
_LABELS = 1.4  # inches beside a grid that names and axis labels take


def grid(
    rows: int,
    columns: int,
    *,
    width: float,
    height: float,
    share_x: bool | Literal["row"] = False,
    share_y: bool = False,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of rows x columns panels of the given size in inches, which may share their axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns + _LABELS, height * rows + 0.9))
    axes = figure.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y)
    return figure, [list(row) for row in axes]


def panels(
    number: int, *, width: float, height: float, share_x: bool = False, share_y: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of ``number`` panels in rows of at most five, of one length but for the last."""
    rows = math.ceil(number / _WIDEST)
    columns = math.ceil(number / rows)
    figure, axes = grid(rows, columns, width=width, height=height, share_x=share_x, share_y=share_y)
    flat = [each for row in axes for each in row]
    for spare in flat[number:]:
        spare.set_visible(False)
    for lowest in flat[max(number - columns, 0) : number]:
        lowest.tick_params(labelbottom=True)  # below it may be an empty panel
    return figure, flat[:number]


def curve(number: int) -> dict[str, Any]:
    """The look of the n-th curve: six colours, then the same with other dashes and marks."""
    dashes, mark = _LOOKS[number // len(COLOURS) % len(_LOOKS)]
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": dashes, "marker": mark}


def legend(figure: Figure, lines: Sequence[Line]) -> None:
    """One legend for all panels, above them."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=name, **look) for name, look in lines]
    wide = max(2, int(figure.get_figwidth() / 1.9))
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), wide), fontsize=8)


def small_png(figure: Figure) -> bytes:
    """The figure as a PNG with a palette, a third as large: plots have few colours."""
    from PIL import Image

    stream = io.BytesIO()
    picture = Image.open(io.BytesIO(png(figure))).convert("RGB")
    picture.quantize(_PALETTE, dither=Image.Dither.NONE).save(stream, format="png", optimize=True)
    return stream.getvalue()
