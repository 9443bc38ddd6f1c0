"""The paper's result tables as data, to stand beside ours: ``data/paper_tables.yaml``, read and checked."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any

__all__ = ["PaperColumn", "PaperRow", "PaperTable", "PaperValue", "paper_table", "paper_tables"]


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
    """One table; ``negatives`` says whose scores set the thresholds (see `dewmark.evaluation.results`).

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
