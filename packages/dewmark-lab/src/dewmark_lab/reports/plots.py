"""The figures of an experiment: ROC curves, robustness at a glance, by length, against perplexity.

Solid lines and filled points use the matched null (negatives after the same attack), dashed lines and hollow
points the unattacked one. matplotlib is imported when the first figure is drawn, and its global state is not
changed.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dewmark.arrays import F64
from dewmark_lab.evaluation.protocol import BySeed, by_seed, grouped
from dewmark_lab.evaluation.results import CLEAN, HUMAN, MARKED, UNMARKED, Evaluation, ResultCell, ScoreRow
from dewmark_lab.reports.run_results import (
    QualityFigures,
    attack_label,
    is_truncation,
    preferred_operating_point,
    rewriting_attacks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
_ROC_COLOURS = (INK, *COLOURS)  # unattacked, then the attacks; the rest are not drawn
_MAX_CURVES = 9  # in one panel
_FEW_PANELS = 10  # with more, panels are smaller
_NUMBER = re.compile(r"[-_ ]([0-9]+(?:\.[0-9]+)?)(?=$|[-_ ])")


def families(labels: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Rows of one scheme by strength, the number in the label: {family: [(label, strength)]}."""
    found: dict[str, list[tuple[float, str, str]]] = {}
    for label in labels:
        number = _NUMBER.search(label)
        shown = number.group(1) if number else ""
        name = label if number is None else (label[: number.start()] + label[number.end() :]).strip("-_ ")
        found.setdefault(name, []).append((float(shown or 0.0), label, shown))
    return {name: [(label, shown) for _, label, shown in sorted(members)] for name, members in found.items()}


def roc_curves(rows: Sequence[ScoreRow], evaluation: Evaluation) -> Figure:
    """One panel per scheme, one colour per attack; solid by the matched null, dashed by the unattacked one.

    Only the first six attacks are drawn; the legend says how many are left out.
    """
    scores = {place: by_seed(mine) for place, mine in grouped(rows).items()}
    null = UNMARKED if any(kind == UNMARKED for *_, kind in scores) else HUMAN
    rewriting = rewriting_attacks(evaluation)
    colours = dict(zip(rewriting, _ROC_COLOURS if CLEAN in rewriting else COLOURS, strict=False))
    sizes = (len(each) for (*_, kind), seeds in scores.items() if kind == null for each in seeds.values())
    least = min(sizes, default=1)
    fpr = np.geomspace(min(1.0 / least, 0.01), 1.0, 80)  # below 1/N there are no data
    with styled():
        size = 2.5 if len(evaluation.schemes) <= _FEW_PANELS else 1.9
        figure, drawn = panels(len(evaluation.schemes), width=size, height=size, share_x=True, share_y=True)
        for axes, scheme in zip(drawn, evaluation.schemes, strict=True):
            for attack, colour in colours.items():
                positives = scores.get((scheme, attack, MARKED), {})
                for under, style in ((attack, "-"), (CLEAN, DASHED)):
                    tpr = _roc(positives, scores.get((scheme, under, null), {}), fpr)
                    if tpr is not None and not (style == DASHED and attack == CLEAN):
                        axes.plot(fpr, tpr, color=colour, linestyle=style, linewidth=1.5)
            axes.plot(fpr, fpr, color=SOFT, linewidth=0.8, linestyle=DOTTED)
            axes.axvline(0.01, color=LINE, linewidth=1.2, zorder=0)
            axes.set(xscale="log", xlim=(fpr[0], 1.0), ylim=(0.0, 1.02))
            axes.set_xticks([0.01, 0.1, 1.0], ["1%", "10%", "100%"])
            axes.set_title(scheme, fontsize=9)
            axes.tick_params(labelsize=8)
        figure.supxlabel("false-positive rate", fontsize=9)
        figure.supylabel("share of marked texts found", fontsize=9)
        lines: list[Line] = [(attack_label(attack), {"color": colour}) for attack, colour in colours.items()]
        if omitted := len(rewriting) - len(colours):
            lines.append((f"{omitted} more, not drawn", {"color": "none"}))
        nulls: list[Line] = [
            ("matched null", {"color": SOFT}),
            ("unattacked null", {"color": SOFT, "linestyle": DASHED}),
        ]
        legend(figure, [*lines, *nulls])
    return figure


def at_a_glance(evaluation: Evaluation, *, rate: float = 0.01) -> Figure:
    """TPR of every scheme under every attack, by the matched and by the unattacked null."""
    schemes, attacks = evaluation.schemes[::-1], rewriting_attacks(evaluation)
    with styled():
        height = 0.27 * len(schemes) + 0.2
        figure, drawn = panels(len(attacks), width=2.3, height=height, share_x=True, share_y=True)
        for axes, attack in zip(drawn, attacks, strict=True):
            for y, scheme in enumerate(schemes):
                cell = evaluation.cell(scheme, attack)
                if cell is not None:
                    _dumbbell(axes, y, cell, rate)
            axes.set(xlim=(-0.03, 1.03), ylim=(-0.6, len(schemes) - 0.4), xticks=[0.0, 0.5, 1.0])
            axes.set_yticks(range(len(schemes)), schemes)
            axes.axvline(rate, color=SOFT, linewidth=0.8, linestyle=DOTTED)
            axes.set_title(attack_label(attack), fontsize=9)
            axes.tick_params(axis="y", length=0)
            axes.spines["left"].set_visible(False)
        figure.supxlabel(f"share of marked texts found at {100 * rate:g}% false positives", fontsize=9)
        dot: dict[str, Any] = {"color": COLOURS[0], "marker": "o", "linestyle": "", "markersize": 6}
        hollow = {**dot, "markerfacecolor": "white", "color": COLOURS[1]}
        legend(figure, [("matched null, 95% interval", dot), ("unattacked null (the paper's)", hollow)])
    return figure


def by_length(evaluation: Evaluation, *, whole: float | None = None, rate: float = 0.01) -> Figure | None:
    """TPR against text length, from truncation attacks; None if there are none.

    Lengths come from the attacks' names, and ``whole`` is the length of full texts; where unknown, it is the
    number of tokens that the detector scored.
    """
    truncations = [each for each in evaluation.attacks if is_truncation(each)]
    if not truncations:
        return None
    schemes = evaluation.schemes
    count = math.ceil(len(schemes) / _MAX_CURVES)
    per_panel = math.ceil(len(schemes) / count)
    with styled():
        figure, drawn = panels(count, width=4.2 if count > 1 else 6.2, height=3.6, share_y=True)
        for number, axes in enumerate(drawn):
            for place, scheme in enumerate(schemes[number * per_panel : (number + 1) * per_panel]):
                cells = [evaluation.cell(scheme, each) for each in (*truncations, CLEAN)]
                points = sorted(
                    (_length(cell, whole), at.found.rate, at.found.low, at.found.high)
                    for cell in cells
                    if cell is not None and (at := preferred_operating_point(cell, rate)) is not None
                )
                if points:
                    lengths, found, low, high = zip(*points, strict=True)
                    look = curve(place)
                    axes.plot(lengths, found, label=scheme, markersize=4, **look)
                    if has_bands(evaluation):
                        axes.fill_between(lengths, low, high, color=look["color"], alpha=0.12, linewidth=0)
            axes.set(xlabel="length (tokens)", ylim=(0.0, 1.03), xlim=(0.0, None))
            axes.legend(loc="lower right", fontsize=7)
        figure.supylabel(f"share of marked texts found at {100 * rate:g}%", fontsize=9)
    return figure


def has_bands(evaluation: Evaluation) -> bool:
    """Whether `by_length` draws intervals: with many schemes they would hide each other."""
    return len(evaluation.schemes) <= len(COLOURS)


def robustness_by_perplexity(
    evaluation: Evaluation, quality: Mapping[str, QualityFigures], *, rate: float = 0.01
) -> Figure | None:
    """Robustness against median perplexity, a panel per attack; None if no marked text was judged."""
    attacks = [each for each in rewriting_attacks(evaluation) if each != CLEAN] or [CLEAN]
    perplexity = {name: each.perplexity.mean for name, each in quality.items() if each.perplexity}
    plain = [perplexity[name] for name, each in quality.items() if each.kind != MARKED and name in perplexity]
    judged = [name for name in evaluation.schemes if name in perplexity]
    if not judged:
        return None
    with styled():
        figure, drawn = panels(len(attacks), width=3.4, height=3.0, share_x=True, share_y=True)
        known = families(judged)
        for axes, attack in zip(drawn, attacks, strict=True):
            for unmarked in plain[:1]:
                axes.axvline(unmarked, color=SOFT, linewidth=1.0, linestyle=DASHED)
            for number, members in enumerate(known.values()):
                _strengths(axes, members, evaluation, attack, perplexity, number, rate)
            axes.set_title(attack_label(attack), fontsize=9)
            axes.set(ylim=(-0.03, 1.05))
            axes.margins(x=0.12)
        figure.supxlabel("median perplexity under the judge", fontsize=9)
        figure.supylabel(f"found at {100 * rate:g}%, matched null", fontsize=9)
        lines = [(name, {**curve(i), "markersize": 4}) for i, name in enumerate(known)]
        lines += [("unmarked texts", {"color": SOFT, "linestyle": DASHED})] * bool(plain)
        legend(figure, lines)
    return figure


def _length(cell: ResultCell, whole: float | None) -> float:
    number = cell.attack.rpartition("-")[2]
    if is_truncation(cell.attack) and number.isdigit():
        return float(number)
    return cell.tokens if whole is None or cell.attack != CLEAN else whole


def _dumbbell(axes: Axes, y: int, cell: ResultCell, rate: float) -> None:
    """A scheme's TPR by both nulls, joined by a line as long as the shift."""
    clean = cell.at("clean", rate) or cell.at("human", rate)
    matched = cell.at("matched", rate) or cell.at("human-matched", rate)
    if clean is not None and matched is not None:
        axes.plot([clean.tpr.mean, matched.tpr.mean], [y, y], color=LINE, linewidth=3.0, zorder=1)
    if clean is not None:
        axes.plot(clean.tpr.mean, y, "o", color=COLOURS[1], markerfacecolor="white", markersize=6, zorder=2)
    if matched is not None:
        axes.plot([matched.found.low, matched.found.high], [y, y], color=COLOURS[0], linewidth=1.4, zorder=3)
        axes.plot(matched.tpr.mean, y, "o", color=COLOURS[0], markersize=5, zorder=4)


def _strengths(
    axes: Axes,
    members: Sequence[tuple[str, str]],
    evaluation: Evaluation,
    attack: str,
    quality: Mapping[str, float],
    number: int,
    rate: float,
) -> None:
    """One family's curve, each point labelled with its strength."""
    points = [
        (quality[scheme], at.tpr.mean, strength)
        for scheme, strength in members
        if (cell := evaluation.cell(scheme, attack)) and (at := preferred_operating_point(cell, rate))
    ]
    if not points:
        return
    x, y, strengths = zip(*points, strict=True)
    axes.plot(x, y, markersize=4.5, **curve(number))
    for across, up, strength in zip(x, y, strengths, strict=True):
        if len(points) > 1:
            axes.annotate(
                strength, (across, up), xytext=(4, 4), textcoords="offset points", fontsize=7, color=SOFT
            )


def _roc(positives: BySeed, negatives: BySeed, fpr: F64) -> F64 | None:
    """TPR at each false-positive rate: the mean over seeds, each with its own negatives; None without any."""
    curves = []
    for seed in positives.keys() & negatives.keys():
        high, low = np.sort(positives[seed]), np.sort(negatives[seed])[::-1]
        # the conservative threshold of `metrics.threshold_at`, for all rates at once
        bars = low[np.minimum(np.floor(fpr * len(low) * (1.0 + 1e-12)).astype(np.int64), len(low) - 1)]
        found = 1.0 - np.searchsorted(high, bars, side="right") / len(high)
        curves.append(np.where(fpr < 1.0, found, 1.0))
    return np.mean(curves, axis=0) if curves else None


# Layout and rendering


def panels(
    number: int, *, width: float, height: float, share_x: bool = False, share_y: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of ``number`` panels of a size in inches, in rows of at most five."""
    from matplotlib.figure import Figure

    rows = math.ceil(number / _PANELS_PER_ROW)
    columns = math.ceil(number / rows)
    figure = Figure(figsize=(width * columns + _MARGIN, height * rows + 0.9))
    flat = figure.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y).ravel().tolist()
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


def small_png(figure: Figure) -> bytes:
    """The figure as a PNG with a palette, a third of the size of one without."""
    from PIL import Image

    whole, small = io.BytesIO(), io.BytesIO()
    with styled():  # no version in the file, so that equal figures give equal files
        figure.savefig(whole, format="png", metadata={"Software": None})
    picture = Image.open(whole).convert("RGB")
    picture.quantize(_PALETTE, dither=Image.Dither.NONE).save(small, format="png", optimize=True)
    return small.getvalue()
