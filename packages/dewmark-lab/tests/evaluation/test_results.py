"""Rows of scores: they round-trip through a file, and errors name the line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dewmark.errors import InputError
from dewmark_lab.evaluation.results import ScoreRow, read_scores, write_scores

ROW = ScoreRow("dew", "none", 1, "marked", "opening-1", 4.25, 0.001, 200)


def test_rows_round_trip(tmp_path: Path) -> None:
    rows = [ROW, ScoreRow("dew", "none", 1, "human", "é\u2028", -0.5, None, 0)]
    write_scores(tmp_path / "scores.jsonl", rows)
    assert read_scores(tmp_path / "scores.jsonl") == rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "forged"}, "one of marked, unmarked, human, got 'forged'"),
        ({"score": float("nan")}, "the score of text opening-1 is NaN"),
        ({"score": None}, "wrong type"),
        ({"p_value": 1.5}, r"in \[0, 1\], got 1.5"),
        ({"seed": "first"}, "wrong type"),
    ],
)
def test_an_invalid_row_is_reported_with_its_line(tmp_path: Path, change: dict, message: str) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (ROW.to_dict(), {**ROW.to_dict(), **change})))
    with pytest.raises(InputError, match=f"scores.jsonl, line 2: .*{message}"):
        read_scores(path)


def test_a_missing_field_and_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs the field 'tokens'"):
        ScoreRow.from_dict({name: value for name, value in ROW.to_dict().items() if name != "tokens"})
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match="is empty"):
        read_scores(tmp_path / "empty.jsonl")
