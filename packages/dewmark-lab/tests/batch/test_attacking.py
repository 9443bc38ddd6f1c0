"""`attack_file`: the rows it writes, resuming after a kill, files of other runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dewmark.errors import StorageError
from dewmark_lab.attacks.base import load_attack, text_seed
from dewmark_lab.attacks.batch import attack_file, attacked_row, row_seeds

TEXTS = [f" old text number {i} with some words \u2028 é" for i in range(7)]
TEXTS[2] = ""
ROWS = [{"id": f"r{i}", "prompt": "p é", "text": text, "seed": i} for i, text in enumerate(TEXTS)]
DELETE = load_attack("delete")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "out.jsonl"


def test_a_row_keeps_its_fields_and_names_the_attack(out: Path):
    assert attack_file(ROWS, out, DELETE, seed=3).resumed_from == 0
    made = [json.loads(line) for line in out.read_text(encoding="utf-8").split("\n")[:-1]]
    assert len(made) == len(ROWS)
    for row, new in zip(ROWS, made, strict=True):
        assert list(new) == [*row, "attack", "original_text"]
        assert new["attack"] == {"name": "delete", "r": 0.3, "seed": 3}
        assert new["original_text"] == row["text"]
        assert {**new, "text": row["text"]} == {**new, **row}
        assert [new["text"]] == DELETE.apply([row["text"]], seeds=[text_seed(3, row["id"])])


def test_two_attacks_one_after_the_other():
    once = attacked_row(ROWS[0], "first", attack={"name": "a"})
    twice = attacked_row(once, "second", attack={"name": "b"})
    assert twice["attack"] == {"name": "b", "after": {"name": "a"}}
    assert twice["original_text"] == ROWS[0]["text"]


def test_rows_without_an_id_are_identified_by_their_index():
    assert row_seeds([{"text": "a"}, {"text": "a"}, {"text": "a", "id": 7}], 1) == [
        text_seed(1, 0),
        text_seed(1, 1),
        text_seed(1, 7),
    ]


def test_a_run_stopped_at_any_byte_resumes_to_the_same_bytes(out: Path):
    attack_file(ROWS, out, DELETE, batch_size=3)
    whole = out.read_bytes()
    ends = [i + step for i, byte in enumerate(whole) if byte == 10 for step in (0, 1, 2)]
    for end in sorted({*range(0, len(whole), 29), *ends} & set(range(len(whole)))):
        out.write_bytes(whole[:end])
        lines = whole[:end].count(b"\n")
        assert attack_file(ROWS, out, DELETE, batch_size=3).resumed_from == lines // 3 * 3
        assert out.read_bytes() == whole
    assert attack_file(ROWS, out, DELETE, batch_size=3).resumed_from == len(ROWS)  # nothing left to do
    assert out.read_bytes() == whole


def test_the_size_of_batches_does_not_matter(out: Path, tmp_path: Path):
    attack_file(ROWS, out, DELETE, batch_size=2)
    attack_file(ROWS, tmp_path / "b.jsonl", DELETE, batch_size=64)
    assert out.read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_a_folder_cannot_be_the_output(tmp_path: Path):
    with pytest.raises(StorageError, match="not a regular file"):
        attack_file(ROWS, tmp_path, DELETE)
