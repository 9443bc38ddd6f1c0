"""What a report says in words, and every number of it as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path

import pytest
from tests.lab.evaluation.synthetic import scored

from dewmark.lab.evaluation.protocol import evaluate
from dewmark.lab.evaluation.results import CLEAN, Evaluation
from dewmark.reports.experiment_page import findings
from dewmark.reports.paper import paper_table
from dewmark.reports.run_files import RunFiles, read_run
from dewmark.reports.tables import long_csv

SCHEMES = {"dew-paper-2.0": 3.0, "dew-paper-2.5": 4.0, "kgw": 1.0, "synthid": 0.5, "sir": 2.0}
ATTACKS = {CLEAN: (2.0, 0.0), "delete-0.3": (1.0, 0.0), "translate-pt": (0.8, 1.5)}


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    rows = scored(SCHEMES, ATTACKS, texts=150, seeds=2, human=False)
    kept = {"delete-0.3": 0.7, "translate-pt": 0.1}
    return evaluate([dataclasses.replace(row, kept=kept.get(row.attack)) for row in rows])


@pytest.fixture
def said(evaluation: Evaluation, tmp_path: Path) -> list[str]:
    evaluation.save(tmp_path / "evaluation.json")
    return findings(read_run(tmp_path), paper_table("main"))


def test_the_best_of_each_attack_is_named_with_its_interval(said, evaluation):
    line = next(line for line in said if line.startswith("delete-0.3:"))
    best = evaluation.cell("dew-paper-2.5", "delete-0.3").at("matched", 0.01).found
    assert f"by dew-paper-2.5, {best.rate:.3f} [{best.low:.3f}, {best.high:.3f}] at 1%" in line
    assert "fewest by synthid" in line
    assert sum(line.startswith("unattacked:") for line in said) == 1


def test_schemes_within_the_interval_are_not_called_worse(evaluation, tmp_path):
    """Of two equal rows neither is the best."""
    twin = [
        dataclasses.replace(cell, scheme="twin")
        for cell in evaluation.cells
        if cell.scheme == "dew-paper-2.5"
    ]
    dataclasses.replace(evaluation, cells=(*evaluation.cells, *twin)).save(tmp_path / "evaluation.json")
    line = next(line for line in findings(read_run(tmp_path), None) if line.startswith("delete-0.3:"))
    assert "not told apart from it: twin" in line


def test_the_shifted_null_and_the_words_lost_are_told(said):
    assert any("pass an unattacked threshold more often" in line for line in said)
    assert (
        "words of marked texts that were replaced or removed: 0.30 by delete-0.3, 0.90 by translate-pt"
        in said
    )


def test_the_order_is_compared_with_the_paper_s(said):
    """All five schemes are in the paper's table; its columns of translation are two languages."""
    from scipy.stats import spearmanr

    line = next(line for line in said if line.startswith("the order of the schemes"))
    assert "(5)" in line
    assert line.count("(paper: translate-") == 4
    paper = paper_table("main")
    column = next(each for each in paper.columns if (each.attack, each.rate) == ("translate-de", 0.01))
    theirs = [paper.value(scheme, column).value for scheme in SCHEMES]
    expected = spearmanr(list(SCHEMES.values()), theirs).statistic  # ours follow the strengths
    assert f"translate-pt (paper: translate-de) TPR@1% {expected:+.2f}" in line


def test_without_an_evaluation_nothing_is_said():
    assert findings(RunFiles(None, ()), None) == []


def test_every_number_is_in_the_long_file(evaluation):
    lines = list(csv.DictReader(io.StringIO(long_csv(evaluation))))
    keys = [(line["scheme"], line["attack"], line["judged_by"], line["rate"]) for line in lines]
    assert (
        len(set(keys))
        == len(keys)
        == sum(sum(len(each.at) for each in cell.against) + len(cell.shares) for cell in evaluation.cells)
    )
    line = lines[keys.index(("kgw", "translate-pt", "clean", "0.05"))]
    cell = evaluation.cell("kgw", "translate-pt")
    at = cell.at("clean", 0.05)
    assert float(line["tpr"]) == pytest.approx(at.tpr.mean, rel=1e-5)
    assert float(line["fpr"]) == pytest.approx(at.attacked.rate, rel=1e-5)
    assert float(line["words_kept"]) == pytest.approx(0.1)
    by_p = lines[keys.index(("kgw", "translate-pt", "p-value", "0.01"))]
    assert float(by_p["found"]) == pytest.approx(cell.share(0.01).found.rate, rel=1e-5)
