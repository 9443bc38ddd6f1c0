"""The paper's numbers: complete, in range, and consistent where two tables overlap."""

from __future__ import annotations

from importlib import resources

import pytest
import yaml

from dewmark.registry import SCHEMES
from dewmark_lab.evaluation.results import NEGATIVES
from dewmark_lab.reports.paper import PaperColumn, PaperTable, measure_column, paper_table

NAMES = [
    "main", "efficiency", "ablation", "encoders", "cross-host", "human-negatives", "lexical", "dipper",
    "stealing",
]  # fmt: skip


def table(name: str) -> PaperTable:
    found = paper_table(name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_table_is_complete(name: str) -> None:
    file = resources.files("dewmark_lab") / "data" / "paper_tables.yaml"
    measures = yaml.safe_load(file.read_text(encoding="utf-8"))["measures"]
    found = table(name)
    assert found.negatives in (*NEGATIVES, "none")
    assert len({row.scheme for row in found.rows}) == len(found.rows)
    assert len(set(found.columns)) == len(found.columns)
    for column in found.columns:
        assert measure_column(column.measure, column.rate).better == measures[column.measure]["better"]
        assert (column.rate is not None) == (column.measure == "tpr")
    for row in found.rows:
        assert len(row.values) == len(found.columns)
        for column, value in zip(found.columns, row.values, strict=True):
            if value is None:
                assert (row.scheme, column.measure) == ("none", "detect")
                continue
            limits = measures[column.measure]
            assert limits["low"] <= value.value <= limits["high"]
            assert (value.half_range is None) == (found.seeds == 1 or row.scheme == "none")
            assert value.half_range is None or 0.0 <= value.half_range < 0.25 * (
                limits["high"] - limits["low"]
            )


def value(found: PaperTable, scheme: str, column: PaperColumn) -> float:
    figure = found.value(scheme, column)
    assert figure is not None
    return figure.value


def test_rows_are_named_as_our_recipes_name_them() -> None:
    file = resources.files("dewmark_lab") / "data" / "recipes" / "schemes.yaml"
    labels = yaml.safe_load(file.read_text(encoding="utf-8"))
    for name in ("main", "efficiency", "human-negatives", "lexical", "dipper"):
        for row in table(name).rows:
            assert row.scheme == "none" or labels[row.scheme]["scheme"] in SCHEMES
