"""The report of an experiment and its tables: complete, with the paper's numbers beside ours."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.evaluation.synthetic import scored

from dewmark.errors import InputError
from dewmark_lab.evaluation.results import CLEAN, write_scores
from dewmark_lab.reports.experiment_report import write_report
from dewmark_lab.reports.experiment_tables import report_tables, results_csv
from dewmark_lab.reports.paper import PaperTable, beside_paper, paper_table
from dewmark_lab.reports.run_results import read_run
from dewmark_lab.reports.tables import Column, Estimate, Table, TableRow, to_markdown

SCHEMES = {"dew-paper-2.0": 3.0, "dew-paper-2.5": 4.0, "kgw": 3.5}
ATTACKS = {CLEAN: (1.0, 0.0), "delete-0.3": (0.6, 0.0), "translate": (0.2, 1.3)}
CONFIGURATION = {"host": "tiny <host>", "schemes": [{"label": "kgw", "settings": {"delta": 2.0}}]}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run; tests that change it copy it first."""
    tmp_path = tmp_path_factory.mktemp("run")
    kept = {"delete-0.3": 0.7, "translate": 0.1}
    rows = scored(SCHEMES, ATTACKS, texts=100, seeds=2, human=True)
    rows = [dataclasses.replace(row, kept=kept.get(row.attack)) for row in rows]
    write_scores(tmp_path / "scores.jsonl", rows)
    texts = [(scheme, seed, i) for scheme in (CLEAN, *SCHEMES) for seed in (0, 1) for i in range(3)]
    write_rows(
        tmp_path / "quality.jsonl",
        [
            {
                "scheme": scheme, "seed": seed, "kind": "unmarked" if scheme == CLEAN else "marked",
                "id": str(i), "perplexity": [10.0, 20.0, None][i] if seed else 40.0, "tokens": 200,
                "repetition": 0.01,
            }
            for scheme, seed, i in texts
        ],
    )  # fmt: skip
    outcomes = [-1, 0, 1, 1]
    write_rows(
        tmp_path / "preference.jsonl",
        [{"scheme": "kgw", "seed": 0, "id": str(i), "outcome": each} for i, each in enumerate(outcomes)],
    )
    write_rows(
        tmp_path / "runtime.jsonl",
        [
            {
                "scheme": scheme,
                "phase": "generate",
                "seconds_per_text": seconds,
                "peak_mib": 900,
                "device": "cpu",
            }
            for scheme, seconds in ((CLEAN, 2.0), ("kgw", 2.5), ("kgw", 3.5))
        ],
    )
    return tmp_path


@pytest.fixture(scope="module")
def texts(run: Path) -> dict[str, str]:
    """The report's files without pictures."""
    return report(run)


def report(run: Path, table: str = "main") -> dict[str, str]:
    files = write_report(
        run, title="A <run>", table=table, configuration=CONFIGURATION, commands=["dewmark reproduce main"]
    )
    assert all(file.is_file() for file in files)
    return {file.name: file.read_text(encoding="utf-8") for file in files if file.suffix != ".png"}


def main_table() -> PaperTable:
    found = paper_table("main")
    assert found is not None
    return found


def test_all_files_are_written(run: Path, texts: dict[str, str]) -> None:
    assert set(texts) == {"report.md", "results.csv"}
    pictures = {file.stem for file in (run / "figures").iterdir()}
    assert pictures == {"at-a-glance", "roc", "robustness-perplexity"}
    page = texts["report.md"]
    assert all(f"](figures/{name}.png)" in page for name in pictures)
    assert "dewmark reproduce main" in page
    assert "Beside the paper (Table 1)" in page
    assert '"host": "tiny <host>"' in page
    first = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    assert report(run) == texts
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == first


def test_perplexity_is_compared_with_the_unmarked_text_of_the_same_prompt(tmp_path: Path) -> None:
    """Prompts differ tenfold, but the ratio to the unmarked text is 1.5 for all of them."""
    rows = [
        {
            "scheme": scheme, "seed": seed, "kind": kind, "id": str(i), "tokens": 200,
            "perplexity": None if (scheme, i) == ("kgw", 7) else 10.0**i * factor * (seed + 1),
        }
        for scheme, kind, factor in ((CLEAN, "unmarked", 1.0), ("kgw", "marked", 1.5))
        for seed in (0, 1)
        for i in range(8)
    ]  # fmt: skip
    write_rows(tmp_path / "quality.jsonl", rows)
    write_rows(tmp_path / "preference.jsonl", [{"scheme": "kgw", "seed": 0, "id": "0", "outcome": 1}])
    read = read_run(tmp_path)
    over = read.quality["kgw"].over_unmarked
    assert over is not None
    assert (over.low, over.value, over.high) == pytest.approx((math.log(1.5),) * 3)
    assert read.quality[CLEAN].over_unmarked is None
    (table,) = (table for table in report_tables(read, None) if table.title == "Text quality")
    heads = [column.head for column in table.columns]
    (figure,) = (row.values[heads.index("over unmarked (nats)")] for row in table.rows if row.label == "kgw")
    assert figure is not None
    assert (figure.value, figure.low) == pytest.approx((math.log(1.5),) * 2)


def test_quality_is_a_median_over_texts_and_a_mean_over_seeds(run: Path) -> None:
    read = read_run(run)
    perplexity = read.quality["kgw"].perplexity
    assert perplexity is not None
    assert perplexity.values == (40.0, 15.0)
    assert read.preference["kgw"].mean == 0.25
    generate = read.runtime["kgw"].generate
    assert generate is not None
    assert (generate.mean, generate.half_range) == (3.0, 0.5)
    (times,) = (table for table in report_tables(read, None) if table.title == "Seconds per text")
    over = next(row.values[1] for row in times.rows if row.label == "kgw")
    assert over is not None
    assert over.value == 1.5


@pytest.mark.parametrize(
    ("table", "first"),
    [
        ("main", "Marked texts found: the host's own unmarked texts, unattacked"),
        ("human-negatives", "Marked texts found: human texts, unattacked"),
        ("encoders", "AUROC"),
        ("efficiency", "Seconds per text"),
        ("a recipe of one's own", "Marked texts found: the host's own unmarked texts, unattacked"),
    ],
)
def test_a_report_opens_with_the_table_of_its_question(run: Path, table: str, first: str) -> None:
    assert report_tables(read_run(run), paper_table(table))[0].title.startswith(first)


def test_the_paper_is_shown_beside_our_numbers(run: Path) -> None:
    beside = beside_paper(read_run(run), main_table())
    assert beside is not None
    groups = list(dict.fromkeys(column.group for column in beside.columns))
    assert groups == ["unattacked", "translate (paper: translate-de)", "translate (paper: translate-fr)", ""]
    kgw = next(row for row in beside.rows if row.label == "kgw: KGW")
    theirs = [
        figure for column, figure in zip(beside.columns, kgw.values, strict=True) if "paper" in column.head
    ]
    assert [figure.value for figure in theirs if figure] == [0.999, 0.027, 0.080, 0.019, 0.071, 10.46, -0.113]


def test_rows_with_fewer_texts_are_named(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    rows = read_run(folder).scores
    few = [row for row in rows if row.scheme != "kgw" or row.kind != "marked" or int(row.id) < 40]
    write_scores(folder / "scores.jsonl", few)
    found = read_run(folder)
    note = "Marked texts per cell, all seeds: 200; 80 for kgw."
    beside = beside_paper(found, main_table())
    assert beside is not None
    for table in (report_tables(found, main_table())[0], beside):
        assert note in table.notes
    assert not any("Marked texts per cell" in note for note in report_tables(read_run(run), None)[0].notes)


def test_a_report_of_run_times_alone(run: Path, tmp_path: Path) -> None:
    shutil.copy(run / "runtime.jsonl", tmp_path)
    assert "Seconds per text" in report(tmp_path, "efficiency")["report.md"]
    (tmp_path / "runtime.jsonl").unlink()
    with pytest.raises(InputError, match="no results in"):
        report(tmp_path)


def test_stolen_marks_have_a_table(run: Path, tmp_path: Path) -> None:
    shutil.copy(run / "scores.jsonl", tmp_path)
    rows = [
        {"scheme": "kgw", "attack": "spoof", "seed": seed, "mode": "spoof", "above": above, "cosine": None}
        for seed, above in enumerate((0.5, 0.7))
    ]
    write_rows(tmp_path / "stealing.jsonl", rows)
    stolen = report_tables(read_run(tmp_path), paper_table("stealing"))[1]
    assert stolen.title == "Stolen marks"
    assert [column.head for column in stolen.columns] == ["TPR@1%"]
    ((row,), (figure,)) = stolen.rows, stolen.rows[0].values
    assert row.label == "kgw spoof"
    assert figure is not None
    assert (figure.value, figure.half_range) == pytest.approx((0.6, 0.1))


def test_results_csv_has_every_number(run: Path) -> None:
    evaluation = read_run(run).evaluation
    assert evaluation is not None
    lines = list(csv.DictReader(io.StringIO(results_csv(evaluation))))
    keys = [(line["scheme"], line["attack"], line["judged_by"], line["rate"]) for line in lines]
    assert (
        len(set(keys))
        == len(keys)
        == sum(sum(len(each.at) for each in cell.against) + len(cell.shares) for cell in evaluation.cells)
    )
    line = lines[keys.index(("kgw", "translate", "clean", "0.05"))]
    cell = evaluation.cell("kgw", "translate")
    assert cell is not None
    at = cell.at("clean", 0.05)
    assert at is not None
    assert at.attacked is not None
    assert float(line["tpr"]) == pytest.approx(at.tpr.mean, rel=1e-5)
    assert float(line["fpr"]) == pytest.approx(at.attacked.rate, rel=1e-5)
    assert float(line["words_kept"]) == pytest.approx(0.1)
    by_p = lines[keys.index(("kgw", "translate", "p-value", "0.01"))]
    assert float(by_p["found"]) == pytest.approx(cell.share(0.01).found.rate, rel=1e-5)


TABLE = Table(
    title="Found",
    columns=(
        Column("TPR@1%", "none"),
        Column("FPR@1%", "none", better=""),
        Column("PPL", "quality", decimals=2, better="lower"),
        Column("NPS", "quality", sign=True),
    ),
    rows=(
        TableRow(
            "DEW (λ = 2.0)",
            (Estimate(0.9861, 0.008), Estimate(0.02, low=0.01, high=0.04, flag="!"), None, Estimate(0.1)),
        ),
        TableRow("K|G_W & <co>", (Estimate(0.9862, 0.001), None, Estimate(8.5, 0.1), Estimate(-0.05))),
        TableRow("SIR", (Estimate(0.5), None, Estimate(9.0), None)),
    ),
    notes=("100% of it & more.",),
)


def test_the_best_is_chosen_after_rounding_and_only_in_ordered_columns() -> None:
    assert TABLE.best(0) == {0, 1}  # both read 0.986
    assert TABLE.best(1) == frozenset()
    assert TABLE.best(2) == {1}
    assert TABLE.best(3) == {0}


def test_markdown() -> None:
    lines = to_markdown(TABLE).splitlines()
    assert lines[2] == "| Watermark | none: TPR@1% | none: FPR@1% | quality: PPL | quality: NPS |"
    assert lines[4] == "| DEW (λ = 2.0) | **0.986** ±0.008 | 0.020! [0.010, 0.040] | – | **+0.100** |"
    assert lines[5].startswith("| K\\|G_W & <co> | ")
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 6 for line in lines[2:7])
