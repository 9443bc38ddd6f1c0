"""The stages that score: several tests of one mark at once, truncated texts, and forged ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.experiments.conftest import command, rows, tree

from dewmark.cli.app import main
from dewmark.detect import score_text, score_texts
from dewmark_lab.experiments.outputs import Output
from dewmark_lab.experiments.recipe import SchemeEntry, experiment_key
from dewmark_lab.experiments.run import TextsToScore
from dewmark_lab.experiments.scoring_stage import PendingScores, ScoreTexts, Way
from dewmark_lab.experiments.workers import LoadedModels


def score(entry: SchemeEntry, source: Output, folder: Path, ways: Sequence[Way]) -> dict[Way, Output]:
    """Score all texts of a source in several ways."""
    number = source.count()
    targets = {way: Output(folder, "score", {"way": list(way)}) for way in ways}
    pending = PendingScores(TextsToScore("marked", "none", source, number), targets)
    ScoreTexts(number, entry, 0, (source, number), (pending,), 2).run(LoadedModels("cpu"), lambda _: None)
    return targets


@pytest.fixture
def written(tmp_path: Path) -> Output:
    """Five texts and a blank one."""
    source = Output(tmp_path, "generate", {"texts": "by hand"})
    line = "the river ran under the old bridge and people of the city came over it to walk home "
    texts = [line[4 * i :] + line[: 4 * i] for i in range(5)] + [" "]
    source.fill(6, lambda batch: [{"id": str(i), "text": texts[i], "seed": i} for i in batch], size=6)
    return source


KEY, GAUSSIAN = ("key", None, "z"), ("gaussian", None, "z")


def test_two_tests_of_one_mark_encode_a_text_once(tiny_folder, tmp_path, written, bag_encoder, monkeypatch):
    entry = SchemeEntry("dew", "dew-paper", str(tiny_folder))
    encoded: list[str] = []
    encode = type(bag_encoder).encode

    def counted(self, texts):
        encoded.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(type(bag_encoder), "encode", counted)
    alone, together, numbers = {}, {}, []
    for ways, found in (([KEY], alone), ([GAUSSIAN], alone), ([KEY, GAUSSIAN], together)):
        encoded.clear()
        found |= score(entry, written, tmp_path / str(len(ways)), ways)
        numbers.append(len(encoded))
    assert numbers[0] == numbers[1] == numbers[2] > 0
    for way, target in together.items():
        rows = target.read(6)
        assert rows == alone[way].read(6)
        assert rows[5] == {"id": "5", "score": 0.0, "p_value": 1.0, "tokens": 0}
    # a run killed between two tests of a batch leaves one ahead; the next run completes both
    expected = {way: target.path.read_bytes() for way, target in together.items()}
    for way, kept in ((KEY, 2), (GAUSSIAN, 5)):  # the second is cut within a batch
        lines = expected[way].split(b"\n")[:kept]
        together[way].path.write_bytes(b"".join(line + b"\n" for line in lines) + b'{"id')
        score(entry, written, tmp_path / "2", [KEY, GAUSSIAN])
        assert {way: target.path.read_bytes() for way, target in together.items()} == expected


def test_a_reader_s_row_has_the_scores_of_a_detector_with_that_reader(
    tiny_folder, tmp_path, bag_encoder, written
):
    from dewmark.hosts.expectations import open_reader

    entry = SchemeEntry("dew", "dew", str(tiny_folder), reader="host")
    ways = [(None, None, "z"), (None, entry.reader_model, "z"), (None, None, "mean")]
    plain, read, mean = (target.read(5) for target in score(entry, written, tmp_path, ways).values())
    assert plain != read
    texts = [row["text"] for row in written.read(5)]
    bound = LoadedModels("cpu").scheme(entry, 0, own_texts=(written, 5))
    assert [row["score"] for row in mean] == pytest.approx([each.score for each in score_texts(bound, texts)])
    found = score_texts(bound.reading_with(open_reader(str(tiny_folder))), texts)
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
        found = score_text(bound, whole.text[: whole.offsets[5][1]])
        assert (row["score"], row["tokens"]) == (found.z, found.tokens_scored)
    assert (out / "figures" / "by-length.png").exists()
    assert "truncate-6: FPR" not in (out / "report.md").read_text(encoding="utf-8")
    assert len(list((out / "attack").iterdir())) == 4  # truncation is not an attack of the run
    kept = {row["attack"]: row.get("kept") for row in scores}
    assert kept["none"] is None
    assert 0.0 <= kept["delete-0.3"] <= 1.0
    cells = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))["cells"]
    assert {cell["attack"] for cell in cells if cell["kept"] is not None} == {"delete-0.3"}


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
