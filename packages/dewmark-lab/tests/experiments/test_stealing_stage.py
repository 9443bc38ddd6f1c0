"""The steal stage on a tiny host: forged texts are scored against genuine and human-written ones."""

from __future__ import annotations

import json
from collections import Counter

from tests.experiments.conftest import rows, tree

from dewmark.cli.app import main

RECIPE = """
base: stealing
profiles:
  local:
    schemes: [kgw, unigram]
    options:
      steal: {texts: 5, attacks: {spoof: {min_count: 1, batch_size: 3, strength: 2.0}, idle: {strength: 0.0}}}
"""


def test_forged_texts_are_scored_against_genuine_and_human_ones(tiny_folder, tmp_path):
    recipe, human, out = tmp_path / "theft.yaml", tmp_path / "human.jsonl", tmp_path / "out"
    recipe.write_text(RECIPE, encoding="utf-8")
    with human.open("w", encoding="utf-8") as stream:
        for i in range(6):
            words = " ".join(("the", "sea", "and", "old", "ship", "rain")[(i + j) % 6] for j in range(40))
            stream.write(json.dumps({"text": words}) + "\n")
    options = f"--host {tiny_folder} --seeds 1 --texts 8 --tokens 16 --batch-size 4 --human us={human}"
    command = ["reproduce", str(recipe), *options.split(), "--out", str(out), "-q"]
    assert main(command) == 0
    assert Counter((row["scheme"], row["kind"]) for row in rows(out / "scores.jsonl")) == {
        (f"{victim} {label}", kind): number
        for victim in ("kgw", "unigram")
        for label in ("genuine", "spoof", "idle")
        for kind, number in (("marked", 5), ("human", 6))
    }
    reports = rows(out / "stealing.jsonl")
    assert [(row["scheme"], row["attack"]) for row in reports] == [
        (victim, attack) for victim in ("kgw", "unigram") for attack in ("spoof", "idle")
    ]
    assert all(row["observed"] == 8 for row in reports)
    before = tree(out)
    assert main([*command, "--stages", "generate,steal,evaluate"]) == 0
    assert tree(out) == before
