"""The score stage: several tests of one mark at once, truncated texts, and tests that are behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.experiments.conftest import command, rows

from dewmark.cli.app import main
from dewmark_lab.experiments.outputs import StageOutput
from dewmark_lab.experiments.recipe import SchemeEntry, experiment_key, load_recipe
from dewmark_lab.experiments.scoring_stage import PendingScores, ScoreTexts
from dewmark_lab.experiments.workers import LoadedModels


def two_tests(host: Path) -> tuple[SchemeEntry, dict[str, StageOutput]]:
    """DEW with window contexts, and an output for each of two tests."""
    entry = SchemeEntry("dew", "dew-paper", str(host))
    return entry, {test: StageOutput("score", {"test": test}) for test in ("key", "gaussian")}


@pytest.fixture
def written(tmp_path: Path) -> StageOutput:
    """Five texts and a blank one."""
    source = StageOutput("generate", {"texts": "by hand"})
    target = source.rows(tmp_path)
    line = "the river ran under the old bridge and people of the city came over it to walk home "
    texts = [line[4 * i :] + line[: 4 * i] for i in range(5)] + [" "]
    with target.missing_batches(6, size=6) as batches:
        for batch in batches:
            target.append([{"id": str(i), "text": texts[i], "seed": i} for i in batch])
    return source


def test_two_tests_of_one_mark_encode_a_text_once(tiny_folder, tmp_path, written, bag_encoder, monkeypatch):
    entry, outputs = two_tests(tiny_folder)
    encoded: list[str] = []
    encode = type(bag_encoder).encode

    def counted(self, texts):
        encoded.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(type(bag_encoder), "encode", counted)
    source = written.rows(tmp_path)

    def score(chosen: dict[str, StageOutput], folder: str) -> int:
        targets = {(test, None, "z"): output.rows(tmp_path / folder) for test, output in chosen.items()}
        encoded.clear()
        task = ScoreTexts(6, entry, 0, (source, 6), (PendingScores(source, targets, 6),), 2)
        task.run(LoadedModels("cpu"), lambda _: None)
        return len(encoded)

    alone = [score({test: output}, "alone") for test, output in outputs.items()]
    together = score(outputs, "together")
    assert together == alone[0] == alone[1] > 0
    for output in outputs.values():
        same = [output.rows(tmp_path / folder).read(6) for folder in ("alone", "together")]
        assert same[0] == same[1]
        assert same[0][5] == {"id": "5", "score": 0.0, "p_value": 1.0, "tokens": 0}


def test_a_test_that_is_behind_catches_up(tiny_folder, tmp_path, written, bag_encoder):
    """A run killed between two tests of a batch leaves one ahead; the next run completes both."""
    entry, outputs = two_tests(tiny_folder)
    source, targets = (
        written.rows(tmp_path),
        {(test, None, "z"): output.rows(tmp_path) for test, output in outputs.items()},
    )

    def score() -> dict[str, bytes]:
        task = ScoreTexts(6, entry, 0, (source, 6), (PendingScores(source, targets, 6),), 2)
        task.run(LoadedModels("cpu"), lambda _: None)
        return {test: target.path.read_bytes() for (test, *_), target in targets.items()}

    expected = score()
    for test, kept in (("key", 2), ("gaussian", 5)):  # the second is cut within a batch
        lines = expected[test].split(b"\n")[:kept]
        targets[test, None, "z"].path.write_bytes(b"".join(line + b"\n" for line in lines) + b'{"id')
        assert score() == expected


def test_a_reader_s_row_has_the_scores_of_a_detector_with_that_reader(
    tiny_folder, tmp_path, bag_encoder, written
):
    from dewmark.hosts.expectations import open_reader

    entry = SchemeEntry("dew", "dew", str(tiny_folder), reader="host")
    ways = {
        (None, None, "z"): "plain",
        (None, entry.reader_model, "z"): "read",
        (None, None, "mean"): "mean",
    }
    outputs = {way: StageOutput("score", {"way": name}) for way, name in ways.items()}
    source, targets = written.rows(tmp_path), {way: each.rows(tmp_path) for way, each in outputs.items()}
    models = LoadedModels("cpu")
    ScoreTexts(5, entry, 0, (source, 5), (PendingScores(source, targets, 5),), 5).run(models, lambda _: None)
    plain, read, mean = (targets[way].read(5) for way in ways)
    assert plain != read
    alone = models.scheme(entry, 0, own_texts=(source, 5)).detect_batch(
        [row["text"] for row in source.read(5)]
    )
    assert [row["score"] for row in mean] == pytest.approx([each.score for each in alone])
    bound = models.scheme(entry, 0, own_texts=(source, 5)).reading_with(open_reader(str(tiny_folder)))
    found = bound.detect_batch([row["text"] for row in source.read(5)])
    assert [row["score"] for row in read] == pytest.approx([each.z for each in found])


def test_truncated_texts_are_scored_like_whole_ones(tiny_folder, tmp_path):
    """Their scores are the library's for the first tokens; they appear in a figure but not in the table."""
    from dewmark.opening import load_scheme

    recipe = tmp_path / "short.yaml"
    recipe.write_text(
        "base: main\nlengths: [6, 9, 50]\nprofiles:\n  local:\n    schemes:\n"
        "      kgw: {scheme: kgw, settings: {prefix: 1}}\n",
        encoding="utf-8",
    )
    out = tmp_path / "out"
    assert main(command(tiny_folder, out, recipe=recipe)) == 0
    scores = rows(out / "scores.jsonl")
    assert {row["attack"] for row in scores} == {"none", "delete-0.3", "truncate-6", "truncate-9"}
    short = [row for row in scores if row["attack"] == "truncate-6"]
    assert len(short) == 2 * 2 * 4  # seeds, marked and unmarked, texts
    bound = load_scheme(experiment_key(0), host=str(tiny_folder), scheme="kgw", settings={"prefix": 1})
    texts = {
        row["id"]: row["text"]
        for file in (out / "generate").glob("*/rows.jsonl")
        for row in rows(file)
        if row["scheme"] == "kgw" and row["seed"] < 1_000_000
    }
    for row in (row for row in short if (row["seed"], row["kind"]) == (0, "marked")):
        whole = bound.tokenize([texts[row["id"]]])[0]
        found = bound.detect(whole.text[: whole.offsets[5][1]])
        assert (row["score"], row["tokens"]) == (found.z, found.tokens_scored)
    assert (out / "figures" / "by-length.png").exists()
    assert "truncate" not in (out / "table.csv").read_text(encoding="utf-8")
    assert len(list((out / "attack").iterdir())) == 4  # truncation is not an attack of the run


def test_attacked_rows_have_the_share_of_kept_words(tiny_folder, tmp_path):
    out = tmp_path / "out"
    stages = ("--stages", "generate,attack,score,evaluate", "--seeds", "1")
    assert main(command(tiny_folder, out, *stages)) == 0
    kept = {row["attack"]: row.get("kept") for row in rows(out / "scores.jsonl")}
    assert kept["none"] is None
    assert 0.0 <= kept["delete-0.3"] <= 1.0
    cells = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))["cells"]
    assert {cell["attack"]: cell["kept"] is None for cell in cells} == {"none": True, "delete-0.3": False}


def test_costly_schemes_come_first():
    costs = {entry.label: entry.relative_cost for entry in load_recipe("main", profile="local").schemes}
    assert costs["ksemstamp"] > costs["dew-paper-2.0"] > costs["sweet"] > costs["kgw"]
    assert costs["dew-default"] == costs["dew-white-2.0"] == costs["kgw"]


def test_schemes_that_can_detect_on_a_device_are_moved_there(tiny_folder, bag_encoder, monkeypatch):
    entry = SchemeEntry("dew", "dew", str(tiny_folder))
    devices: list[str] = []
    monkeypatch.setattr("dewmark.dew.scheme.BoundDEW.on", lambda self, device: devices.append(device) or self)
    LoadedModels("cpu").scheme(entry, 0)
    assert devices == ["cpu"]
