"""An audit as an HTML page: the outcome, the table of false-positive rates and the QQ plot (SVG)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from dewmark.arrays import F64, I64
from dewmark.errors import ConfigError
from dewmark.reports.html_page import escape, html_page
from dewmark.stats.audit import LEVELS, VERDICT_LEVEL, Audit, Cell, Group, Trust, percent

_NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'  # a page needs none
_STYLE = """
article { overflow-x: auto; } table { width: 100%; }
th, td { padding: .35rem .6rem; } th:first-child, td:first-child { text-align: left; }
.passes { background: #15803d; } .fails { background: #b42318; } .cannot-tell { background: #b45309; }
.bad { color: var(--bad); font-weight: 700; } svg { width: 38rem; max-width: 100%; }
"""


def render_audit(audit: Audit, *, title: str, notes: Sequence[str], plot: str) -> str:
    """The page as a string; ``notes`` describe what was audited, ``plot`` is an SVG picture."""
    outcome = audit.outcome.value
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    body = (
        f'<h1>{escape(title)} <span class="badge {outcome.replace(" ", "-")}">{outcome}</span></h1>\n'
        + "".join(f"<p>{escape(line)}</p>\n" for line in (audit.sentence, *audit.remarks))
        + f"<article>\n<h2>Unmarked texts with a p-value below each level</h2>\n{_table(audit)}\n"
        f'<p class="soft">Small print: exact 95% interval of the true rate. Red: significantly above the '
        f"level, corrected for all {len(audit.cells)} cells together. “As”: the number of independent texts "
        f"that vary over keys as these do; r: the mean correlation of two texts’ z over keys; “r matched”: "
        f"the r that describes how much keys differ, larger where some texts are near-copies; “predicted”: "
        f"this key’s rate on such texts, from all their scores; 98% of keys lie between the last two figures."
        f"</p>\n</article>\n"
        f"<article>\n<h2>Observed against expected p-values</h2>\n"
        f"{plot.replace(_NAMESPACE, '')}\n"
        f'<p class="soft">Points on the line: the p-values are valid. Points above the band on the right: '
        f"unmarked texts get small p-values too often.</p>\n</article>\n"
        f"<ul>{items}</ul>\n"
    )
    return html_page(f"dewmark audit: {outcome}", body, style=_STYLE)


def _table(audit: Audit) -> str:
    known = audit.groups[0].together is not None
    names = ["group", "texts", *(("as", "r", "r matched") if known else ()), *map(percent, LEVELS)]
    names += [*((f"predicted at {percent(VERDICT_LEVEL)}", "98% of keys") if known else ()), "verdict"]
    heads = "".join(f"<th>{name}</th>" for name in names)
    rows = "".join(f"<tr>{''.join(_row(group))}</tr>" for group in audit.groups)
    return f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>{rows}</tbody>\n</table>"


def _row(group: Group) -> Iterator[str]:
    middle, together = group.cells[LEVELS.index(VERDICT_LEVEL)], group.together
    yield f"<td>{escape(group.name)}</td><td>{middle.texts:,}</td>"
    if together is not None:
        yield f"<td>{together.effective_number:,.1f}</td><td>{together.r:.3f}</td>"
        yield f"<td>{together.matched:.3f}</td>"
    yield from map(_cell, group.cells)
    if middle.prediction is not None:
        shown = middle.prediction
        yield f"<td>{percent(shown.rate)} <small>≤ {percent(shown.high)}</small></td>"
        yield f"<td>{percent(shown.floor)[:-1]}–{percent(shown.ceiling)}</td>"
    mark = ' class="bad"' if group.trust is Trust.NOT_TRUSTED else ""
    yield f"<td><span{mark}>{group.verdict}</span></td>"


def _cell(cell: Cell) -> str:
    mark = ' class="bad"' if cell.significant else ""
    interval = f"{percent(cell.rate.low)} – {percent(cell.rate.high)}"
    return f"<td><span{mark}>{percent(cell.rate.rate)}</span> <small>{interval}</small></td>"


_SIZE, _LEFT, _BOTTOM = 460, 52, 44  # pixels: the square, and the room for labels
_MOST_POINTS = 400
_SMALLEST_P = 1e-300
_HIGHEST = 12.0  # of −log10 p
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # told apart by all readers
_LEVELS = (0.01, 0.001, 0.0001)


def qq_plot(p_values: ArrayLike, *, groups: Mapping[str, ArrayLike] | None = None, title: str = "") -> str:
    """Observed against expected −log10 p of p-values (N,), which are uniform if the test is valid.

    Each point then lies in the grey band with probability 95%: the i-th smallest of N uniforms is
    Beta(i, N + 1 − i). The first five ``groups`` are drawn as thin lines.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if len(p) == 0:
        raise ConfigError("a QQ plot needs at least one p-value, got none")
    ranks = _spread_ranks(len(p))
    expected, observed = _points(p, ranks)
    low, high = (-np.log10(betaincinv(ranks, len(p) + 1 - ranks, share)) for share in (0.975, 0.025))
    top = 1.05 * max(float(expected[0]), min(float(observed[0]), _HIGHEST), float(high[0]))
    right = 1.02 * float(expected[0])
    band = _path(np.concatenate((expected, expected[::-1])), np.concatenate((low, high[::-1])), right, top)
    parts = [
        f"<title>{escape(title)}</title>",
        f'<path d="{band}Z" fill="#8884" stroke="none"/>',
        f'<path d="{_path(np.array([0.0, right]), np.array([0.0, right]), right, top)}" stroke="#888"/>',
    ]
    for level in _LEVELS:
        if (height := -np.log10(level)) < top:
            line = _path(np.array([0.0, right]), np.array([height, height]), right, top)
            parts.append(f'<path d="{line}" stroke="#8888" stroke-dasharray="3 3"/>')
            parts.append(_label(f"p = {level:g}", _LEFT + _SIZE - 4, _y(height, top) - 4, anchor="end"))
    named = [("all texts", p, _COLOURS[0])]
    for colour, (name, values) in zip(_COLOURS[1:], (groups or {}).items(), strict=False):
        theirs = np.asarray(values, dtype=np.float64)
        x, y = _points(theirs, _spread_ranks(len(theirs)))
        parts.append(f'<path d="{_path(x, y, right, top)}" stroke="{colour}"/>')
        named.append((name, theirs, colour))
    parts += (
        f'<circle cx="{_x(x, right):.1f}" cy="{_y(y, top):.1f}" r="2.2" fill="{_COLOURS[0]}"/>'
        for x, y in zip(expected, observed, strict=True)
    )
    for i, (name, theirs, colour) in enumerate(named):
        parts.append(f'<circle cx="{_LEFT + 12}" cy="{14 + 16 * i}" r="4" fill="{colour}"/>')
        parts.append(_label(f"{name} ({len(theirs):,})", _LEFT + 22, 18 + 16 * i))
    parts.append(_label("expected −log10 p", _LEFT + _SIZE / 2, _SIZE + 36, anchor="middle"))
    parts.append(_label("observed −log10 p", 0, 0, anchor="middle", turned=True))
    parts += (_label(f"{tick}", _x(tick, right), _SIZE + 16, anchor="middle") for tick in _ticks(right))
    parts += (_label(f"{tick}", _LEFT - 6, _y(tick, top) + 4, anchor="end") for tick in _ticks(top))
    frame = f'<rect x="{_LEFT}" width="{_SIZE}" height="{_SIZE}" stroke="#888"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _SIZE + 8} {_SIZE + _BOTTOM}" '
        f'role="img" font-family="sans-serif" font-size="12" fill="none">{"".join(parts)}{frame}</svg>\n'
    )


def _spread_ranks(count: int) -> I64:
    """Ranks 1 … N, thinned evenly on the logarithmic axis if there are too many to draw."""
    if count <= _MOST_POINTS:
        return np.arange(1, count + 1)
    return np.unique(np.geomspace(1, count, _MOST_POINTS).round().astype(np.int64))


def _points(p: F64, ranks: I64) -> tuple[F64, F64]:
    """Expected and observed −log10 p of the given ranks."""
    ordered = np.sort(np.maximum(p, _SMALLEST_P))
    return -np.log10(ranks / (len(p) + 1)), -np.log10(ordered[ranks - 1])


def _x(value: float, right: float) -> float:
    return _LEFT + _SIZE * float(value) / right


def _y(value: float, top: float) -> float:
    return _SIZE * (1.0 - min(float(value) / top, 1.0))


def _path(x: F64, y: F64, right: float, top: float) -> str:
    places = (f"{_x(a, right):.1f} {_y(b, top):.1f}" for a, b in zip(x, y, strict=True))
    return "M" + "L".join(places)


def _ticks(end: float) -> Iterable[int]:
    return range(0, int(end) + 1, max(int(end) // 6, 1))


def _label(text: str, x: float, y: float, *, anchor: str = "start", turned: bool = False) -> str:
    turn = f' transform="translate(14 {_SIZE / 2}) rotate(-90)"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#888"{turn}>{escape(text)}</text>'
