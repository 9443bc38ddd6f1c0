"""A table of results and its output formats: Markdown, LaTeX (booktabs), CSV and HTML.

Columns may be grouped (by attack, say), rows too (semantic, surface-level), and a number carries its spread
over seeds or its interval. The best number of a column is bold; CSV keeps full precision.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from dewmark.reports.html_page import escape
from dewmark.stats.rates import Interval, Rate
from dewmark_lab.metrics import Spread

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "λ": r"$\lambda$", "α": r"$\alpha$",
    "δ": r"$\delta$", "Δ": r"$\Delta$", "±": r"$\pm$", "→": r"$\to$", "–": "--", "−": "$-$", "<": "$<$",
    ">": "$>$", "†": r"$\dagger$", "≥": r"$\ge$", "≤": r"$\le$",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its precision, if known: half the range over seeds, or an interval.

    ``flag`` is a symbol that a note below the table explains.
    """

    value: float
    half_range: float | None = None
    low: float | None = None
    high: float | None = None
    flag: str = ""


def from_spread(spread: Spread | None, flag: str = "") -> Estimate | None:
    """The mean over seeds, with half the range if there are several."""
    if spread is None:
        return None
    return Estimate(spread.mean, spread.half_range if len(spread.values) > 1 else None, flag=flag)


def from_rate(rate: Rate | None, flag: str = "") -> Estimate | None:
    """A share with its exact interval."""
    return None if rate is None else Estimate(rate.rate, low=rate.low, high=rate.high, flag=flag)


def from_interval(interval: Interval | None) -> Estimate | None:
    """An estimate with its interval."""
    return None if interval is None else Estimate(interval.value, low=interval.low, high=interval.high)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: ``decimals`` shown, and whether ``better`` is "higher", "lower" or neither ("").

    ``sign`` puts a plus before positive numbers; ``shade`` colours HTML cells by their value in [0, 1].
    """

    head: str
    group: str = ""
    decimals: int = 3
    better: str = "higher"
    sign: bool = False
    shade: bool = False


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row: its label, one estimate or None per column, and its group; a ``baseline`` is never the best."""

    label: str
    values: tuple[Estimate | None, ...]
    group: str = ""
    baseline: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a title and notes below it; ``corner`` is the heading of the row labels."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    corner: str = "Watermark"

    def best(self, index: int) -> frozenset[int]:
        """The rows with the best number of a column, rounded as shown; empty if it has no better or worse."""
        better = self.columns[index].better
        shown = {
            i: round(value.value, self.columns[index].decimals)
            for i, row in enumerate(self.rows)
            if (value := row.values[index]) is not None and not row.baseline
        }
        if not better or len(shown) < 2:
            return frozenset()
        top = max(shown.values()) if better == "higher" else min(shown.values())
        return frozenset(i for i, value in shown.items() if value == top)

    def spans(self) -> Iterator[tuple[str, int]]:
        """Runs of adjacent columns in one group: (group, number of columns)."""
        for group, columns in groupby(self.columns, key=lambda column: column.group):
            yield group, len(list(columns))


def to_markdown(table: Table) -> str:
    """A Markdown heading, the table and its notes."""
    heads = [f"{column.group}: {column.head}" if column.group else column.head for column in table.columns]
    lines = [f"## {table.title}", "", _pipes([table.corner, *heads]), _pipes(["---", *["---:"] * len(heads)])]
    best = [table.best(i) for i in range(len(table.columns))]
    for index, row in enumerate(table.rows):
        cells = []
        for column, value, top in zip(table.columns, row.values, best, strict=True):
            number, spread = _number_and_spread(column, value)
            number = f"**{number}**" if index in top else number
            cells.append(f"{number} {spread}".strip())
        lines.append(_pipes([row.label, *cells]))
    lines += ["", *(f"{note}\n" for note in table.notes)]
    return "\n".join(lines)


def to_latex(table: Table) -> str:
    """A ``tabular`` for the booktabs package; half-ranges are in small type."""
    width = len(table.columns) + 1
    lines = [f"% {line}" for line in (table.title, *table.notes)]
    lines += [r"\begin{tabular}{@{}l" + "r" * len(table.columns) + "@{}}", r"\toprule"]
    if any(column.group for column in table.columns):
        heads, rules, at = [""], [], 2
        for group, count in table.spans():
            heads.append(rf"\multicolumn{{{count}}}{{c}}{{{_latex(group)}}}")
            if group:
                rules.append(rf"\cmidrule(lr){{{at}-{at + count - 1}}}")
            at += count
        lines += [" & ".join(heads) + r" \\", "".join(rules)]
    lines += [" & ".join(_latex(head) for head in (table.corner, *(c.head for c in table.columns))) + r" \\"]
    lines.append(r"\midrule")
    best = [table.best(i) for i in range(len(table.columns))]
    group = ""
    for index, row in enumerate(table.rows):
        if row.group != group and row.group:
            lines.append(rf"\multicolumn{{{width}}}{{@{{}}l}}{{\textit{{{_latex(row.group)}}}}} \\")
        group = row.group
        cells = []
        for column, value, top in zip(table.columns, row.values, best, strict=True):
            number, spread = (_latex(part) for part in _number_and_spread(column, value))
            number = rf"\textbf{{{number}}}" if index in top else number
            cells.append(number + (rf"\,{{\scriptsize {spread}}}" if spread else ""))
        lines.append(" & ".join([_latex(row.label), *cells]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """One line per row; each column gives the number and, if known, its half-range, low and high ends."""
    heads, columns = ["group", table.corner], []
    for index, column in enumerate(table.columns):
        name = " ".join(filter(None, (column.group, column.head)))
        for part in ("value", "half_range", "low", "high"):
            values = [
                None if (each := row.values[index]) is None else getattr(each, part) for row in table.rows
            ]
            if part == "value" or any(value is not None for value in values):
                heads.append(name if part == "value" else f"{name} {part.replace('_', '-')}")
                columns.append(["" if value is None else f"{value:.6g}" for value in values])
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(heads)
    for i, row in enumerate(table.rows):
        writer.writerow([row.group, row.label, *(values[i] for values in columns)])
    return stream.getvalue()


def to_html(table: Table) -> str:
    """An ``<article>`` with the table; ``shade`` columns are coloured by value."""
    best = [table.best(i) for i in range(len(table.columns))]
    top = "".join(
        f'<th colspan="{count}" scope="colgroup">{escape(group)}</th>' for group, count in table.spans()
    )
    groups = f"<tr><td></td>{top}</tr>" if any(column.group for column in table.columns) else ""
    heads = "".join(f'<th scope="col">{escape(column.head)}</th>' for column in table.columns)
    body, group = [], ""
    for index, row in enumerate(table.rows):
        if row.group != group and row.group:
            body.append(
                f'<tr class="group"><th colspan="{len(table.columns) + 1}">{escape(row.group)}</th></tr>'
            )
        group = row.group
        cells = "".join(
            _html_cell(column, value, best=index in top_rows)
            for column, value, top_rows in zip(table.columns, row.values, best, strict=True)
        )
        body.append(f'<tr><th scope="row">{escape(row.label)}</th>{cells}</tr>')
    notes = "".join(f'<p class="soft">{escape(note)}</p>\n' for note in table.notes)
    return (
        f"<article>\n<h2>{escape(table.title)}</h2>\n<div class=wide><table>\n<thead>{groups}"
        f"<tr><th>{escape(table.corner)}</th>{heads}</tr></thead>\n<tbody>{''.join(body)}</tbody>\n"
        f"</table></div>\n{notes}</article>\n"
    )


def _html_cell(column: Column, value: Estimate | None, *, best: bool) -> str:
    number, spread = _number_and_spread(column, value)
    shade = ""
    if column.shade and value is not None:
        shade = f' style="background:rgba(0,114,178,{0.38 * min(max(value.value, 0.0), 1.0):.2f})"'
    number = f"<b>{escape(number)}</b>" if best else escape(number)
    return f"<td{shade}>{number}{f' <small>{escape(spread)}</small>' if spread else ''}</td>"


def _number_and_spread(column: Column, value: Estimate | None) -> tuple[str, str]:
    """The two parts of a cell: the number, and its spread or interval in small print."""
    if value is None:
        return "–", ""
    number = f"{value.value:{'+' if column.sign else ''}.{column.decimals}f}{value.flag}"
    if value.half_range is not None:
        return number, f"±{value.half_range:.{column.decimals}f}"
    if value.low is not None and value.high is not None:
        return number, f"[{value.low:.{column.decimals}f}, {value.high:.{column.decimals}f}]"
    return number, ""


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
