"""A whole run on a tiny model: its files, and what it shares with other runs."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from pathlib import Path

import pytest
from tests.experiments.conftest import NO_REPORT, command, rows, tree

from dewmark.cli.app import main
from dewmark.detect import score_text


@pytest.fixture(scope="module")
def finished(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of an uninterrupted run, with its report."""
    out = tmp_path_factory.mktemp("run") / "out"
    assert main(command(tiny_folder, out)) == 0
    return out


def test_every_kind_attack_and_seed_is_scored(finished):
    scores = rows(finished / "scores.jsonl")
    groups = {(row["attack"], row["seed"], row["kind"]) for row in scores}
    assert groups == {
        (attack, seed, kind)
        for attack in ("none", "delete-0.3")
        for seed in (0, 1)
        for kind in ("marked", "unmarked")
    }
    assert len(scores) == 4 * len(groups)
    assert {row["scheme"] for row in scores} == {"kgw"}
    evaluation = json.loads((finished / "evaluation.json").read_text(encoding="utf-8"))
    assert [(cell["scheme"], cell["attack"]) for cell in evaluation["cells"]] == [
        ("kgw", "none"),
        ("kgw", "delete-0.3"),
    ]


def test_one_key_for_all_seeds(tiny_folder, finished, tmp_path):
    from dewmark_lab.experiments.recipe import experiment_key

    out, work = tmp_path / "out", tmp_path / "work"
    shutil.copytree(finished, work)  # its seeds have keys of their own
    more = ("--keys", "one", "--stages", "generate", "--work", str(work))
    assert main(command(tiny_folder, out, *more)) == 0
    used = {
        (inputs["seed"], inputs["scheme"]["key"])
        for file in (work / "generate").glob("*/inputs.json")
        if (inputs := json.loads(file.read_text(encoding="utf-8")))["scheme"]
    }
    first, second = (experiment_key(number).fingerprint for number in (0, 1))
    assert used == {(0, first), (1, second), (1, first)}


def test_chat_requests_are_answered_in_the_template(tiny_chat_folder, tmp_path):
    out = tmp_path / "out"
    more = ("--stages", "generate,quality", "--seeds", "1", "--attacks", "none")
    assert main(command(tiny_chat_folder, out, *more, recipe="chat")) == 0
    texts = [row for file in (out / "generate").glob("*/rows.jsonl") for row in rows(file)]
    assert len(texts) == 2 * 4  # marked and unmarked
    assert all(row["prompt"] == f"<user> {row['request']} <assistant>" for row in texts)
    judged = [row for row in rows(out / "quality.jsonl") if row["kind"] == "marked"]
    assert all(row["paired"].keys() == {"distinct_content", "unlisted", "repetition"} for row in judged)


def test_scores_agree_with_the_library(finished, tiny_folder):
    from dewmark.opening import load_scheme
    from dewmark_lab.experiments.recipe import experiment_key

    settings = {"prefix": 3, "gamma": 0.5, "delta": 2.0, "hashing": "left"}
    bound = load_scheme(experiment_key(1), host=str(tiny_folder), scheme="kgw", settings=settings)
    texts = {
        row["id"]: row["text"]
        for file in (finished / "generate").glob("*/rows.jsonl")
        for row in rows(file)
        if row["scheme"] == "kgw" and row["seed"] >= 1_000_000  # seed 1
    }
    scored = [
        row
        for row in rows(finished / "scores.jsonl")
        if (row["attack"], row["seed"], row["kind"]) == ("none", 1, "marked")
    ]
    assert len(scored) == 4
    for row in scored:
        found = score_text(bound, texts[row["id"]])
        assert (row["score"], row["p_value"]) == (found.z, found.p_value)


def test_no_file_contains_a_key(finished):
    for seed in (0, 1):
        secret = hashlib.sha256(f"dewmark reproduce, seed {seed}".encode()).hexdigest().encode()
        assert not [name for name, data in tree(finished).items() if secret in data]


def test_a_second_run_loads_no_model_and_changes_nothing(finished, tiny_folder, monkeypatch):
    before = tree(finished)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a finished run loads no model")

    monkeypatch.setattr("dewmark.hosts.transformers.model.load_host", fail)
    assert main(command(tiny_folder, finished)) == 0
    assert tree(finished) == before


def test_tables_share_texts_through_the_work_folder(finished, tiny_folder, tmp_path):
    work = tmp_path / "work"
    shutil.copytree(finished, work)
    more = ["--schemes", "kgw,unigram", "--work", str(work), "--stages", "generate,attack"]
    assert main([*command(tiny_folder, tmp_path / "other"), *more]) == 0
    new = set(tree(work)) - set(tree(finished))
    texts = [name for name in new if name.startswith("generate/") and name.endswith("rows.jsonl")]
    attacked = [name for name in new if name.startswith("attack/") and name.endswith("rows.jsonl")]
    assert (len(texts), len(attacked)) == (2, 2)  # unigram's two seeds


def test_stages_can_run_separately(finished, tiny_folder, tmp_path):
    out = tmp_path / "out"
    assert main(command(tiny_folder, out, "--stages", "generate,attack")) == 0
    assert not (out / "scores.jsonl").exists()
    assert main(command(tiny_folder, out, "--stages", "score,quality,evaluate")) == 0
    assert tree(out) == tree(finished, report=False)


def test_a_missing_stage_is_named(tiny_folder, tmp_path, capsys):
    assert main(command(tiny_folder, tmp_path / "out", "--stages", "score")) == 2
    assert "run stage 'generate' first" in capsys.readouterr().err


class Pickling:
    """A runner whose jobs and worker travel as between processes (`dewmark.batch` tests real ones)."""

    def map(self, jobs, open_worker):
        work = pickle.loads(pickle.dumps(open_worker))()
        for index, job in reversed(list(enumerate(jobs))):
            yield index, pickle.loads(pickle.dumps(work(pickle.loads(pickle.dumps(job)))))

    def close(self):
        pass


def test_parallel_workers_write_the_same_bytes(finished, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("dewmark_lab.experiments.workers.open_runner", lambda *_, **__: Pickling())
    out = tmp_path / "out"
    assert main(command(tiny_folder, out, *NO_REPORT, "--jobs", "2")) == 0
    assert tree(out) == tree(finished, report=False)


def test_two_machines_share_the_work_by_copying_the_folder(tiny_folder, tmp_path, monkeypatch):
    """Each machine scores one scheme; together they make everything that one machine makes."""
    here, there, alone = tmp_path / "here" / "work", tmp_path / "there" / "elsewhere", tmp_path / "alone"
    both = ["--schemes", "kgw,unigram", "--seeds", "1"]
    assert main([*command(tiny_folder, alone, *NO_REPORT), *both]) == 0

    def run(host: Path, work: Path, *more: str) -> int:
        return main([*command(host, tmp_path / "out"), *both, "--work", str(work), *more])

    assert run(tiny_folder, here, "--stages", "generate,attack") == 0
    moved = tmp_path / "there" / "host"
    shutil.copytree(tiny_folder, moved)
    shutil.copytree(here, there)
    assert run(tiny_folder, here, "--stages", "score,quality", "--schemes", "kgw") == 0
    assert run(moved, there, "--stages", "score,quality", "--schemes", "unigram") == 0
    shutil.copytree(there, here, dirs_exist_ok=True)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("nothing is missing")

    monkeypatch.setattr("dewmark.hosts.transformers.model.load_host", fail)
    assert run(tiny_folder, here, "--stages", "score,quality,evaluate") == 0
    outputs = ("generate/", "attack/", "score/", "quality/")
    assert {name: data for name, data in tree(alone).items() if name.startswith(outputs)} == tree(here)
    for name in ("scores.jsonl", "evaluation.json"):
        assert (tmp_path / "out" / name).read_bytes() == (alone / name).read_bytes()


def test_human_texts_are_scored_under_every_key(tiny_folder, tmp_path):
    human = tmp_path / "human.jsonl"
    with human.open("w", encoding="utf-8") as stream:
        for i in range(3):
            stream.write(json.dumps({"text": f"{i} the river and the bridge " * 10}) + "\n")
    out = tmp_path / "out"
    more = ("--human", f"us={human}", "--stages", "generate,attack,score")
    assert main(command(tiny_folder, out, *more)) == 0
    scored = [row for row in rows(out / "scores.jsonl") if row["kind"] == "human"]
    assert {(row["attack"], row["seed"]) for row in scored} == {
        (attack, seed) for attack in ("none", "delete-0.3") for seed in (0, 1)
    }
    assert {row["id"] for row in scored} == {"us:0", "us:1", "us:2"}
    assert all(row["tokens"] <= 12 for row in scored)


def test_a_table_with_human_negatives_needs_a_file(tmp_path, capsys):
    assert main(["reproduce", "human-negatives", "--out", str(tmp_path)]) == 2
    assert "--human NAME=FILE.jsonl" in capsys.readouterr().err


def test_schemes_with_encoders_and_with_records(tiny_folder, tmp_path, bag_encoder):
    """Two tests of a mark share its texts; WaterPool's records are rebuilt from its texts."""
    chosen = ["--schemes", "dew-paper-2.0,dew-paper-2.0-key,waterpool", "--tokens", "40", "--seeds", "1"]
    out, again = tmp_path / "out", tmp_path / "again"
    assert main([*command(tiny_folder, out), *chosen, "--stages", "generate,attack,score"]) == 0
    texts = list((out / "generate").glob("*/rows.jsonl"))
    assert len(texts) == 3  # unmarked, DEW, WaterPool
    shutil.copytree(out / "generate", again / "generate")  # another process, which wrote no texts
    assert main([*command(tiny_folder, again), *chosen, "--stages", "attack,score"]) == 0
    assert tree(out) == tree(again)
    scores = rows(out / "scores.jsonl")
    clean = [row for row in scores if row["attack"] == "none" and row["kind"] == "marked"]
    pooled = [row["p_value"] for row in clean if row["scheme"] == "waterpool"]
    assert max(pooled) < 0.01
    paper, key = (
        [row["score"] for row in clean if row["scheme"] == f"dew-paper-2.0{test}"] for test in ("", "-key")
    )
    assert paper != key
