"""A table of results in Markdown.

Columns may be grouped (by attack, say), and a number carries its spread over seeds or its interval. The best
number of a column is bold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dewmark_audit.intervals import Interval
from dewmark_audit.rates import Rate
from dewmark_lab.metrics import Spread


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its half range or interval, if known; a note explains the symbol ``flag``."""

    value: float
    half_range: float | None = None
    low: float | None = None
    high: float | None = None
    flag: str = ""


def of_spread(spread: Spread | None, flag: str = "") -> Estimate | None:
    """The mean over seeds, with half the range if there are several."""
    if spread is None:
        return None
    return Estimate(spread.mean, spread.half_range if len(spread.values) > 1 else None, flag=flag)


def of_rate(rate: Rate | None, flag: str = "") -> Estimate | None:
    """A share with its exact interval."""
    return None if rate is None else Estimate(rate.rate, low=rate.low, high=rate.high, flag=flag)


def of_interval(interval: Interval | None) -> Estimate | None:
    """An estimate with its interval."""
    return None if interval is None else Estimate(interval.value, low=interval.low, high=interval.high)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: ``decimals``, whether "higher" or "lower" is ``better``, and whether to show a ``sign``."""

    head: str
    group: str = ""
    decimals: int = 3
    better: str = "higher"
    sign: bool = False


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row: its label, and one estimate or None per column; a ``baseline`` is never the best."""

    label: str
    values: tuple[Estimate | None, ...]
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


def to_markdown(table: Table) -> str:
    """A Markdown heading, the table and its notes."""
    heads = [f"{column.group}: {column.head}" if column.group else column.head for column in table.columns]
    lines = [f"## {table.title}", "", _pipes([table.corner, *heads]), _pipes(["---", *["---:"] * len(heads)])]
    best = [table.best(i) for i in range(len(table.columns))]
    for index, row in enumerate(table.rows):
        cells = [
            _cell(column, value, best=index in top)
            for column, value, top in zip(table.columns, row.values, best, strict=True)
        ]
        lines.append(_pipes([row.label, *cells]))
    lines += ["", *(f"{note}\n" for note in table.notes)]
    return "\n".join(lines)


def _cell(column: Column, value: Estimate | None, *, best: bool) -> str:
    """The number, and its spread or interval."""
    if value is None:
        return "–"
    number = f"{value.value:{'+' if column.sign else ''}.{column.decimals}f}{value.flag}"
    number = f"**{number}**" if best else number
    if value.half_range is not None:
        return f"{number} ±{value.half_range:.{column.decimals}f}"
    if value.low is not None and value.high is not None:
        return f"{number} [{value.low:.{column.decimals}f}, {value.high:.{column.decimals}f}]"
    return number


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
