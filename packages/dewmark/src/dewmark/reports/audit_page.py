"""An audit as an HTML page: the outcome, the table of false-positive rates and the QQ plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
