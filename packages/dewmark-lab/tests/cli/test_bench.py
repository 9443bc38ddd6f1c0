"""``dewmark bench`` on a tiny host with random weights: tables, JSON, plots, errors; no times are checked."""

from __future__ import annotations

import json

SMALL = ["--host", "random:tiny", "--device", "cpu", "--repeats", 1, "-q"]
SCHEMES = ["--schemes", "kgw,exp", "--schemes", "dew-white-2.0:encoder=random:32"]


def test_marks_are_compared_with_no_mark_and_with_peers(run):
    arguments = ["--schemes", "kgw,exp", "--batch-sizes", "1,2", "--turn", 2]
    done = run("bench", "marks", *SMALL, *arguments, "--json")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in done.out.splitlines()]
    marks = {"none", "kgw", "exp", "transformers kgw", "transformers synthid"}
    assert {row["measure"] for row in rows} == {"batch 1", "batch 2"}
    assert marks <= {row["row"] for row in rows}
    for row in rows:
        low, high = row["ms_quartiles"]
        assert 0 < low <= row["ms_median"] <= high
        assert row["ratio"] == 1.0 if row["row"] == "none" else row["ratio"] > 0


def test_detection_as_json(run):
    done = run("bench", "detect", *SMALL, *SCHEMES, "--texts", 4, "--tokens", 40, "--json")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert {row["row"] for row in rows} == {"tokenizing", "kgw", "exp", "dew-white-2.0:encoder=random:32"}
    assert all(row["ms_min"] > 0 and row["ratio"] > 0 and row["rounds"] == 1 for row in rows)


def test_bad_options_are_one_line(run):
    for arguments, said in (
        (["--schemes", "kgv"], "did you mean 'kgw'"),
        (["--batch-sizes", "1,x"], "--batch-sizes"),
        (["--host", "random:llama"], "shape"),
    ):
        done = run("bench", "marks", *arguments, "-q")
        assert done.code == 2
        assert said in done.error
