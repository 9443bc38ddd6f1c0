"""The findings of a report."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.evaluation.synthetic import scored

from dewmark_lab.evaluation.protocol import evaluate
from dewmark_lab.evaluation.results import CLEAN, Evaluation
from dewmark_lab.reports.experiment_report import findings
from dewmark_lab.reports.paper import paper_table
from dewmark_lab.reports.run_results import RunResults, read_run

SCHEMES = {"dew-paper-2.0": 3.0, "dew-paper-2.5": 4.0, "kgw": 1.0, "synthid": 0.5, "sir": 2.0}
ATTACKS = {CLEAN: (2.0, 0.0), "delete-0.3": (1.0, 0.0), "translate-pt": (0.8, 1.5)}


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    rows = scored(SCHEMES, ATTACKS, texts=150, seeds=2, human=False)
    kept = {"delete-0.3": 0.7, "translate-pt": 0.1}
    return evaluate([dataclasses.replace(row, kept=kept.get(row.attack)) for row in rows])


@pytest.fixture
def sentences(evaluation: Evaluation, tmp_path: Path) -> list[str]:
    evaluation.save(tmp_path / "evaluation.json")
    return findings(read_run(tmp_path), paper_table("main"))


def test_the_best_scheme_of_each_attack_is_named_with_its_interval(sentences, evaluation):
    line = next(line for line in sentences if line.startswith("delete-0.3:"))
    best = evaluation.cell("dew-paper-2.5", "delete-0.3").at("matched", 0.01).found
    assert (
        f"dew-paper-2.5 finds most marked texts, {best.rate:.3f} [{best.low:.3f}, {best.high:.3f}] at 1%"
        in line
    )
    assert "synthid finds fewest" in line
    assert sum(line.startswith("unattacked:") for line in sentences) == 1


def test_schemes_within_the_interval_are_named_too(evaluation, tmp_path):
    """Of two equal rows, neither is called better."""
    twin = [
        dataclasses.replace(cell, scheme="twin")
        for cell in evaluation.cells
        if cell.scheme == "dew-paper-2.5"
    ]
    dataclasses.replace(evaluation, cells=(*evaluation.cells, *twin)).save(tmp_path / "evaluation.json")
    line = next(line for line in findings(read_run(tmp_path), None) if line.startswith("delete-0.3:"))
    assert "its interval overlaps those of twin" in line


def test_shifted_thresholds_and_changed_words_are_reported(sentences):
    assert any("pass an unattacked threshold more often" in line for line in sentences)
    assert (
        "share of marked texts' words replaced or removed: 0.30 by delete-0.3, 0.90 by translate-pt"
        in sentences
    )


def test_the_order_of_schemes_is_compared_with_the_paper(sentences):
    """All five schemes are in the paper's table, which has two languages of translation."""
    from scipy.stats import spearmanr

    line = next(line for line in sentences if line.startswith("rank correlation"))
    assert "(5)" in line
    assert line.count("(paper: translate-") == 4
    paper = paper_table("main")
    column = next(each for each in paper.columns if (each.attack, each.rate) == ("translate-de", 0.01))
    theirs = [paper.value(scheme, column).value for scheme in SCHEMES]
    expected = spearmanr(list(SCHEMES.values()), theirs).statistic  # ours follow the strengths
    assert f"translate-pt (paper: translate-de) TPR@1% {expected:+.2f}" in line


def test_no_findings_without_an_evaluation():
    assert findings(RunResults(None, ()), None) == []
