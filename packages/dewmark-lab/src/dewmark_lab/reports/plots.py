"""Plots in one plain style, with colours that colour-blind readers can tell apart.

First the plots of single commands (audit, power, tune, bench), then the layout that `experiment_plots`
shares, then rendering. matplotlib is imported when the first figure is drawn, and its global state is never
changed.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import ArrayLike

from dewmark import storage
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dewmark.stats.rates import Rate

# Okabe and Ito's colours without yellow; those that read well on white come first.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")

INK, SOFT, LINE = "#16181d", "#5b616e", "#dcdfe4"

_STYLE: Any = {  # matplotlib types the keys one by one
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib: the same picture on every machine
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "svg.hashsalt": "dewmark",  # makes files reproducible
    "savefig.dpi": 150,
}

DASHED, DOTTED = (0, (4, 2)), (0, (1, 3))

Line = tuple[str, Mapping[str, Any]]  # of a legend: its name, and its look

_CURVES: tuple[tuple[Any, str], ...] = (  # dashes and markers
    ("-", "o"),
    ((0, (4, 1.5)), "s"),
    ((0, (1, 1.2)), "^"),
    ((0, (5, 1.5, 1, 1.5)), "D"),
)
_PANELS_PER_ROW = 5
_PALETTE = 48  # colours of a PNG, including blends at edges
_MARGIN = 1.4  # inches beside a grid for names and axis labels
_FORMATS = ("png", "svg", "pdf")


def power_curve(
    lengths: ArrayLike,
    tpr: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    measured: Mapping[int, Rate] | None = None,
    fpr: float,
    title: str = "",
) -> Figure:
    """The modelled share of marked texts found, (N,), by length in tokens; its band, and measured shares."""
    with styled():
        figure, axes = _figure(title, width=6.4, height=4.0)
        axes.fill_between(lengths, low, high, color=COLOURS[0], alpha=0.18, linewidth=0, label="95% interval")
        axes.plot(lengths, tpr, color=COLOURS[0], label="model")
        if measured:
            shares = list(measured.values())
            errors = [[r.rate - r.low for r in shares], [r.high - r.rate for r in shares]]
            axes.errorbar(
                list(measured),
                [r.rate for r in shares],
                yerr=errors,
                fmt="o",
                color=COLOURS[1],
                markersize=5,
                elinewidth=1.2,
                label="measured share",
            )
        _guide(axes, fpr, f"false positives {fpr:.3g}")
        axes.set(xlabel="length (tokens)", ylabel="share of marked texts found", ylim=(0.0, 1.03))
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.08), fontsize=9)
    return figure


def _figure(title: str, *, width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one plot, made without pyplot, which would need a window system and keep it alive."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    axes = figure.add_subplot()
    axes.set_title(title)
    return figure, axes


def _guide(axes: Axes, height: float, label: str) -> None:
    """A dotted horizontal line, labelled at its right end."""
    axes.axhline(height, color=SOFT, linewidth=0.8, linestyle=DOTTED)
    position: Any = ("axes fraction", "data")
    axes.annotate(label, (1.0, height), xycoords=position, ha="right", va="bottom", fontsize=8, color=SOFT)


def grid(
    rows: int,
    columns: int,
    *,
    width: float,
    height: float,
    share_x: bool | Literal["row"] = False,
    share_y: bool = False,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of rows x columns panels, each of the given size in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns + _MARGIN, height * rows + 0.9))
    axes = figure.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y)
    return figure, [list(row) for row in axes]


def panels(
    number: int, *, width: float, height: float, share_x: bool = False, share_y: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of ``number`` panels in rows of at most five; only the last row may be shorter."""
    rows = math.ceil(number / _PANELS_PER_ROW)
    columns = math.ceil(number / rows)
    figure, axes = grid(rows, columns, width=width, height=height, share_x=share_x, share_y=share_y)
    flat = [each for row in axes for each in row]
    for spare in flat[number:]:
        spare.set_visible(False)
    for lowest in flat[max(number - columns, 0) : number]:
        lowest.tick_params(labelbottom=True)  # the panel below may be hidden
    return figure, flat[:number]


def curve(number: int) -> dict[str, Any]:
    """The look of the n-th curve: six colours, then the same with other dashes and markers."""
    dashes, mark = _CURVES[number // len(COLOURS) % len(_CURVES)]
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": dashes, "marker": mark}


def legend(figure: Figure, lines: Sequence[Line]) -> None:
    """One legend for all panels, above them."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=name, **look) for name, look in lines]
    wide = max(2, int(figure.get_figwidth() / 1.9))
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), wide), fontsize=8)


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Apply the style inside this block, without changing matplotlib's global state."""
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        yield


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure atomically, in the format of the file's suffix (.png, .svg, .pdf)."""
    path = Path(path)
    kind = path.suffix.removeprefix(".").lower()
    if kind not in _FORMATS:
        raise ConfigError(f"figures are saved as .png, .svg or .pdf, got {path.name}")
    with storage.atomic_write(path) as stream:
        stream.write(_render(figure, kind))


def png(figure: Figure) -> bytes:
    """The figure as PNG."""
    return _render(figure, "png")


def small_png(figure: Figure) -> bytes:
    """The figure as a PNG with a palette, a third of the size."""
    from PIL import Image

    stream = io.BytesIO()
    picture = Image.open(io.BytesIO(png(figure))).convert("RGB")
    picture.quantize(_PALETTE, dither=Image.Dither.NONE).save(stream, format="png", optimize=True)
    return stream.getvalue()


def _render(figure: Figure, kind: str) -> bytes:
    stream = io.BytesIO()
    # no date and no version, so that equal figures give equal files
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    with styled():
        figure.savefig(stream, format=kind, metadata=metadata)
    return stream.getvalue()
