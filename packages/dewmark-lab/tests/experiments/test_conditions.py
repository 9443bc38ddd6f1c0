"""A recipe with conditions, chat requests and texts translated back, on a tiny model."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from tests.experiments.conftest import rows

from dewmark.cli.app import main

RECIPE = """
title: Two conditions
stages: [generate, attack, score, quality, divergence, evaluate, report]
prompts: requests
chat: true
decoding: {max_new_tokens: 16, min_new_tokens: 16, temperature: 0.7, top_p: 0.9}
conditions:
  chat: {}
  openings: {prompts: openings, chat: false, decoding: {temperature: 1.0, top_p: 1.0}}
prompt_tokens: 5
seeds: 2
texts: 4
schemes: {kgw: {scheme: kgw}}
attacks:
  half: {attack: delete, r: 0.5}
  brought-back: {attack: delete, r: 0.5, translate_back: true}
options: {divergence: {texts: 2, keys: 2, steps: 4}}
profiles: {local: {}}
"""


def _translated(texts, **_):
    """Every other text comes back shouted; the others cannot be translated."""
    return [text.upper() + " house" if i % 2 else None for i, text in enumerate(texts)]


@pytest.fixture(scope="module")
def finished(tiny_chat_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conditions")
    recipe = folder / "two.yaml"
    recipe.write_text(RECIPE + f"host: {tiny_chat_folder}\njudge: {tiny_chat_folder}\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dewmark_lab.experiments.text_stages.translate_back", _translated)
        patch.setattr(
            "dewmark_lab.reports.experiment_report._draw", lambda *_: []
        )  # takes most of a tiny run
        assert main(["reproduce", str(recipe), "--out", str(folder / "out"), "--batch-size", "4", "-q"]) == 0
    return folder / "out"


def test_each_condition_has_its_prompts_and_decoding(finished):
    made = [
        (json.loads((folder / "inputs.json").read_text(encoding="utf-8")), rows(folder / "rows.jsonl"))
        for folder in (finished / "generate").iterdir()
    ]
    assert len(made) == 2 * 2 * 2  # conditions, seeds, marked and unmarked
    for inputs, texts in made:
        chat = inputs.get("chat", False)
        assert inputs["decoding"]["temperature"] == (0.7 if chat else 1.0)
        assert all(("request" in row) == chat for row in texts)
        assert all(row["prompt"].startswith("<user> ") == chat for row in texts)
        assert all(row["prompt"] == f"<user> {row['request']} <assistant>" for row in texts if chat)


def test_texts_that_were_translated_back_count_two_attempts(finished):
    """p = 2 min(p₁, p₂) where a translation exists, the plain p-value where not."""
    from dewmark.opening import load_scheme
    from dewmark_lab.experiments.recipe import experiment_key

    scores = rows(finished / "chat" / "scores.jsonl")
    table = {(row["attack"], row["seed"], row["kind"], row["id"]): row for row in scores}
    texts = {}
    for file in (finished / "back").glob("*/rows.jsonl"):
        texts |= {row["text"]: row["translated"] for row in rows(file)}
    bound = load_scheme(experiment_key(0), host=str(_host(finished)), scheme="kgw")
    again = {text: bound.detect(text).p_value for text, translated in texts.items() if translated}
    pairs = [
        (row["p_value"], table["half", *place[1:]]["p_value"])
        for place, row in table.items()
        if place[0] == "brought-back" and place[1] == 0
    ]
    assert len(pairs) == 8
    for i, (p, plain) in enumerate(pairs):
        if i % 2:
            assert any(p == pytest.approx(min(1.0, 2 * min(plain, other))) for other in again.values())
        else:
            assert p == plain


def test_the_table_puts_conditions_side_by_side(finished):
    with (finished / "conditions.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert {(line["condition"], line["attack"]) for line in lines} == {
        (condition, attack)
        for condition in ("chat", "openings")
        for attack in ("none", "half", "brought-back")
    }
    evaluation = json.loads((finished / "openings" / "evaluation.json").read_text(encoding="utf-8"))
    cell = next(cell for cell in evaluation["cells"] if cell["attack"] == "half")
    shares = {share["rate"]: share for share in cell["shares"]}
    expected = "{:.3f} / {:.3f} ({:.3f})".format(
        shares[0.01]["found"]["rate"], shares[1e-4]["found"]["rate"], shares[0.01]["unmarked"]["rate"]
    )
    page = (finished / "conditions.md").read_text(encoding="utf-8")
    assert f" | {expected} | " in page.split("## openings")[1]
    clean = next(line for line in lines if (line["condition"], line["attack"]) == ("chat", "none"))
    assert float(clean["divergence"]) > 0.0  # KGW's bias moves every step
    assert float(clean["distinct_content_low"]) <= float(clean["distinct_content"])
    assert "distinct content words" in page


def test_a_dry_run_counts_the_texts_of_all_conditions(finished, tiny_chat_folder, capsys, tmp_path):
    recipe = finished.parent / "two.yaml"
    command = ["reproduce", str(recipe), "--dry-run", "--json", "-q", "--out", str(tmp_path / "none")]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    counts = {stage["stage"]: stage["texts"] for stage in found["stages"]}
    # 2 conditions x 2 seeds x (marked, unmarked) x 4 texts; the two attacks share their texts
    assert counts == {"generate": 32, "attack": 32, "score": 96}
    assert found["conditions"] == ["chat", "openings"]
    assert main([*command, "--conditions", "chat"]) == 0
    assert json.loads(capsys.readouterr().out)["stages"][0]["texts"] == 16


def _host(finished: Path) -> Path:
    return Path(json.loads((finished / "chat" / "configuration.json").read_text(encoding="utf-8"))["judge"])
