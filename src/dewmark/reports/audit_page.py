"""An audit as an HTML page: the outcome, the table of false-positive rates and the QQ plot."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from dewmark.reports.html_page import embedded_png, escape, html_page
from dewmark.stats.audit import LEVELS, Audit, Cell

__all__ = ["percent", "render_audit"]

_STYLE = """
article { overflow-x: auto; } table { width: 100%; }
th, td { padding: .35rem .6rem; } th:first-child, td:first-child { text-align: left; }
.passes { background: #15803d; } .fails { background: #b42318; } .cannot-tell { background: #b45309; }
.bad { color: var(--bad); font-weight: 700; } img { width: 38rem; }
"""


def render_audit(audit: Audit, *, title: str, notes: Sequence[str], plot: bytes) -> str:
    """The page as a string; ``notes`` describe what was audited, ``plot`` is a PNG file."""
    outcome = audit.outcome.value
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    body = (
        f'<h1>{escape(title)} <span class="badge {outcome.replace(" ", "-")}">{outcome}</span></h1>\n'
        f"<p>{escape(audit.sentence)}</p>\n"
        f"<article>\n<h2>Unmarked texts with a p-value below each level</h2>\n{_table(audit)}\n"
        f'<p class="soft">Small print: exact 95% interval of the true rate. Red: significantly above the '
        f"level, corrected for all {len(audit.cells)} cells together.</p>\n</article>\n"
        f"<article>\n<h2>Observed against expected p-values</h2>\n"
        f"{embedded_png(plot, 'QQ plot of the p-values')}\n"
        f'<p class="soft">Points on the line: the p-values are valid. Points above the band on the right: '
        f"unmarked texts get small p-values too often.</p>\n</article>\n"
        f"<ul>{items}</ul>\n"
    )
    return html_page(f"dewmark audit: {outcome}", body, style=_STYLE)


def percent(share: float) -> str:
    """A share as a percentage with two or three significant digits."""
    decimals = 2 if share < 0.00995 else 1 if share < 0.0995 else 0
    return f"{100.0 * share:.{decimals}f}%"


def _table(audit: Audit) -> str:
    heads = "".join(f"<th>{100.0 * level:g}%</th>" for level in LEVELS)
    rows = []
    for _, cells in groupby(audit.cells, key=lambda cell: (cell.kind, cell.group)):
        group = list(cells)
        values = "".join(map(_cell, group))
        rows.append(f"<tr><td>{escape(group[0].name)}</td><td>{group[0].texts:,}</td>{values}</tr>")
    return (
        f"<table>\n<thead><tr><th>group</th><th>texts</th>{heads}</tr></thead>\n"
        f"<tbody>{''.join(rows)}</tbody>\n</table>"
    )


def _cell(cell: Cell) -> str:
    mark = ' class="bad"' if cell.significant else ""
    interval = f"{percent(cell.rate.low)} – {percent(cell.rate.high)}"
    return f"<td><span{mark}>{percent(cell.rate.rate)}</span> <small>{interval}</small></td>"
