"""``dewmark evaluate`` on files of texts or scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dewmark.stats.key_test import one_sided_p
from dewmark_lab.evaluation.protocol import evaluate
from dewmark_lab.evaluation.results import scores_in


def z_values(mean: float, seed: int, size: int = 120) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 1.0, size=size)


def write_scored(path: Path, z: np.ndarray, **more: object) -> Path:
    rows = (
        {"id": i, "z": value, "score": -value, "p_value": float(one_sided_p(value)), "tokens_scored": 50 + i}
        for i, value in enumerate(z.tolist())
    )
    path.write_text(
        "".join(json.dumps({**row, "run": f"key {row['id'] % 3}", **more}) + "\n" for row in rows)
    )
    return path


def write_texts(path: Path, z: np.ndarray) -> Path:
    path.write_text(
        "".join(json.dumps({"text": f"text {i} z={value:.6f} ."}) + "\n" for i, value in enumerate(z))
    )
    return path


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    return write_scored(tmp_path / "marked.jsonl", z_values(3.0, 0), scheme="kgw")


@pytest.fixture
def unmarked(tmp_path: Path) -> Path:
    return write_scored(tmp_path / "unmarked.jsonl", z_values(0.0, 1))


def test_scored_rows(run, marked, unmarked):
    result = run("evaluate", "--positives", marked, "--negatives", unmarked, "--json")
    assert result.code == 0
    (cell,) = json.loads(result.out)["cells"]
    assert (cell["scheme"], cell["attack"], cell["texts"], cell["tokens"]) == ("kgw", "none", 120, 109.5)
    clean = cell["against"][0]
    threshold = np.sort(z_values(0.0, 1))[::-1][1]  # 1% of 120 is one text
    assert clean["at"][0]["thresholds"] == [threshold]
    assert clean["at"][0]["tpr"]["mean"] == np.mean(z_values(3.0, 0) > threshold)
    assert not clean["held_out"]


def test_the_table_and_its_notes(run, marked, unmarked, tmp_path):
    shifted = write_scored(tmp_path / "shifted.jsonl", z_values(2.0, 2))
    people = write_scored(tmp_path / "people.jsonl", z_values(0.0, 3))
    result = run(
        "evaluate", "--positives", marked, "--positives", f"translate={shifted}",
        "--negatives", unmarked, "--human", people,
    )  # fmt: skip
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].split("  ")[0].strip() == "marked texts"
    assert [line.split("  ")[0].strip() for line in lines[1:7]] == [
        "unattacked (120)", "", "", "translate (120)", "", "",
    ]  # fmt: skip
    assert "clean" in lines[4]
    assert lines[4].endswith("–, – ")  # no unmarked text went through it
    assert "No negatives went through translate" in result.out
    assert "One seed only: " in result.out


def test_runs_give_each_other_thresholds(run, marked, unmarked):
    result = run("evaluate", "--positives", marked, "--negatives", unmarked, "--seeds", "run", "--json")
    (cell,) = json.loads(result.out)["cells"]
    assert cell["seeds"] == [0, 1, 2]
    assert cell["against"][0]["held_out"]
    assert len(cell["against"][0]["at"][0]["thresholds"]) == 3


def test_texts_are_scored_with_a_key(run, host, numbers, key_file, tmp_path):
    marked = write_texts(tmp_path / "a.jsonl", z_values(3.0, 0))
    unmarked = write_texts(tmp_path / "b.jsonl", z_values(0.0, 1))
    result = run(
        "evaluate", "--positives", marked, "--negatives", unmarked, "--key", key_file, "--batch-size", 50,
        "--fpr", "0.05", "--json", "-q",
    )  # fmt: skip
    assert result.code == 0
    (cell,) = json.loads(result.out)["cells"]
    assert (cell["scheme"], cell["texts"]) == ("dew", 120)
    share = cell["shares"][-1]
    assert [each["rate"] for each in cell["shares"]] == [1e-4, 0.05]
    assert share["found"]["hits"] == int((z_values(3.0, 0) > 1.6448536).sum())
    assert share["unmarked"]["hits"] == int((z_values(0.0, 1) > 1.6448536).sum())


def test_a_report(run, marked, unmarked, tmp_path):
    out = tmp_path / "report"
    result = run("evaluate", "--positives", marked, "--negatives", unmarked, "--out", out, "--json")
    assert f"wrote {out / 'report.md'}" in result.err
    written = {file.name for file in out.iterdir()}
    assert written == {"scores.jsonl", "evaluation.json", "report.md", "figures", "results.csv"}
    assert str(tmp_path) not in (out / "report.md").read_text()  # files by name: a report travels
    again = run("evaluate", "--scores", out / "scores.jsonl", "--json")
    found = json.loads(again.out)
    found.pop("version")
    assert found == json.loads((out / "evaluation.json").read_text())
    assert found == json.loads(json.dumps(evaluate(scores_in(out / "scores.jsonl")).to_dict()))


def test_bad_options(run, marked, unmarked, tmp_path, key_file):
    assert "give --positives FILE" in run("evaluate", "--positives", marked).error
    assert "give --positives FILE" in run("evaluate", "--negatives", unmarked).error
    both = ("--positives", marked, "--negatives", unmarked)
    assert "--fpr needs positive numbers" in run("evaluate", *both, "--fpr", "one").error
    assert "rates must lie in (0, 1)" in run("evaluate", *both, "--fpr", "1.5").error
    assert 'has no "lot", which --seeds names' in run("evaluate", *both, "--seeds", "lot").error
    assert "line 1 has no depth" in run("evaluate", *both, "--field", "depth").error
    assert "--scores has all texts" in run("evaluate", *both, "--scores", marked).error
    assert "line 1: a scored text needs the field" in run("evaluate", "--scores", marked).error
    texts = write_texts(tmp_path / "texts.jsonl", z_values(0.0, 0))
    assert "add --key FILE" in run("evaluate", "--positives", marked, "--negatives", texts).error
    assert "expected FILE or ATTACK=FILE" in run("evaluate", "--positives", "=x", "--negatives", texts).error
    (tmp_path / "empty.jsonl").write_text("")
    empty = run("evaluate", "--positives", marked, "--negatives", tmp_path / "empty.jsonl")
    assert "empty.jsonl is empty" in empty.error
    broken = write_scored(tmp_path / "broken.jsonl", z_values(0.0, 0))
    broken.write_text('{"z": null}\n' + broken.read_text())
    assert "z must be a number, got None" in run("evaluate", "--positives", marked, "--human", broken).error


def test_a_row_without_text_cannot_be_scored(run, host, numbers, marked, key_file):
    result = run("evaluate", "--positives", marked, "--negatives", marked, "--key", key_file, "-q")
    assert 'line 1 has no "text"' in result.error
