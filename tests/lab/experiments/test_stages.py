"""A whole run on a tiny model: what it leaves, what it makes again, and what a kill does to it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.lab.experiments.conftest import options, tree

from dewmark.cli.app import main

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def finished(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody disturbed."""
    out = tmp_path_factory.mktemp("run") / "out"
    assert main(options(tiny_folder, out)) == 0
    return out


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_scores_are_those_of_every_kind_attack_and_seed(finished):
    scores = rows(finished / "scores.jsonl")
    places = {(row["attack"], row["seed"], row["kind"]) for row in scores}
    assert places == {
        (attack, seed, kind)
        for attack in ("none", "delete-0.3")
        for seed in (0, 1)
        for kind in ("marked", "unmarked")
    }
    assert len(scores) == 4 * len(places)
    assert {row["scheme"] for row in scores} == {"kgw"}
    evaluation = json.loads((finished / "evaluation.json").read_text(encoding="utf-8"))
    assert [(cell["scheme"], cell["attack"]) for cell in evaluation["cells"]] == [
        ("kgw", "none"),
        ("kgw", "delete-0.3"),
    ]


def test_scores_agree_with_the_library(finished, tiny_folder):
    from dewmark.lab.experiments.recipe import experiment_key
    from dewmark.watermark import load_scheme

    settings = {"prefix": 3, "gamma": 0.5, "delta": 2.0, "hashing": "left"}
    bound = load_scheme("kgw", key=experiment_key(1), settings=settings, host=str(tiny_folder))
    texts = {
        row["id"]: row["text"]
        for file in (finished / "generate").glob("*/rows.jsonl")
        for row in rows(file)
        if row["scheme"] == "kgw" and row["seed"] >= 1_000_000  # those of seed 1
    }
    scored = [
        row
        for row in rows(finished / "scores.jsonl")
        if (row["attack"], row["seed"], row["kind"]) == ("none", 1, "marked")
    ]
    assert len(scored) == 4
    for row in scored:
        found = bound.detect(texts[row["id"]])
        assert (row["score"], row["p_value"]) == (found.z, found.p_value)


def test_no_file_holds_a_key(finished):
    import hashlib

    for seed in (0, 1):
        secret = hashlib.sha256(f"dewmark reproduce, seed {seed}".encode()).hexdigest().encode()
        assert not [name for name, data in tree(finished).items() if secret in data]


def test_a_second_run_makes_nothing_again(finished, tiny_folder, monkeypatch):
    before = tree(finished)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a finished run loads no model")

    monkeypatch.setattr("dewmark.hosts.transformers.model.load_host", refuse)
    assert main(options(tiny_folder, finished)) == 0
    assert tree(finished) == before


def test_other_schemes_share_unmarked_texts_and_other_columns_share_texts(finished, tiny_folder, tmp_path):
    """A second table on the same work folder writes only what it alone has."""
    work = tmp_path / "work"
    shutil.copytree(finished, work)
    more = ["--schemes", "kgw,unigram", "--work", str(work), "--stages", "generate,attack"]
    assert main([*options(tiny_folder, tmp_path / "other"), *more]) == 0
    new = set(tree(work)) - set(tree(finished))
    texts = [name for name in new if name.startswith("generate/") and name.endswith("rows.jsonl")]
    attacked = [name for name in new if name.startswith("attack/") and name.endswith("rows.jsonl")]
    assert (len(texts), len(attacked)) == (2, 2)  # unigram's two seeds


def test_more_texts_extend_what_is_there(tiny_folder, tmp_path):
    few, many = tmp_path / "few", tmp_path / "many"
    stage = ["--stages", "generate"]
    assert main([*options(tiny_folder, few, *stage), "--texts", "2"]) == 0
    first = {name: data for name, data in tree(few).items() if name.endswith("rows.jsonl")}
    assert main(options(tiny_folder, few, *stage)) == 0
    assert main(options(tiny_folder, many, *stage)) == 0
    assert tree(few) == tree(many)
    assert all(tree(few)[name].startswith(data) for name, data in first.items())


def test_stages_can_run_apart(finished, tiny_folder, tmp_path):
    out = tmp_path / "out"
    assert main(options(tiny_folder, out, "--stages", "generate,attack")) == 0
    assert not (out / "scores.jsonl").exists()
    assert main(options(tiny_folder, out, "--stages", "score,quality,evaluate,report")) == 0
    assert tree(out) == tree(finished)


def test_a_missing_stage_is_named(tiny_folder, tmp_path, capsys):
    assert main(options(tiny_folder, tmp_path / "out", "--stages", "score")) == 2
    assert "run the stage 'generate' first" in capsys.readouterr().err


def test_processes_side_by_side_leave_the_same_bytes(finished, tiny_folder, tmp_path):
    out = tmp_path / "out"
    assert main(options(tiny_folder, out, "--jobs", "2")) == 0
    assert tree(out) == tree(finished)


def test_killed_in_every_stage_and_started_again_leaves_the_same_bytes(finished, tiny_folder, tmp_path):
    """8 batches are written, 4 attacked, 16 scored, 8 judged: batches 3, 10, 19 and 32 are torn apart."""
    out = tmp_path / "out"
    command = [sys.executable, str(HERE / "mortal.py"), "3,8,10,14", *options(tiny_folder, out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert tree(out) == tree(finished)


def test_human_texts_are_scored_under_every_key(tiny_folder, tmp_path):
    people = tmp_path / "people.jsonl"
    with people.open("w", encoding="utf-8") as stream:
        for i in range(3):
            stream.write(json.dumps({"text": f"{i} the river and the bridge " * 10}) + "\n")
    out = tmp_path / "out"
    more = ("--human", f"us={people}", "--stages", "generate,attack,score", "--seeds", "2")
    assert main(options(tiny_folder, out, *more)) == 0
    human = [row for row in rows(out / "scores.jsonl") if row["kind"] == "human"]
    assert {(row["attack"], row["seed"]) for row in human} == {
        (attack, seed) for attack in ("none", "delete-0.3") for seed in (0, 1)
    }
    assert {row["id"] for row in human} == {"us:0", "us:1", "us:2"}
    assert all(row["tokens"] <= 12 for row in human)


def test_human_negatives_need_a_file(tiny_folder, tmp_path, capsys):
    assert main(["reproduce", "human-negatives", "--out", str(tmp_path)]) == 2
    assert "--human NAME=FILE.jsonl" in capsys.readouterr().err


def test_schemes_with_encoders_and_with_records(tiny_folder, tmp_path, bag_encoder):
    """Two tests of one mark share its texts; a pool of outputs is filled from the texts, whoever scores."""
    chosen = ["--schemes", "dew-paper-2.0,dew-paper-2.0-key,waterpool", "--tokens", "40"]
    stages = ["--stages", "generate,attack,score"]
    out, again = tmp_path / "out", tmp_path / "again"
    assert main([*options(tiny_folder, out), *chosen, *stages]) == 0
    texts = list((out / "generate").glob("*/rows.jsonl"))
    assert len(texts) == 2 * 3  # unmarked, DEW, WaterPool
    assert main([*options(tiny_folder, again), *chosen, "--stages", "generate"]) == 0
    assert main([*options(tiny_folder, again), *chosen, "--stages", "attack,score"]) == 0
    assert tree(out) == tree(again)
    scores = rows(out / "scores.jsonl")
    clean = [row for row in scores if row["attack"] == "none" and row["kind"] == "marked"]
    pooled = [row["p_value"] for row in clean if row["scheme"] == "waterpool"]
    assert max(pooled) < 0.01
    paper, key = (
        [row["score"] for row in clean if row["scheme"] == f"dew-paper-2.0{test}"] for test in ("", "-key")
    )
    assert paper != key
