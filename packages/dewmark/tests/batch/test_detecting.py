"""`detect_file`: formats, workers, and runs that are stopped and resumed."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pickle
from pathlib import Path

import pytest
from tests.batch.many import DyingWorker, read, texts, write_jsonl, write_parquet

from dewmark.batch import DetectorSpec, Document, detect_file, detecting, open_source
from dewmark.batch.detecting import ScoringWorker
from dewmark.core.keys import Key
from dewmark.detector import Detector
from dewmark.errors import ConfigError, DewmarkError, InputError, KeyFileError, StorageError
from dewmark.stats.multiple_testing import benjamini_hochberg

ROWS = texts(57)
SECRET = bytes(range(100, 132))


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dew") / "detector"
    Detector.from_key(Key(bytes(range(32)))).save(folder)
    return folder


@pytest.fixture(scope="module")
def expected(detector: Path) -> list[dict]:
    """The rows, scored in one batch in memory."""
    scored = DetectorSpec(detector=detector).open()([Document(row["text"], row["id"]) for row in ROWS])
    rows = [each.row for each in scored]
    tested = [row for row in rows if row["verdict"] != "too_short"]
    adjusted = dict.fromkeys(row["id"] for row in rows)
    adjusted |= dict(
        zip(
            (row["id"] for row in tested),
            benjamini_hochberg([row["p_value"] for row in tested]).tolist(),
            strict=True,
        )
    )
    assert 0 < len(tested) < len(rows)  # every fifth text is blank
    return [{**row, "p_adjusted": adjusted[row["id"]]} for row in rows]


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "in.jsonl", ROWS)


@pytest.mark.parametrize("source", ["jsonl", "parquet"])
@pytest.mark.parametrize("out", ["jsonl", "parquet"])
def test_formats(detector, expected, tmp_path, source, out):
    write = write_jsonl if source == "jsonl" else write_parquet
    given, made = write(tmp_path / f"many.{source}", ROWS), tmp_path / f"out.{out}"
    found = detect_file(given, made, detector, block_size=10)
    assert read(made) == expected
    assert (found.rows, found.rejected, found.resumed_from) == (57, 0, 0)
    assert found.marked == sum(row["verdict"] == "marked" for row in expected)
    assert found.tested == sum(row["verdict"] != "too_short" for row in expected)
    assert not made.with_name(made.name + ".partial").exists()


def test_tokens_and_mixed_ids(detector, tmp_path):
    rows = [{**row, "id": f"t{row['id']}" if row["id"] % 2 else row["id"]} for row in ROWS]
    given = write_jsonl(tmp_path / "in.jsonl", rows)
    spec = DetectorSpec(detector=detector, tokens=True)
    for name in ("o.parquet", "o.jsonl"):
        detect_file(given, tmp_path / name, spec)
    columns, lines = read(tmp_path / "o.parquet"), read(tmp_path / "o.jsonl")
    assert [row["tokens"] for row in columns] == [row["tokens"] for row in lines]
    assert [row["id"] for row in lines] == [row["id"] for row in rows]
    assert [row["id"] for row in columns] == [str(row["id"]) for row in rows]  # a column has one type


def test_a_stopped_run_is_resumed(detector, expected, jsonl, tmp_path, monkeypatch):
    made, scored = tmp_path / "out.jsonl", []
    original = ScoringWorker.work_with

    def counted(self, scorer):
        work = original(self, scorer)

        def one(block):
            if len(scored) == 3:
                raise KeyboardInterrupt("after three blocks")
            scored.append(block.first)
            return work(block)

        return one

    run = functools.partial(detect_file, jsonl, made, block_size=10)
    with monkeypatch.context() as patch:
        patch.setattr(ScoringWorker, "work_with", counted)
        with pytest.raises(KeyboardInterrupt, match="after three blocks"):
            run(detector)
    assert not made.exists()
    assert scored == [0, 10, 20]
    with pytest.raises(ConfigError, match=r"fpr is 0\.01 and not 0\.05"):
        run(DetectorSpec(detector=detector, fpr=0.05))
    with pytest.raises(ConfigError, match="attempts is 1 and not 2"):
        run(DetectorSpec(detector=detector, attempts=2))
    with pytest.raises(ConfigError, match="block_size is 10 and not 7"):
        run(detector, block_size=7)
    # a kill may also have cut the last block short
    partial = made.with_name("out.jsonl.partial")
    partial.write_bytes(partial.read_bytes()[:-9])
    assert run(detector).resumed_from == 20
    assert read(made) == expected
    with pytest.raises(StorageError, match="exists already and is not overwritten"):
        run(detector)


def test_everything_that_decides_the_rows_identifies_a_run(detector, jsonl, tmp_path):
    """No field of a spec can change without making another run."""
    given = write_jsonl(tmp_path / "given", [])
    options = {
        "fpr": 0.05,
        "test": "key",
        "tokens": True,
        "calibration": given,
        "coverage": True,
        "attempts": 2,
        "roots": given,
    }
    opened = {"keys", "detector", "host", "scheme", "settings", "translate_back", "reader"}  # Scorer.identity
    assert {each.name for each in dataclasses.fields(DetectorSpec)} == opened | options.keys()
    source, spec = open_source(str(jsonl)), DetectorSpec(detector=detector)
    runs = [
        detecting._identity(source, dataclasses.replace(spec, **changed), 10)
        for changed in ({}, *({name: value} for name, value in options.items()))
    ]
    assert all(one != other for one, other in itertools.combinations(runs, 2))


def test_a_changed_input_is_not_resumed(detector, jsonl, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(detecting, "_write", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError, match="division by zero"):
            detect_file(jsonl, tmp_path / "out.jsonl", detector)
    write_jsonl(jsonl, ROWS[:-1])
    with pytest.raises(ConfigError, match="bytes"):
        detect_file(jsonl, tmp_path / "out.jsonl", detector)


def test_a_bad_row_ends_the_run_and_keeps_the_blocks_before_it(detector, tmp_path):
    given = write_jsonl(tmp_path / "in.jsonl", [*ROWS[:20], {"text": 3}])
    made = tmp_path / "out.jsonl"
    with pytest.raises(InputError, match=r"in\.jsonl, line 21: text must be a string, got int"):
        detect_file(given, made, detector, block_size=5)
    assert not made.exists()
    assert len((tmp_path / "out.jsonl.partial").read_text(encoding="utf-8").splitlines()) == 1 + 4


def test_two_workers_give_the_same_rows_if_one_is_killed(detector, expected, jsonl, tmp_path, monkeypatch):
    monkeypatch.setattr(detecting, "ScoringWorker", DyingWorker)
    monkeypatch.setenv("DEWMARK_TEST_DIED", str(tmp_path / "died"))
    made = tmp_path / "out.parquet"
    assert detect_file(jsonl, made, detector, workers=2, block_size=8).blocks_retried == 1
    assert (tmp_path / "died").exists()
    assert read(made) == expected


def test_a_pickled_worker_contains_no_key(jsonl, tmp_path):
    Key(SECRET).save(tmp_path / "the.key")
    spec = DetectorSpec(keys=(tmp_path / "the.key",)).absolute()
    sent = pickle.dumps(ScoringWorker(open_source(str(jsonl)), spec, {}))
    assert b"the.key" in sent
    assert SECRET not in sent
    assert SECRET.hex().encode() not in sent


def test_a_worker_with_another_key_is_an_error(detector, jsonl):
    worker = ScoringWorker(open_source(str(jsonl)), DetectorSpec(detector=detector), {"keys": ["another"]})
    with pytest.raises(KeyFileError, match="a worker has other files than this process"):
        worker()


@pytest.mark.parametrize(
    ("source", "out", "options", "message"),
    [
        (None, "out.csv", {}, "must end in .parquet or .jsonl"),
        (None, "out.jsonl", {"engine": "rya"}, "unknown engine 'rya'; did you mean 'ray'"),
    ],
)
def test_bad_arguments(detector, jsonl, tmp_path, source, out, options, message):
    with pytest.raises(DewmarkError, match=message):
        detect_file(source or jsonl, tmp_path / out, detector, **options)
