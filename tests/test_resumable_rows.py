"""`ResumableRows`: killed at any byte, resumed to the same bytes; files of other runs are left alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dewmark.errors import ConfigError, DewmarkError, StorageError
from dewmark.storage import ResumableRows, first_row

TOTAL = 7


def make(i: int) -> dict:
    return {"id": i, "prompt": f"ü {i}", "text": f"– {i * i}\u2028é", "seed": 5 + i}


def template(i: int) -> dict:
    return {**make(i), "text": ...}


def run(path: Path, *, batch_size: int = 3, total: int = TOTAL, expected=template) -> int:
    """Make the missing rows; returns how many were there."""
    file = ResumableRows(path, total, batch_size=batch_size, expected=expected)
    resumed = file.done
    for batch in file.pending():
        file.append([make(i) for i in batch])
    assert file.done == total
    assert list(file.read()) == [make(i) for i in range(total)]
    return resumed


@pytest.mark.parametrize("expected", [template, None])
def test_killed_at_any_byte_it_resumes_to_the_same_bytes(tmp_path, expected):
    path = tmp_path / "deep" / "rows.jsonl"
    assert run(path, expected=expected) == 0
    whole = path.read_bytes()
    for end in range(len(whole) + 1):
        path.write_bytes(whole[:end])
        rows = whole[:end].count(b"\n")
        assert run(path, expected=expected) == (rows if rows == TOTAL else rows // 3 * 3)
        assert path.read_bytes() == whole


def test_a_longer_run_extends_a_shorter_one(tmp_path):
    path, whole = tmp_path / "rows.jsonl", tmp_path / "whole.jsonl"
    run(whole)
    run(path, total=5)
    assert run(path) == 3  # the last batch of the shorter run was not full
    assert path.read_bytes() == whole.read_bytes()


def test_without_a_template_more_rows_than_asked_for_are_left_alone(tmp_path):
    path = tmp_path / "rows.jsonl"
    run(path)
    whole = path.read_bytes()
    assert run(path, total=5, expected=None) == 5
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("total", "expected", "message"),
    [
        (TOTAL, lambda i: {**template(i), "seed": 6 + i}, "line 1 .*seed is 5 and not 6"),
        (TOTAL, lambda i: {**template(i), "prompt": "x" * 100}, "line 1 .*prompt differs"),
        (TOTAL, lambda i: {**template(i), "drafts": ...}, "line 1 .*field drafts differs"),
        (TOTAL, lambda i: {"id": i, "text": ..., "seed": 5 + i}, "line 1 .*field prompt differs"),
        (5, template, "line 6 .*this one has 5 rows"),
    ],
)
def test_a_file_of_another_run_is_rejected_untouched(tmp_path, total, expected, message):
    path = tmp_path / "rows.jsonl"
    run(path)
    path.write_bytes(before := path.read_bytes()[:-3])
    with pytest.raises(ConfigError, match=f"{message}.*choose another output file"):
        run(path, total=total, expected=expected)
    assert path.read_bytes() == before


@pytest.mark.parametrize("foreign", [b"notes\n", b"[]\n", b"{}\n", b'{"id": "other', b"half a line"])
def test_a_file_that_no_run_wrote_is_rejected_untouched(tmp_path, foreign):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(foreign)
    with pytest.raises(DewmarkError, match="line 1"):
        run(path)
    assert path.read_bytes() == foreign


def test_only_regular_files_can_be_resumed(tmp_path):
    for path in (tmp_path, Path(os.devnull)):
        with pytest.raises(StorageError, match="not a regular file"):
            run(path)


def test_private_files_have_mode_0600(tmp_path):
    file = ResumableRows(tmp_path / "rows.jsonl", 1, batch_size=1, private=True)
    file.append([{"id": 1}])
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_first_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    for content, row in ((b"", None), (b'{"id": 1}', None), (b'{"id": 1}\n{"i', {"id": 1}), (b"[]\n", None)):
        path.write_bytes(content)
        assert first_row(path) == row
    assert first_row(tmp_path / "missing") is None
