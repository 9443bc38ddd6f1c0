from __future__ import annotations

import json

import pytest
from tests.lab.experiments.conftest import tree

from dewmark.cli.app import main

RECIPE = """
base: stealing
profiles:
  local:
    schemes: [kgw, unigram]
    options: {steal: {texts: 5, attacks: {spoof: {min_count: 1, batch_size: 3}, idle: {strength: 0.0}}}}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "theft.yaml").write_text(RECIPE, encoding="utf-8")
    with (folder / "people.jsonl").open("w", encoding="utf-8") as stream:
        for i in range(6):
            words = " ".join(("the", "sea", "and", "old", "ship", "rain")[(i + j) % 6] for j in range(40))
            stream.write(json.dumps({"text": words}) + "\n")
    return folder


def command(recipe, host, out):
    words = (
        f"reproduce {recipe / 'theft.yaml'} --host {host} --seeds 1 --texts 8 --tokens 16 --batch-size 4 -q"
    )
    return [*words.split(), "--human", f"us={recipe / 'people.jsonl'}", "--out", str(out)]


def test_forged_texts_are_judged_beside_genuine_and_human_ones(recipe, tiny_folder, tmp_path):
    out = tmp_path / "out"
    assert main(command(recipe, tiny_folder, out)) == 0
    rows = [json.loads(line) for line in (out / "scores.jsonl").read_text(encoding="utf-8").splitlines()]
    counts: dict = {}
    for row in rows:
        counts[row["scheme"], row["kind"]] = counts.get((row["scheme"], row["kind"]), 0) + 1
    assert counts == {
        (f"{victim} {label}", kind): number
        for victim in ("kgw", "unigram")
        for label in ("genuine", "spoof", "idle")
        for kind, number in (("marked", 5), ("human", 6))
    }
    said = [json.loads(line) for line in (out / "stealing.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["scheme"], row["attack"]) for row in said] == [
        (victim, attack) for victim in ("kgw", "unigram") for attack in ("spoof", "idle")
    ]
    assert all(row["observed"] == 8 for row in said)
    before = tree(out)
    assert main(command(recipe, tiny_folder, out)) == 0
    assert tree(out) == before
