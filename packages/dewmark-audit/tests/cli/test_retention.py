"""``dewmark retention``, with DEW on the tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

WORDS = ["the", "old", "bridge", "over", "river", "house", "water", "light", "night", "city", "hill", "sea"]


def texts(count: int = 12, *, seed: int = 0) -> list[list[str]]:
    """Each text has words of its own, so that no two are about the same thing."""
    rng = np.random.default_rng(seed)
    own = [f"{c}{v}{d}{w}" for c in "bdfgkl" for v in "aeiou" for d in "mnpr" for w in "aeiou"]
    chosen = rng.permutation(own).reshape(-1, 20)[:count]
    return [[*rng.choice(mine, size=60).tolist(), *rng.choice(WORDS, size=6).tolist()] for mine in chosen]


def changed(words: list[str], share: float, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [w if rng.uniform() >= share else str(rng.choice(WORDS)) for w in words]


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    originals = texts()
    rewrites = [changed(words, 0.3, i) for i, words in enumerate(originals)]
    return (
        write_rows(tmp_path / "a.jsonl", [{"text": " ".join(words)} for words in originals]),
        write_rows(tmp_path / "b.jsonl", [{"response": " ".join(words)} for words in rewrites]),
    )


@pytest.fixture
def retention(run, tiny):
    def invoke(original: Path, rewritten: Path, *arguments: object):
        return run("retention", "--original", original, "--rewritten", rewritten, *arguments, "-q")

    return invoke


def measured(result) -> dict:
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_a_rewrite_keeps_part_and_the_text_itself_keeps_all(retention, files):
    found = measured(retention(*files, "--json"))
    assert found["pairs"] == 12
    assert 0.2 < found["kept"]["value"] < 0.95
    assert found["kept"]["low"] < found["kept"]["value"] < found["kept"]["high"]
    assert found["unrelated"]["value"] < 0.5 * found["kept"]["value"]
    same = measured(retention(files[0], files[0], "--json"))
    assert same["kept"]["value"] == pytest.approx(1.0, abs=1e-3)


def test_settings_matter_and_the_key_does_not(retention, files):
    first, again = (measured(retention(*files, "--json")) for _ in range(2))
    assert first["kept"]["value"] == pytest.approx(again["kept"]["value"], rel=1e-4)
    labels = measured(retention(*files, "--json", "--scheme", "dew-paper", "--set", "mode=neither"))
    assert labels["kept"]["value"] < first["kept"]["value"]  # only pairs that are wholly the same count


def test_rows_are_matched_by_id_where_all_have_one(retention, files, tmp_path):
    a, b = ([json.loads(line) for line in path.read_text().splitlines()] for path in files)
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        x["id"], y["id"] = f"t{i}", f"t{i}"
    ordered = measured(retention(*files, "--json"))
    shuffled = write_rows(tmp_path / "b2.jsonl", b[::-1])
    matched = measured(retention(write_rows(tmp_path / "a2.jsonl", a), shuffled, "--json"))
    assert matched["kept"]["value"] == pytest.approx(ordered["kept"]["value"], rel=1e-4)


def test_an_empty_text_is_skipped(retention, files, tmp_path):
    lines = [json.loads(line) for line in files[1].read_text().splitlines()]
    lines[3]["response"] = ""
    found = measured(retention(files[0], write_rows(tmp_path / "c.jsonl", lines), "--json"))
    assert found["pairs"] == 11


def test_mismatched_files_are_one_line_errors(retention, files, tmp_path):
    def named(name: str, ids: list[int]) -> Path:
        return write_rows(tmp_path / name, [{"text": "the old bridge over the river", "id": i} for i in ids])

    assert "has 12 rows and" in retention(files[0], named("short.jsonl", [1, 2])).error
    assert "has an id twice" in retention(named("x.jsonl", [1, 2]), named("y.jsonl", [1, 1])).error
    assert (
        "has no row with the id 2 of" in retention(named("x.jsonl", [1, 2]), named("y.jsonl", [1, 3])).error
    )
    assert "at least two pairs" in retention(named("x.jsonl", [1]), named("y.jsonl", [1])).error
    assert "cannot read" in retention(files[0], tmp_path / "missing.jsonl").error
    assert "leaves no mark" in retention(*files, "--scheme", "none").error
