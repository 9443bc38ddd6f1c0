"""``dewmark evaluate`` on files of texts or scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dewmark.stats.key_test import one_sided_p
from dewmark_lab.evaluation.protocol import evaluate
from dewmark_lab.evaluation.results import Evaluation, read_scores


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


def test_another_field(run, marked, unmarked):
    result = run("evaluate", "--positives", marked, "--negatives", unmarked, "--field", "score", "--json")
    (cell,) = json.loads(result.out)["cells"]
    assert cell["against"][0]["auroc"]["mean"] < 0.1  # the opposite of z


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
    assert f"wrote {out / 'report.html'}" in result.err
    written = {file.name for file in out.iterdir()}
    assert written == {
        "scores.jsonl", "evaluation.json", "report.md", "report.html", "table.tex", "table.csv", "figures",
        "results.csv",
    }  # fmt: skip
    assert str(tmp_path) not in (out / "report.md").read_text()  # files by name: a report travels
    again = run("evaluate", "--scores", out / "scores.jsonl", "--json")
    found = Evaluation.from_dict(json.loads(again.out))
    assert found == Evaluation.load(out / "evaluation.json") == evaluate(read_scores(out / "scores.jsonl"))


def test_bad_options(run, marked, unmarked, tmp_path, key_file):
    assert "give --positives FILE" in run("evaluate", "--positives", marked).error
    assert "give --positives FILE" in run("evaluate", "--negatives", unmarked).error
    both = ("--positives", marked, "--negatives", unmarked)
    assert "--fpr needs rates" in run("evaluate", *both, "--fpr", "one").error
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


def test_wording_is_compared_by_prompt_and_seed(run, tmp_path):
    def rows(name: str, texts: list[str]) -> Path:
        lines = [
            {"z": float(i), "p_value": 0.5, "text": text, "prompt": f"p{i}", "seed": i}
            for i, text in enumerate(texts)
        ]
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return tmp_path / name

    plain = ["stone river bridge harbour", "lantern window meadow orchard", "garden ladder hammer kitchen"]
    dull = [" ".join([text.split()[0]] * 2 + text.split()[2:]) for text in plain]  # one word twice
    result = run("evaluate", "--positives", rows("a.jsonl", dull), "--negatives", rows("b.jsonl", plain))
    assert "distinct words of 50 -0.250 (-0.250 to -0.250)" in result.out
    assert "doubled neighbours per 100 words +25.000 (+25.000 to +25.000)" in result.out
    found = run(
        "evaluate", "--positives", tmp_path / "a.jsonl", "--negatives", tmp_path / "b.jsonl", "--json"
    )
    worded = json.loads(found.out)["wording"]
    assert (worded["doubled"]["value"], worded["distinct"]["value"]) == (25.0, -0.25)
    assert worded["unlisted"]["value"] == 0.0


def test_translating_back_needs_texts_to_score(run, marked, unmarked):
    result = run("evaluate", "--positives", marked, "--negatives", unmarked, "--translate-back")
    assert "--translate-back scores texts" in result.error
