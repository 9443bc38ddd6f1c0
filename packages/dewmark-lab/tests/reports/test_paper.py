"""The paper's numbers: complete, in range, and consistent where two tables overlap."""

from __future__ import annotations

from importlib import resources

import pytest
import yaml

from dewmark.registry import SCHEMES
from dewmark_lab.evaluation.results import NEGATIVES
from dewmark_lab.reports.paper import PaperColumn, PaperTable, measure_column, paper_table, paper_tables

NAMES = [
    "main", "efficiency", "ablation", "encoders", "cross-host", "human-negatives", "lexical", "dipper",
    "stealing",
]  # fmt: skip


def table(name: str) -> PaperTable:
    found = paper_table(name)
    assert found is not None
    return found


def test_all_result_tables_are_present() -> None:
    assert list(paper_tables()) == NAMES
    assert paper_table("no such recipe") is None


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


@pytest.mark.parametrize("name", NAMES)
def test_a_higher_false_positive_rate_finds_no_fewer_texts(name: str) -> None:
    found = table(name)
    for row in found.rows:
        for column in found.columns:
            strict, lax = (PaperColumn("tpr", column.attack, rate) for rate in (0.01, 0.05))
            low, high = found.value(row.scheme, strict), found.value(row.scheme, lax)
            if low is not None and high is not None:
                assert low.value <= high.value


def test_tables_agree_where_they_overlap() -> None:
    main, human, ablation, encoders = map(table, ("main", "human-negatives", "ablation", "encoders"))
    assert [row.scheme for row in human.rows] == [row.scheme for row in main.rows]
    for row in main.rows:  # the same texts, so the same quality
        for measure in ("perplexity", "nps"):
            column = PaperColumn(measure)
            assert human.value(row.scheme, column) == main.value(row.scheme, column)
    default = next(row for row in main.rows if row.scheme == "dew-paper-2.0")
    both = next(row for row in ablation.rows if row.scheme == "both")
    for mine, its in zip(default.values, both.values, strict=True):
        assert mine is not None
        assert its is not None
        assert mine.value == pytest.approx(its.value, abs=0.005)
    for strength in ("2.0", "2.5"):
        nps = PaperColumn("nps")
        assert encoders.value(f"mpnet-{strength}", nps) == main.value(f"dew-paper-{strength}", nps)


def test_the_claims_in_the_papers_text_hold() -> None:
    main, human = table("main"), table("human-negatives")
    for found in (main, human):
        for language in ("de", "fr"):
            for rate in (0.01, 0.05):
                column = PaperColumn("tpr", f"translate-{language}", rate)
                best = max(found.rows, key=lambda row: value(found, row.scheme, column))
                assert best.scheme == "dew-paper-2.5"
    strict = PaperColumn("tpr", "paraphrase", 0.01)
    assert max(main.rows, key=lambda row: value(main, row.scheme, strict)).scheme == "atw"
    assert max(human.rows, key=lambda row: value(human, row.scheme, strict)).scheme == "sir"


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
