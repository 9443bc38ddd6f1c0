"""``dewmark attack``: files, standard streams, resuming after a kill, errors."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROWS = [
    {"id": f"t{i}", "prompt": "p", "text": f" The old house {i} stands by the river – é \u2028.", "seed": i}
    for i in range(20)
]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    path.write_text("".join(lines), encoding="utf-8")
    return path


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


class TestFiles:
    def test_rows_are_written_to_a_file(self, run, texts, tmp_path):
        out = tmp_path / "out.jsonl"
        done = run("attack", "delete", "--in", texts, "--out", out, "--set", "r=0.5", "--seed", 4)
        assert done.code == 0
        assert done.out == f"20 rows in {out}\n"
        assert "delete, " in done.err
        made = read(out)
        assert [row["id"] for row in made] == [row["id"] for row in ROWS]
        assert all(row["attack"] == {"name": "delete", "r": 0.5, "seed": 4} for row in made)
        assert [row["original_text"] for row in made] == [row["text"] for row in ROWS]
        assert all(row["text"] != row["original_text"] for row in made[:1])

    def test_json_and_quiet(self, run, texts, tmp_path):
        out = tmp_path / "out.jsonl"
        done = run("attack", "none", "--in", texts, "--out", out, "--json", "-q")
        assert done.err == ""
        told = json.loads(done.out)
        assert told.pop("version")
        assert told == {
            "out": str(out),
            "rows": 20,
            "resumed_from": 0,
            "language": "en",
            "attack": {"name": "none", "seed": 0},
        }
        again = run("attack", "none", "--in", texts, "--out", out, "--json", "-q")
        assert json.loads(again.out)["resumed_from"] == 20

    def test_the_position_of_a_text_does_not_matter(self, run, texts, tmp_path):
        turned = tmp_path / "turned.jsonl"
        lines = texts.read_text(encoding="utf-8").split("\n")[:-1]
        turned.write_text("\n".join(reversed(lines)) + "\n", encoding="utf-8")
        for path, out in ((texts, tmp_path / "a"), (turned, tmp_path / "b")):
            run("attack", "delete", "--in", path, "--out", out, "-q")
        assert sorted(read(tmp_path / "a"), key=str) == sorted(read(tmp_path / "b"), key=str)


class TestTexts:
    def test_a_file_goes_to_stdout(self, run, tmp_path):
        path = tmp_path / "letter.txt"
        path.write_text("one two three four\n", encoding="utf-8")
        assert run("attack", "truncate", path, "--set", "n=2", "-q").out == "one two"

    def test_standard_input(self, run, monkeypatch):
        stream = SimpleNamespace(buffer=io.BytesIO("eins zwei drei é".encode()))
        monkeypatch.setattr(sys, "stdin", stream)
        assert run("attack", "none", "-", "-q").out == "eins zwei drei é"

    def test_several_files_need_json(self, run, tmp_path):
        paths = [tmp_path / name for name in ("a.txt", "b.txt")]
        for path in paths:
            path.write_text("one two three", encoding="utf-8")
        assert "add --json" in run("attack", "delete", *paths).error
        rows = [json.loads(line) for line in run("attack", "delete", *paths, "--json", "-q").out.splitlines()]
        assert [row["id"] for row in rows] == [str(path) for path in paths]
        assert rows[0]["attack"]["name"] == "delete"


def test_the_cost_is_printed_before_it_is_incurred(run, tmp_path, monkeypatch):
    from dewmark_lab.attacks.lexical import Identity

    monkeypatch.setattr(Identity, "plan", lambda self, texts, *, seeds: f"{len(texts)} requests, 0.01 USD")
    path = tmp_path / "a.txt"
    path.write_text("text", encoding="utf-8")
    assert run("attack", "none", path).err.startswith("none: 1 requests, 0.01 USD\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["delete"], "give either text files"),
        (["delete", "a.txt", "--in", "IN", "--out", "x"], "give either text files"),
        (["delete", "--in", "IN"], "--in and --out go together"),
        (["delete", "a.txt", "--out", "x"], "--in and --out go together"),
        (["delete", "--in", "IN", "--out", "IN"], "is the input file"),
        (["delte", "--in", "IN", "--out", "x"], "unknown attack 'delte'; did you mean 'delete'?"),
        (["delete", "--in", "IN", "--out", "x", "--set", "q=1"], "unknown setting of delete 'q'"),
        (["delete", "--in", "IN", "--out", "x", "--set", "r=2"], "r must lie in [0, 1]"),
        (["delete", "--in", "missing.jsonl", "--out", "x"], "cannot read missing.jsonl"),
        (["copy-paste", "--in", "IN", "--out", "x"], "set human=FILE.jsonl"),
    ],
)
def test_bad_options(run, texts, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert said in run("attack", *[texts if a == "IN" else a for a in arguments], "-q").error
    assert not (tmp_path / "x").exists()


def test_every_line_is_checked_before_attacking(run, texts, tmp_path):
    with texts.open("a", encoding="utf-8") as stream:
        stream.write('{"id": 1}\n')
    out = tmp_path / "out.jsonl"
    assert 'line 21 has no "text"' in run("attack", "none", "--in", texts, "--out", out, "-q").error
    assert not out.exists()
