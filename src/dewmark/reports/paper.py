"""The paper's result tables as data, to stand beside ours: ``data/paper_tables.yaml``, read and checked.

The paper's table, and our figures beside those of the paper that measure the same thing.

An attack is the same if it has the same label. Where ours is another of the same family (a translation into
another language, say), it stands beside the paper's too, under both names.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

from dewmark.lab.evaluation.results import CLEAN, Evaluation
from dewmark.reports.run_files import RunFiles
from dewmark.reports.tables import Column, Figure, Row, Table, attack_name, measure_column, of_spread
from dewmark.stats.metrics import Spread

__all__ = [
    "PaperColumn",
    "PaperRow",
    "PaperTable",
    "PaperValue",
    "beside_paper",
    "pairs_beside",
    "paper_as_table",
    "paper_table",
    "paper_tables",
]


@dataclass(frozen=True, slots=True)
class PaperColumn:
    """What a column holds: a measure, and for TPR and AUROC the attack and the nominal rate."""

    measure: str
    attack: str | None = None
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class PaperValue:
    """A figure of the paper; ``half_range`` is None where it gives no spread."""

    value: float
    half_range: float | None


@dataclass(frozen=True, slots=True)
class PaperRow:
    """One row: ``scheme`` and ``also`` are its labels in our recipes, ``label`` is how the paper calls it."""

    scheme: str
    label: str
    group: str | None
    values: tuple[PaperValue | None, ...]
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PaperTable:
    """One table; ``negatives`` says whose scores set the thresholds (see `dewmark.lab.evaluation.results`).

    ``texts`` (of a cell and seed) and ``seeds`` are None where the paper does not say.
    """

    name: str
    source: str
    about: str
    negatives: str
    texts: int | None
    seeds: int | None
    columns: tuple[PaperColumn, ...]
    rows: tuple[PaperRow, ...]

    def row(self, scheme: str) -> PaperRow | None:
        """A row by our label of it."""
        return next((row for row in self.rows if scheme in (row.scheme, *row.also)), None)

    def value(self, scheme: str, column: PaperColumn) -> PaperValue | None:
        """One figure, by our label of the row."""
        row = self.row(scheme)
        if row is None or column not in self.columns:
            return None
        return row.values[self.columns.index(column)]


def paper_table(name: str) -> PaperTable | None:
    """The table that a recipe makes again, if the paper has one of that name."""
    return paper_tables().get(name)


@functools.cache
def paper_tables() -> dict[str, PaperTable]:
    """All tables by the names of the recipes that make them."""
    import yaml

    file = resources.files("dewmark") / "data" / "paper_tables.yaml"
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {name: _table(name, raw) for name, raw in data["tables"].items()}


def _table(name: str, raw: dict[str, Any]) -> PaperTable:
    rows = tuple(
        PaperRow(
            scheme=row["scheme"],
            label=row["label"],
            group=row.get("group"),
            values=tuple(map(_value, row["values"])),
            also=tuple(row.get("also", ())),
        )
        for row in raw["rows"]
    )
    fields = {key: value for key, value in raw.items() if key not in ("columns", "rows")}
    return PaperTable(
        name=name, columns=tuple(PaperColumn(**each) for each in raw["columns"]), rows=rows, **fields
    )


def _value(raw: float | list[float] | None) -> PaperValue | None:
    if raw is None:
        return None
    return PaperValue(*raw) if isinstance(raw, list) else PaperValue(raw, None)


def paper_as_table(paper: PaperTable) -> Table:
    """The paper's own table."""
    columns = tuple(
        measure_column(each.measure, each.rate, group=attack_name(each.attack) if each.attack else "")
        for each in paper.columns
    )
    rows = tuple(
        Row(row.label, tuple(map(_figure, row.values)), row.group or "", baseline=row.scheme == CLEAN)
        for row in paper.rows
    )
    size = f"; {paper.texts} texts a cell and seed, seeds: {paper.seeds}" if paper.texts else ""
    return Table(f"The paper: {paper.source}", columns, rows, (f"{paper.about}{size}.",))


def beside_paper(run: RunFiles, paper: PaperTable) -> Table | None:
    """Ours and the paper's figure in neighbouring columns; None if nothing was measured in both."""
    labels = {scheme: row.label for scheme in run.schemes if (row := paper.row(scheme)) is not None}
    schemes = list(labels)
    columns: list[Column] = []
    figures: list[list[Figure | None]] = []
    for column in paper.columns:
        for attack in _ours_for(run.evaluation, column):
            ours = [of_spread(_measured(run, scheme, column, attack, paper.negatives)) for scheme in schemes]
            theirs = [_figure(paper.value(scheme, column)) for scheme in schemes]
            if any(ours) and any(theirs):
                group = _heading(column, attack)
                shown = measure_column(column.measure, column.rate, group=group)
                for who, side in (("ours", ours), ("paper", theirs)):
                    columns.append(
                        Column(f"{shown.head} {who}", group, shown.decimals, "", shown.sign, shown.shade)
                    )
                    figures.append(side)
    if not columns:
        return None
    rows = tuple(
        Row(
            f"{scheme}: {labels[scheme]}" if labels[scheme] != scheme else scheme,
            tuple(side[i] for side in figures),
        )
        for i, scheme in enumerate(schemes)
    )
    note = (
        "Models, texts and attackers differ (see the configuration): compare the order of schemes and the "
        "direction of effects before the figures themselves."
    )
    return Table(f"Beside the paper ({paper.source})", tuple(columns), rows, (note,))


def pairs_beside(run: RunFiles, paper: PaperTable) -> Iterator[tuple[str, dict[str, tuple[float, float]]]]:
    """For each column that both have: its heading, and (ours, the paper's) by scheme."""
    schemes = {scheme: row.label for scheme in run.schemes if (row := paper.row(scheme)) is not None}
    distinct = {label: scheme for scheme, label in reversed(schemes.items())}  # a row of the paper once
    for column in paper.columns:
        for attack in _ours_for(run.evaluation, column):
            pairs = {}
            for scheme in distinct.values():
                ours = _measured(run, scheme, column, attack, paper.negatives)
                theirs = paper.value(scheme, column)
                if ours is not None and theirs is not None:
                    pairs[scheme] = (ours.mean, theirs.value)
            if pairs:
                head = measure_column(column.measure, column.rate).head
                yield f"{_heading(column, attack)} {head}".strip(), pairs


def _ours_for(evaluation: Evaluation | None, column: PaperColumn) -> list[str | None]:
    """Our attacks that answer to a column of the paper: the same, or others of its family."""
    if column.attack is None:
        return [None]
    attacks = evaluation.attacks if evaluation else []
    if column.attack in attacks:
        return [column.attack]
    family = column.attack.split("-")[0]
    return [each for each in attacks if each.split("-")[0] == family]


def _measured(
    run: RunFiles, scheme: str, column: PaperColumn, attack: str | None, negatives: str
) -> Spread | None:
    """Our figure of the column's measure."""
    if attack is None:
        quality, time = run.quality.get(scheme), run.runtime.get(scheme)
        return {
            "perplexity": quality.perplexity if quality else None,
            "nps": run.preference.get(scheme),
            "generate": time.generate if time else None,
            "detect": time.detect if time else None,
        }[column.measure]
    cell = run.evaluation.cell(scheme, attack) if run.evaluation else None
    if cell is None:
        return None
    if column.measure == "auroc":
        beside = cell.beside(negatives)
        return beside.auroc if beside else None
    at = cell.at(negatives, column.rate or 0.0)
    return at.tpr if at else None


def _heading(column: PaperColumn, attack: str | None) -> str:
    if attack is None or column.attack is None:
        return ""
    if attack == column.attack:
        return attack_name(attack)
    return f"{attack_name(attack)} (paper: {attack_name(column.attack)})"


def _figure(value: PaperValue | None) -> Figure | None:
    return None if value is None else Figure(value.value, value.half_range)
