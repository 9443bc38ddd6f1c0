"""``dewmark bench`` on a tiny host with random weights: tables, JSON, plots, errors; no times are checked."""

from __future__ import annotations

import json

SMALL = ["--host", "random:tiny", "--device", "cpu", "--repeats", 1, "-q"]
SCHEMES = ["--schemes", "kgw", "--schemes", "dew-white-2.0:encoder=random:32"]


def test_marks_are_compared_with_no_mark_and_with_peers(run):
    arguments = [*SCHEMES, "--batch-sizes", "1,2", "--turn", 2]
    done = run("bench", "marks", *SMALL, *arguments, "--json")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in done.out.splitlines()]
    marks = {"none", "kgw", "dew-white-2.0:encoder=random:32", "transformers kgw", "transformers synthid"}
    assert {row["measure"] for row in rows} == {"batch 1", "batch 2"}
    assert marks <= {row["row"] for row in rows}
    for row in rows:
        low, high = row["ms_quartiles"]
        assert 0 < low <= row["ms_median"] <= high
        assert row["ratio"] == 1.0 if row["row"] == "none" else row["ratio"] > 0


def test_bad_options_are_one_line(run):
    for arguments, said in (
        (["--schemes", "kgv"], "did you mean 'kgw'"),
        (["--batch-sizes", "1,x"], "--batch-sizes"),
        (["--host", "random:llama"], "shape"),
    ):
        done = run("bench", "marks", *arguments, "-q")
        assert done.code == 2
        assert said in done.error
