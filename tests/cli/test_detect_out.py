"""Detection of a file into a file: formats, workers, what a stopped run leaves and how it goes on."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import SECRET
from tests.cli.many import Mortal, export_kgw, read, texts, write_jsonl, write_parquet

from dewmark.batch import detecting as detect_run
from dewmark.batch.detecting import Workers
from dewmark.batch.scoring import Scoring
from dewmark.batch.sources import open_source
from dewmark.core.keys import Key
from dewmark.stats.multiple_testing import benjamini_hochberg

ROWS = texts(57)


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_kgw(tmp_path_factory.mktemp("kgw") / "detector")


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "in.jsonl", ROWS)


@pytest.fixture
def detect(run, detector):
    return lambda *arguments: run("detect", "--detector", detector, *arguments)


@pytest.fixture
def printed(detect, jsonl) -> list[dict]:
    """The rows as they are printed without --out."""
    result = detect("--jsonl", jsonl, "--json")
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]


@pytest.mark.parametrize("source", ["jsonl", "parquet"])
@pytest.mark.parametrize("out", ["jsonl", "parquet"])
def test_the_rows_are_those_that_are_printed(detect, printed, tmp_path, source, out):
    write = write_jsonl if source == "jsonl" else write_parquet
    given, made = write(tmp_path / f"many.{source}", ROWS), tmp_path / f"out.{out}"
    result = detect("--in", given, "--out", made, "--block-size", 10)
    assert result.code == 0, result.err
    assert read(made) == printed
    assert [row["id"] for row in printed] == list(range(57))
    assert result.out.startswith("0 of 57 texts marked at level 0.01; 0 with q ≤ 0.01 (Benjamini-Hochberg")
    assert result.err.splitlines()[-1].startswith(f"wrote {made}: 57 texts scored, 0 were there, ")
    assert not made.with_name(made.name + ".parts").exists()


def test_parquet_is_printed_too(detect, printed, tmp_path):
    given = write_parquet(tmp_path / "many.parquet", ROWS)
    result = detect("--in", given, "--json")
    assert [json.loads(line) for line in result.out.splitlines()] == printed


def test_two_workers_give_the_same_rows(detect, printed, jsonl, tmp_path):
    made = tmp_path / "out.jsonl"
    result = detect("--jsonl", jsonl, "--out", made, "--workers", 2, "--block-size", 8, "--json", "-q")
    told = json.loads(result.out)
    assert (told["rows"], told["resumed_from"], told["blocks_retried"]) == (57, 0, 0)
    assert result.err == ""
    assert read(made) == printed


def test_tokens_mixed_names_and_no_correction(detect, tmp_path):
    rows = [{**row, "id": f"t{row['id']}" if row["id"] % 2 else row["id"]} for row in ROWS]
    given = write_jsonl(tmp_path / "in.jsonl", rows)
    assert detect("--in", given, "--out", tmp_path / "o.parquet", "--tokens", "--no-adjust").code == 0
    assert detect("--in", given, "--out", tmp_path / "o.jsonl", "--tokens").code == 0
    columns, lines = read(tmp_path / "o.parquet"), read(tmp_path / "o.jsonl")
    assert [row["tokens"] for row in columns] == [row["tokens"] for row in lines]
    assert [row["id"] for row in lines] == [row["id"] for row in rows]
    assert [row["id"] for row in columns] == [str(row["id"]) for row in rows]  # a column has one type
    assert "p_adjusted" not in columns[0]
    long = [row for row in lines if row["verdict"] != "too short"]
    assert [row["p_adjusted"] for row in long] == benjamini_hochberg([r["p_value"] for r in long]).tolist()
    assert [row["p_adjusted"] for row in lines if row["verdict"] == "too short"] == [None] * (57 - len(long))


def test_a_stopped_run_goes_on_where_it_was(detect, printed, jsonl, tmp_path, monkeypatch):
    made, scored = tmp_path / "out.jsonl", []
    original = Workers.work_with

    def counted(self, score):
        work = original(self, score)

        def one(block):
            if len(scored) == 3:
                raise KeyboardInterrupt
            scored.append(block.first)
            return work(block)

        return one

    monkeypatch.setattr(Workers, "work_with", counted)
    arguments = ("--jsonl", jsonl, "--out", made, "--block-size", 10)
    assert detect(*arguments).code == 130
    assert not made.exists()
    assert scored == [0, 10, 20]
    # another run does not take its blocks for its own
    assert "another fpr" in detect(*arguments, "--fpr", 0.05).error
    assert "another block_size, blocks" in detect(*arguments[:-1], 7).error
    monkeypatch.setattr(Workers, "work_with", original)
    result = detect(*arguments)
    assert "27 texts scored, 30 were there" in result.err
    assert read(made) == printed
    assert "exists already and is not overwritten" in detect(*arguments).error


def test_a_changed_input_is_no_longer_that_of_the_run(detect, jsonl, tmp_path, monkeypatch):
    monkeypatch.setattr(detect_run.BlockRun, "finish", lambda self, **_: 1 / 0)
    arguments = ("--jsonl", jsonl, "--out", tmp_path / "out.jsonl")
    with pytest.raises(ZeroDivisionError):
        detect(*arguments)
    write_jsonl(jsonl, ROWS[:-1])
    assert "holds a run with another bytes" in detect(*arguments).error


def test_a_bad_row_ends_the_run_and_keeps_what_is_done(detect, tmp_path):
    given = write_jsonl(tmp_path / "in.jsonl", [*ROWS[:20], {"text": 3}])
    for workers in (1, 2):
        made = tmp_path / f"{workers}.jsonl"
        error = detect("--in", given, "--out", made, "--block-size", 5, "--workers", workers, "-q").error
        assert error.endswith("in.jsonl, line 21: text must be a string, got int")
        assert not made.exists()
    assert len(list((tmp_path / "1.jsonl.parts").glob("0*.jsonl"))) == 4


def test_a_worker_that_is_killed(detect, printed, jsonl, tmp_path, monkeypatch):
    """The first worker to reach the fourth block is killed; its block is scored by another."""
    monkeypatch.setattr(detect_run, "Workers", Mortal)
    monkeypatch.setenv("DEWMARK_TEST_DIED", str(tmp_path / "died"))
    made = tmp_path / "out.parquet"
    result = detect("--jsonl", jsonl, "--out", made, "--workers", 2, "--block-size", 8)
    assert (tmp_path / "died").exists()
    assert ", 1 blocks begun again after a worker was lost, " in result.err
    assert read(made) == printed


def test_several_keys(run, host, tmp_path):
    for number in (1, 2):
        Key(bytes([number]) * 32).save(tmp_path / f"{number}.key")
    given = write_jsonl(tmp_path / "in.jsonl", ROWS[:6])
    made = tmp_path / "out.parquet"
    assert run("detect", "--keys", tmp_path, "--in", given, "--out", made).code == 0
    rows = read(made)
    assert [row["keys"] for row in rows] == [2] * 6
    assert {row["key_file"] for row in rows} <= {str(tmp_path / "1.key"), str(tmp_path / "2.key")}


def test_what_goes_to_a_worker_holds_no_key(key_file, jsonl):
    scoring = Scoring(key=(key_file,)).absolute()
    sent = pickle.dumps(Workers(open_source(str(jsonl)), scoring, None, {}))
    assert b"the.key" in sent
    assert SECRET not in sent
    assert SECRET.hex().encode() not in sent


def test_a_worker_with_another_key_refuses(detector, jsonl):
    from dewmark.errors import KeyFileError

    opened = Workers(open_source(str(jsonl)), Scoring(detector=detector), None, {"keys": ["another"]})
    with pytest.raises(KeyFileError, match="a worker has other files than the command"):
        opened()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--in", "IN", "--out", "out.csv"], "--out out.csv must end in .parquet or .jsonl"),
        (["--in", "IN", "--out", "OUT", "--html", "p.html"], "no text files and no --html"),
        (["IN", "--out", "OUT"], "give --in FILE, no text files"),
        (["--in", "IN", "--jsonl", "IN"], "give one of the two"),
        (["--in", "IN", "--workers", "2"], "add --out"),
        (["--in", "IN", "--engine", "ray"], "add --out"),
        (["--in", "IN", "--out", "OUT", "--engine", "rya"], "unknown engine 'rya'; did you mean 'ray'?"),
        (["--in", "in.txt", "--out", "OUT"], "cannot tell the format of in.txt"),
        (["--in", "missing.jsonl", "--out", "OUT"], "missing.jsonl: No such file"),
        (["--in", "IN", "--out", "OUT", "--workers", "0"], "--workers"),
    ],
)
def test_bad_options(detect, jsonl, tmp_path, arguments, said):
    names = {"IN": jsonl, "OUT": tmp_path / "out.jsonl"}
    assert said in detect(*[names.get(argument, argument) for argument in arguments], "-q").error


def test_ray_that_is_not_installed(detect, jsonl, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    error = detect("--in", jsonl, "--out", tmp_path / "o.jsonl", "--engine", "ray", "-q").error
    assert error == "ray is not installed; install it with: pip install 'dewmark[ray]'"
