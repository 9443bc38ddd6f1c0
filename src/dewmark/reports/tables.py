"""One model of a table, and its forms: Markdown, LaTeX (booktabs), CSV and HTML.

A table has columns in groups (an attack, say), rows in groups (semantic, surface-level) and figures with
their spread or interval. The best figure of a column is bold. A figure keeps full precision in CSV.

Boundary: values in, text out; what the figures mean is `experiment_tables`.

How columns are headed and figures made of results, the same in every table.

Every number of an evaluation as CSV, a line per scheme, attack, kind of negatives and nominal rate.
"""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from dewmark.lab.evaluation.results import CLEAN, Cell, Evaluation
from dewmark.stats.metrics import Interval, Rate, Spread

__all__ = [
    "SHIFTED",
    "Column",
    "Figure",
    "Row",
    "Table",
    "attack_name",
    "is_cut",
    "long_csv",
    "measure_column",
    "of_interval",
    "of_rate",
    "of_spread",
    "to_csv",
    "to_html",
    "to_latex",
    "to_markdown",
]


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with what is known of its precision: half a range over seeds, or an interval.

    ``flag`` is a sign that a note of the table explains.
    """

    value: float
    half_range: float | None = None
    low: float | None = None
    high: float | None = None
    flag: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: ``decimals`` to show, whether ``better`` is "higher", "lower" or neither ("").

    ``sign`` shows a plus before positive numbers; ``shade`` colours the cells of a page by a share.
    """

    head: str
    group: str = ""
    decimals: int = 3
    better: str = "higher"
    sign: bool = False
    shade: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row: its name, a figure or None for each column, and the group it stands in.

    A ``baseline`` is there to compare with: it is never the best.
    """

    label: str
    figures: tuple[Figure | None, ...]
    group: str = ""
    baseline: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a title and notes below it; ``corner`` heads the names of the rows."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    corner: str = "Watermark"

    def best(self, index: int) -> frozenset[int]:
        """The rows whose shown figure is the best of a column; none where nothing is compared."""
        better = self.columns[index].better
        shown = {
            i: round(figure.value, self.columns[index].decimals)
            for i, row in enumerate(self.rows)
            if (figure := row.figures[index]) is not None and not row.baseline
        }
        if not better or len(shown) < 2:
            return frozenset()
        top = max(shown.values()) if better == "higher" else min(shown.values())
        return frozenset(i for i, value in shown.items() if value == top)

    def spans(self) -> Iterator[tuple[str, int]]:
        """Neighbouring columns of one group: (group, how many)."""
        for group, columns in groupby(self.columns, key=lambda column: column.group):
            yield group, len(list(columns))


def to_markdown(table: Table) -> str:
    """A Markdown table under a heading, with its notes."""
    heads = [f"{column.group}: {column.head}" if column.group else column.head for column in table.columns]
    lines = [f"## {table.title}", "", _pipes([table.corner, *heads]), _pipes(["---", *["---:"] * len(heads)])]
    best = [table.best(i) for i in range(len(table.columns))]
    for index, row in enumerate(table.rows):
        cells = []
        for column, figure, top in zip(table.columns, row.figures, best, strict=True):
            number, spread = _parts(column, figure)
            number = f"**{number}**" if index in top else number
            cells.append(f"{number} {spread}".strip())
        lines.append(_pipes([row.label, *cells]))
    lines += ["", *(f"{note}\n" for note in table.notes)]
    return "\n".join(lines)


def to_latex(table: Table) -> str:
    """A ``tabular`` for the booktabs package; half-ranges stand in small type."""
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
        for column, figure, top in zip(table.columns, row.figures, best, strict=True):
            number, spread = (_latex(part) for part in _parts(column, figure))
            number = rf"\textbf{{{number}}}" if index in top else number
            cells.append(number + (rf"\,{{\scriptsize {spread}}}" if spread else ""))
        lines.append(" & ".join([_latex(row.label), *cells]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """One line per row; each column gives its number and, where known, half-range, low and high."""
    heads, taken = ["group", table.corner], []
    for index, column in enumerate(table.columns):
        name = " ".join(filter(None, (column.group, column.head)))
        for part in ("value", "half_range", "low", "high"):
            values = [
                None if (each := row.figures[index]) is None else getattr(each, part) for row in table.rows
            ]
            if part == "value" or any(value is not None for value in values):
                heads.append(name if part == "value" else f"{name} {part.replace('_', '-')}")
                taken.append(["" if value is None else f"{value:.6g}" for value in values])
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(heads)
    for i, row in enumerate(table.rows):
        writer.writerow([row.group, row.label, *(values[i] for values in taken)])
    return stream.getvalue()


def to_html(table: Table) -> str:
    """A ``<section>`` with the table; shares are shaded, so that strong and weak cells are seen at once."""
    best = [table.best(i) for i in range(len(table.columns))]
    top = "".join(
        f'<th colspan="{count}" scope="colgroup">{_html(group)}</th>' for group, count in table.spans()
    )
    groups = f"<tr><td></td>{top}</tr>" if any(column.group for column in table.columns) else ""
    heads = "".join(f'<th scope="col">{_html(column.head)}</th>' for column in table.columns)
    body, group = [], ""
    for index, row in enumerate(table.rows):
        if row.group != group and row.group:
            body.append(
                f'<tr class="group"><th colspan="{len(table.columns) + 1}">{_html(row.group)}</th></tr>'
            )
        group = row.group
        cells = "".join(
            _html_cell(column, figure, best=index in of)
            for column, figure, of in zip(table.columns, row.figures, best, strict=True)
        )
        body.append(f'<tr><th scope="row">{_html(row.label)}</th>{cells}</tr>')
    notes = "".join(f'<p class="soft">{_html(note)}</p>\n' for note in table.notes)
    return (
        f"<section>\n<h2>{_html(table.title)}</h2>\n<div class=wide><table>\n<thead>{groups}"
        f"<tr><th>{_html(table.corner)}</th>{heads}</tr></thead>\n<tbody>{''.join(body)}</tbody>\n"
        f"</table></div>\n{notes}</section>\n"
    )


def _html_cell(column: Column, figure: Figure | None, *, best: bool) -> str:
    number, spread = _parts(column, figure)
    shade = ""
    if column.shade and figure is not None:
        shade = f' style="background:rgba(0,114,178,{0.38 * min(max(figure.value, 0.0), 1.0):.2f})"'
    number = f"<b>{_html(number)}</b>" if best else _html(number)
    return f"<td{shade}>{number}{f' <small>{_html(spread)}</small>' if spread else ''}</td>"


def _parts(column: Column, figure: Figure | None) -> tuple[str, str]:
    """What a cell shows: the number, and in small print its spread or interval."""
    if figure is None:
        return "–", ""
    number = f"{figure.value:{'+' if column.sign else ''}.{column.decimals}f}{figure.flag}"
    if figure.half_range is not None:
        return number, f"±{figure.half_range:.{column.decimals}f}"
    if figure.low is not None and figure.high is not None:
        return number, f"[{figure.low:.{column.decimals}f}, {figure.high:.{column.decimals}f}]"
    return number, ""


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "λ": r"$\lambda$", "α": r"$\alpha$",
    "δ": r"$\delta$", "±": r"$\pm$", "→": r"$\to$", "–": "--", "−": "$-$", "<": "$<$", ">": "$>$",
    "†": r"$\dagger$", "≥": r"$\ge$", "≤": r"$\le$",
}  # fmt: skip


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _html(text: str) -> str:
    return html.escape(text, quote=True)


SHIFTED = 0.01  # a real false-positive rate above the nominal one is flagged below this p-value


def attack_name(attack: str) -> str:
    """How a heading calls an attack."""
    return "unattacked" if attack == CLEAN else attack


def is_cut(attack: str) -> bool:
    """Whether an attack only cuts texts short: those belong on an axis of lengths."""
    return attack.startswith("truncate")


def measure_column(measure: str, rate: float | None = None, *, group: str = "") -> Column:
    """The column of a measure, under the same heading in every table."""
    return {
        "tpr": Column(f"TPR@{100 * (rate or 0.0):g}%", group, shade=True),
        "auroc": Column("AUROC", group, shade=True),
        "perplexity": Column("PPL", group, decimals=2, better="lower"),
        "nps": Column("NPS", group, sign=True),
        "generate": Column("generation (s)", group, better="lower"),
        "detect": Column("detection (s)", group, decimals=4, better="lower"),
    }[measure]


def of_spread(spread: Spread | None, flag: str = "") -> Figure | None:
    """A figure over seeds."""
    if spread is None:
        return None
    return Figure(spread.mean, spread.half_range if len(spread.values) > 1 else None, flag=flag)


def of_rate(rate: Rate | None, flag: str = "") -> Figure | None:
    """A share with its exact interval."""
    return None if rate is None else Figure(rate.rate, low=rate.low, high=rate.high, flag=flag)


def of_interval(interval: Interval | None) -> Figure | None:
    """An estimate with its interval."""
    return None if interval is None else Figure(interval.value, low=interval.low, high=interval.high)


_COLUMNS = (
    *("scheme", "attack", "judged_by", "rate", "texts", "found", "found_low", "found_high"),
    *("tpr", "tpr_half_range", "fpr", "fpr_low", "fpr_high", "shift_p"),
    *("auroc", "auroc_low", "auroc_high", "shift_sd", "words_kept", "tokens"),
)

Line = dict[str, object]


def long_csv(evaluation: Evaluation) -> str:
    """``judged_by`` is a kind of negatives, or ``p-value``; ``fpr`` is of negatives after the same attack."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for cell in evaluation.cells:
        for line in _lines(cell):
            plain = {name: f"{each:.6g}" if isinstance(each, float) else each for name, each in line.items()}
            writer.writerow({name: "" if each is None else each for name, each in plain.items()})
    return stream.getvalue()


def _lines(cell: Cell) -> Iterator[Line]:
    about: Line = {
        "scheme": cell.scheme,
        "attack": cell.attack,
        "texts": cell.texts,
        "shift_sd": cell.shift,
        "words_kept": cell.kept,
        "tokens": cell.tokens,
    }
    for against in cell.against:
        area: Line = {
            "judged_by": against.negatives,
            "auroc": against.auroc.mean,
            "auroc_low": against.interval.low,
            "auroc_high": against.interval.high,
        }
        for at in against.at:
            spread = {"tpr": at.tpr.mean, "tpr_half_range": at.tpr.half_range, "shift_p": at.shift_p}
            real = at.attacked or at.passed
            yield {
                **about,
                **area,
                "rate": at.rate,
                **spread,
                **_rate("found", at.found),
                **_rate("fpr", real),
            }
    for share in cell.shares:
        false = share.unmarked or share.human
        told = _rate("found", share.found) | ({} if false is None else _rate("fpr", false))
        yield {**about, "judged_by": "p-value", "rate": share.rate, **told}


def _rate(name: str, rate: Rate) -> Line:
    return {name: rate.rate, f"{name}_low": rate.low, f"{name}_high": rate.high}
