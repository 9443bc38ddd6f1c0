"""The score stage: tests of one mark side by side, texts cut short, two machines, kills between tests."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.lab.experiments.conftest import options, tree

from dewmark.cli.app import main
from dewmark.lab.experiments.outputs import StageOutput
from dewmark.lab.experiments.recipe import SchemeEntry, experiment_key, load_recipe
from dewmark.lab.experiments.scoring_stage import PendingScores, ScoreTexts
from dewmark.lab.experiments.workers import LoadedModels

HERE = Path(__file__).parent


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def two_tests(host: Path) -> tuple[SchemeEntry, dict[str, StageOutput]]:
    """DEW with windows of text, and a cell for each of two tests."""
    settings = {"units": "token", "sampler": "bias", "context_encoding": "window", "whiten_contexts": False}
    entry = SchemeEntry("dew", "dew", str(host), settings)
    return entry, {test: StageOutput("score", {"test": test}) for test in ("key", "gaussian")}


@pytest.fixture
def written(tmp_path: Path) -> StageOutput:
    source = StageOutput("generate", {"texts": "by hand"})
    target = source.rows(tmp_path)
    line = "the river ran under the old bridge and people of the city came over it to walk home "
    texts = [line[4 * i :] + line[: 4 * i] for i in range(5)] + [" "]
    with target.missing_batches(6, size=6) as batches:
        for batch in batches:
            target.append([{"id": str(i), "text": texts[i], "seed": i} for i in batch])
    return source


def test_two_tests_of_one_mark_encode_a_text_once(tiny_folder, tmp_path, written, bag_encoder, monkeypatch):
    entry, cells = two_tests(tiny_folder)
    encoded: list[str] = []
    whole = type(bag_encoder).encode

    def counted(self, texts):
        encoded.extend(texts)
        return whole(self, texts)

    monkeypatch.setattr(type(bag_encoder), "encode", counted)
    source = written.rows(tmp_path)
    models, own_texts = LoadedModels("cpu"), (source, 6)

    def scored(targets: dict[str, StageOutput], folder: str) -> int:
        pending = PendingScores(
            source, {test: cell.rows(tmp_path / folder) for test, cell in targets.items()}, 6
        )
        models._scheme = None  # as a new worker: nothing remembered
        encoded.clear()
        ScoreTexts(6, entry, 0, own_texts, (pending,), 2).run(models, lambda _: None)
        return len(encoded)

    alone = [scored({test: cell}, "alone") for test, cell in cells.items()]
    together = scored(cells, "together")
    assert together == alone[0] == alone[1] > 0
    for cell in cells.values():
        same = [cell.rows(tmp_path / folder).read(6) for folder in ("alone", "together")]
        assert same[0] == same[1]
        assert same[0][5] == {"id": "5", "score": 0.0, "p_value": 1.0, "tokens": 0}


def test_a_test_that_is_behind_catches_up(tiny_folder, tmp_path, written, bag_encoder):
    """A kill between two tests of a batch leaves one ahead; both end up as if nothing had happened."""
    entry, cells = two_tests(tiny_folder)
    source = written.rows(tmp_path)

    def score(folder: str) -> dict[str, bytes]:
        targets = {test: cell.rows(tmp_path / folder) for test, cell in cells.items()}
        ScoreTexts(6, entry, 0, (source, 6), (PendingScores(source, targets, 6),), 2).run(
            LoadedModels("cpu"), lambda _: None
        )
        return {test: target.path.read_bytes() for test, target in targets.items()}

    expected = score("whole")
    for test, kept in (("key", 2), ("gaussian", 5)):  # the second is torn within a batch
        behind = cells[test].rows(tmp_path / "whole").path
        behind.write_bytes(b"".join(line + b"\n" for line in expected[test].split(b"\n")[:kept]) + b'{"id')
        assert score("whole") == expected


def test_texts_cut_short_are_scored_beside_the_whole_ones(tiny_folder, tmp_path):
    """Their rows are what the library says of the first tokens; the table has no column of them."""
    from dewmark.watermark import load_scheme

    recipe = tmp_path / "short.yaml"
    recipe.write_text(
        "base: main\nlengths: [6, 9, 50]\nprofiles:\n  local:\n    schemes:\n"
        "      kgw: {scheme: kgw, settings: {prefix: 1}}\n",
        encoding="utf-8",
    )
    out = tmp_path / "out"
    words = [str(recipe), *options(tiny_folder, out)[2:]]
    assert main(["reproduce", *words]) == 0
    scores = rows(out / "scores.jsonl")
    assert {row["attack"] for row in scores} == {"none", "delete-0.3", "truncate-6", "truncate-9"}
    short = [row for row in scores if row["attack"] == "truncate-6"]
    assert len(short) == 2 * 2 * 4  # seeds, marked and unmarked, texts
    bound = load_scheme("kgw", key=experiment_key(0), settings={"prefix": 1}, host=str(tiny_folder))
    texts = {
        row["id"]: row["text"]
        for file in (out / "generate").glob("*/rows.jsonl")
        for row in rows(file)
        if row["scheme"] == "kgw" and row["seed"] < 1_000_000
    }
    for row in (row for row in short if (row["seed"], row["kind"]) == (0, "marked")):
        cut = bound.tokenize([texts[row["id"]]])[0]
        found = bound.detect(cut.text[: cut.offsets[5][1]])
        assert (row["score"], row["tokens"]) == (found.z, found.tokens_scored)
    assert (out / "figures" / "by-length.png").exists()
    assert "truncate" not in (out / "table.csv").read_text(encoding="utf-8")
    assert len(list((out / "attack").iterdir())) == 4  # deletions only: cutting is no attack of the run


def test_attacked_rows_say_how_many_words_are_left(tiny_folder, tmp_path):
    out = tmp_path / "out"
    assert main(options(tiny_folder, out, "--stages", "generate,attack,score,evaluate")) == 0
    kept = {row["attack"]: row.get("kept") for row in rows(out / "scores.jsonl")}
    assert kept["none"] is None
    assert 0.0 <= kept["delete-0.3"] <= 1.0
    cells = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))["cells"]
    assert {cell["attack"]: cell["kept"] is None for cell in cells} == {"none": True, "delete-0.3": False}


def test_two_machines_share_the_work_by_copying_the_folder(tiny_folder, tmp_path, monkeypatch):
    """Written here, one scheme scored here and one there, and the rest from both: nothing is made twice."""
    here, there, alone = tmp_path / "here" / "work", tmp_path / "there" / "elsewhere", tmp_path / "alone"
    both = ["--schemes", "kgw,unigram"]
    assert main([*options(tiny_folder, alone), *both]) == 0

    def on(host: Path, work: Path, *more: str) -> int:
        return main([*options(host, tmp_path / "out"), *both, "--work", str(work), *more])

    assert on(tiny_folder, here, "--stages", "generate,attack") == 0
    moved = tmp_path / "there" / "host"
    shutil.copytree(tiny_folder, moved)
    shutil.copytree(here, there)
    assert on(tiny_folder, here, "--stages", "score,quality", "--schemes", "kgw") == 0
    assert on(moved, there, "--stages", "score,quality", "--schemes", "unigram") == 0
    shutil.copytree(there, here, dirs_exist_ok=True)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("everything is there")

    monkeypatch.setattr("dewmark.hosts.transformers.model.load_host", refuse)
    assert on(tiny_folder, here, "--stages", "score,quality,evaluate,report") == 0
    cells = ("generate/", "attack/", "score/", "quality/")
    assert {name: data for name, data in tree(alone).items() if name.startswith(cells)} == tree(here)
    for name in ("scores.jsonl", "evaluation.json", "table.csv"):
        assert (tmp_path / "out" / name).read_bytes() == (alone / name).read_bytes()


def test_a_run_killed_between_two_tests_ends_with_the_same_bytes(tiny_folder, tmp_path):
    """4 texts in batches of 2: 4 batches written, then 2 lengths of 2 kinds by 2 tests, 16 batches."""
    recipe = tmp_path / "two.yaml"
    recipe.write_text(
        "base: main\nlengths: [6]\nprofiles:\n  local:\n    schemes:\n"
        "      one: {scheme: kgw, settings: {prefix: 1}}\n"
        "      two: {scheme: kgw, settings: {prefix: 1}, test: z}\n",
        encoding="utf-8",
    )
    stages = ("--stages", "generate,score", "--seeds", "1", "--attacks", "none", "--schemes", "one,two")
    words = [str(recipe), *options(tiny_folder, tmp_path / "whole", *stages)[2:]]
    assert main(["reproduce", *words]) == 0
    again = [str(recipe), *options(tiny_folder, tmp_path / "killed", *stages)[2:]]
    command = [sys.executable, str(HERE / "mortal.py"), "3,4,3,5", "reproduce", *again]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "killed") == tree(tmp_path / "whole")


def test_the_costly_schemes_come_first():
    efforts = {entry.label: entry.relative_cost for entry in load_recipe("main", profile="local").schemes}
    assert efforts["ksemstamp"] > efforts["dew-paper-2.0"] > efforts["sweet"] > efforts["kgw"]
    assert efforts["dew-default"] == efforts["dew-white-2.0"] == efforts["kgw"]


def test_a_scheme_that_can_detect_on_a_device_does(tiny_folder, bag_encoder, monkeypatch):
    entry, _ = two_tests(tiny_folder)
    asked: list[str] = []
    monkeypatch.setattr("dewmark.dew.scheme.BoundDEW.on", lambda self, device: asked.append(device) or self)
    LoadedModels("cpu").scheme(entry, 0)
    assert asked == ["cpu"]
