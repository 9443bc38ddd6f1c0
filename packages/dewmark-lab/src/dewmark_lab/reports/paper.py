"""The paper's result tables (``data/paper_tables.yaml``), and our results beside them.

Our results are compared under the same attack, or else under other attacks of the same family (translation
into another language, say; a round trip for a paraphrase), in which case the heading names both.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from importlib import resources
from typing import Any

from dewmark_lab.evaluation.results import Evaluation
from dewmark_lab.metrics import Spread
from dewmark_lab.reports.run_results import RunResults, attack_label, fewer_texts
from dewmark_lab.reports.tables import Column, Estimate, Table, TableRow, of_spread

_STAND_INS = {"paraphrase": ("paraphrase", "round")}
"""First words of attacks that stand in for one of the paper's: a round trip rewords a text, too."""


@dataclass(frozen=True, slots=True)
class PaperColumn:
    """The measure of a column, and for TPR and AUROC the attack and the nominal false-positive rate."""

    measure: str
    attack: str | None = None
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class PaperRow:
    """One row: ``scheme`` and ``also`` are its labels in our recipes, ``label`` its name in the paper."""

    scheme: str
    label: str
    values: tuple[Estimate | None, ...]
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PaperTable:
    """One table; ``negatives`` says which texts set the thresholds (see `dewmark_lab.evaluation.results`).

    ``texts`` (per cell and seed) and ``seeds`` are None if the paper does not give them.
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

    def value(self, scheme: str, column: PaperColumn) -> Estimate | None:
        """One number, by our label of the row."""
        row = self.row(scheme)
        if row is None or column not in self.columns:
            return None
        return row.values[self.columns.index(column)]


def paper_table(name: str) -> PaperTable | None:
    """The table that a recipe reproduces, if the paper has one."""
    import yaml

    file = resources.files("dewmark_lab") / "data" / "paper_tables.yaml"
    tables: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))["tables"]
    if name not in tables:
        return None
    rows = []
    for row in tables[name]["rows"]:
        values = tuple(map(_parse_value, row["values"]))
        rows.append(PaperRow(row["scheme"], row["label"], values, tuple(row.get("also", ()))))
    columns = tuple(PaperColumn(**each) for each in tables[name]["columns"])
    return PaperTable(**{**tables[name], "name": name, "columns": columns, "rows": tuple(rows)})


def _parse_value(raw: float | list[float] | None) -> Estimate | None:
    if raw is None:
        return None
    value, half_range = raw if isinstance(raw, list) else (raw, None)
    return Estimate(value, half_range)


def measure_column(measure: str, rate: float | None = None, *, group: str = "") -> Column:
    """The column of a measure, with the same heading in the paper's tables and in ours."""
    return {
        "tpr": Column(f"TPR@{100 * (rate or 0.0):g}%", group),
        "auroc": Column("AUROC", group),
        "perplexity": Column("PPL", group, decimals=2, better="lower"),
        "nps": Column("NPS", group, sign=True),
        "generate": Column("generation (s)", group, better="lower"),
        "detect": Column("detection (s)", group, decimals=4, better="lower"),
    }[measure]


def beside_paper(run: RunResults, paper: PaperTable) -> Table | None:
    """Our numbers and the paper's in adjacent columns; None if they have no measure in common."""
    labels = {scheme: row.label for scheme in run.schemes if (row := paper.row(scheme)) is not None}
    columns: list[Column] = []
    values: list[list[Estimate | None]] = []
    found = run.evaluation
    pairs = [(column, each) for column in paper.columns for each in _corresponding_attacks(found, column)]
    for column, attack in pairs:
        ours = [of_spread(_measured(run, scheme, column, attack, paper.negatives)) for scheme in labels]
        theirs = [paper.value(scheme, column) for scheme in labels]
        if any(ours) and any(theirs):
            shown = measure_column(column.measure, column.rate, group=_heading(column, attack))
            for source, side in (("ours", ours), ("paper", theirs)):
                columns.append(dataclasses.replace(shown, head=f"{shown.head} {source}", better=""))
                values.append(side)
    if not columns:
        return None
    rows = tuple(
        TableRow(f"{scheme}: {label}" if label != scheme else scheme, tuple(side[i] for side in values))
        for i, (scheme, label) in enumerate(labels.items())
    )
    note = (
        "Models, texts and attackers differ (see the configuration): compare the order of the schemes and "
        "the direction of effects rather than the numbers themselves."
    )
    notes = (note, *(fewer_texts(run.evaluation) if run.evaluation else ()))
    return Table(f"Beside the paper ({paper.source})", tuple(columns), rows, notes)


def _corresponding_attacks(evaluation: Evaluation | None, column: PaperColumn) -> list[str | None]:
    """The column's own attack if we ran it, else our attacks of its family; [None] without an attack."""
    if column.attack is None:
        return [None]
    attacks = evaluation.attacks if evaluation else []
    if column.attack in attacks:
        return [column.attack]
    family = column.attack.split("-")[0]
    return [each for each in attacks if each.split("-")[0] in _STAND_INS.get(family, (family,))]


def _measured(
    run: RunResults, scheme: str, column: PaperColumn, attack: str | None, negatives: str
) -> Spread | None:
    """Our result for the column's measure."""
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
        comparison = cell.comparison(negatives)
        return comparison.auroc if comparison else None
    at = cell.at(negatives, column.rate or 0.0)
    return at.tpr if at else None


def _heading(column: PaperColumn, attack: str | None) -> str:
    if attack is None or column.attack is None:
        return ""
    if attack == column.attack:
        return attack_label(attack)
    return f"{attack_label(attack)} (paper: {attack_label(column.attack)})"
