"""An audit as one self-contained page: the verdict, the table of rates, the QQ plot; no outside request."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from itertools import groupby

from dewmark.stats.audit import LEVELS, Audit, Cell
from dewmark.version import __version__

__all__ = ["percent", "render_audit"]

# No scripts, no fonts, nothing fetched; the one picture is part of the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

_STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f8; --card: #fff; --ink: #16181d; --soft: #5b616e; --line: #dcdfe4; --bad: #b42318; }
@media (prefers-color-scheme: dark) {
  :root { --page: #111317; --card: #1a1d23; --ink: #e8eaee; --soft: #9aa1ad; --line: #30353e;
    --bad: #ff8a75; }
}
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.6 system-ui, sans-serif; }
main { max-width: 56rem; margin: 0 auto; padding: 2rem 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin-top: 0; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.25rem;
  margin: 1.25rem 0; overflow-x: auto; }
.outcome { display: inline-block; padding: .1rem .7rem; border-radius: 99px; font-weight: 600; color: #fff; }
.passes { background: #15803d; } .fails { background: #b42318; } .cannot-tell { background: #b45309; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; }
small, footer, .soft { color: var(--soft); } .bad { color: var(--bad); font-weight: 700; }
img { display: block; width: 38rem; max-width: 100%; margin: 0 auto; border-radius: 6px; }
"""


def render_audit(audit: Audit, *, title: str, notes: Sequence[str], plot: bytes) -> str:
    """The page as a string; ``notes`` say what was audited, ``plot`` is a PNG file."""
    outcome = audit.outcome.value
    picture = base64.b64encode(plot).decode("ascii")
    said = "".join(f"<li>{_escape(note)}</li>" for note in notes)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>dewmark audit: {outcome}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{_escape(title)} <span class="outcome {outcome.replace(" ", "-")}">{outcome}</span></h1>\n'
        f"<p>{_escape(audit.sentence)}</p>\n"
        f"<article>\n<h2>Share of unmarked texts below each level</h2>\n{_table(audit)}\n"
        f'<p class="soft">In small print the exact 95% interval of the real rate. Red: significantly above '
        f"the level, corrected for all {len(audit.cells)} cells together.</p>\n</article>\n"
        f"<article>\n<h2>All p-values against what they should be</h2>\n"
        f'<img alt="QQ plot of the p-values" src="data:image/png;base64,{picture}">\n'
        f'<p class="soft">Points on the line: p-values mean what they say. Points above the band at the '
        f"right: unmarked texts get small p-values too often.</p>\n</article>\n"
        f"<ul>{said}</ul>\n<footer>dewmark {__version__}</footer>\n</main>\n</body>\n</html>\n"
    )


def percent(share: float) -> str:
    """A share as a percentage with two or three figures, for a table."""
    decimals = 2 if share < 0.00995 else 1 if share < 0.0995 else 0
    return f"{100.0 * share:.{decimals}f}%"


def _table(audit: Audit) -> str:
    heads = "".join(f"<th>{100.0 * level:g}%</th>" for level in LEVELS)
    rows = []
    for _, cells in groupby(audit.cells, key=lambda cell: (cell.kind, cell.group)):
        group = list(cells)
        values = "".join(_cell(cell) for cell in group)
        rows.append(f"<tr><td>{_escape(group[0].name)}</td><td>{group[0].texts:,}</td>{values}</tr>")
    return (
        f"<table>\n<thead><tr><th>texts</th><th>number</th>{heads}</tr></thead>\n"
        f"<tbody>{''.join(rows)}</tbody>\n</table>"
    )


def _cell(cell: Cell) -> str:
    mark = ' class="bad"' if cell.significant else ""
    share = cell.rate
    interval = f"{percent(share.low)} – {percent(share.high)}"
    return f"<td><span{mark}>{percent(share.rate)}</span> <small>{interval}</small></td>"


def _escape(text: str) -> str:
    return html.escape(text, quote=True)
