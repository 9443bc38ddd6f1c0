from __future__ import annotations

import errno

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dewmark import storage
from dewmark.errors import InputError, StorageError


class TestJsonl:
    def test_rows_come_back_with_their_line_numbers(self, tmp_path):
        path = tmp_path / "rows.jsonl"
        path.write_text('{"a": 1}\n\n  \n{"a": "ü"}', encoding="utf-8")
        assert list(storage.read_jsonl(path)) == [(1, {"a": 1}), (4, {"a": "ü"})]

    def test_a_byte_order_mark_and_windows_lines_do_no_harm(self, tmp_path):
        path = tmp_path / "rows.jsonl"
        path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n{"a": 2}\r\n')
        assert [row for _, row in storage.read_jsonl(path)] == [{"a": 1}, {"a": 2}]

    @pytest.mark.parametrize("line", [b"{", b"not json", b'{"a": "\xff"}', b"[" * 100_000])
    def test_a_broken_line_is_named(self, tmp_path, line):
        path = tmp_path / "rows.jsonl"
        path.write_bytes(b'{"a": 1}\n' + line + b"\n")
        rows = storage.read_jsonl(path)
        assert next(rows) == (1, {"a": 1})
        with pytest.raises(InputError, match=r"rows\.jsonl, line 2: not a line of JSON"):
            next(rows)

    @pytest.mark.parametrize(
        ("line", "kind"), [("[1]", "list"), ("3", "int"), ('"a"', "str"), ("null", "NoneType")]
    )
    def test_a_row_must_be_an_object(self, tmp_path, line, kind):
        (tmp_path / "rows.jsonl").write_text(line)
        with pytest.raises(InputError, match=f"line 1: expected a JSON object, got {kind}"):
            list(storage.read_jsonl(tmp_path / "rows.jsonl"))

    def test_a_file_that_cannot_be_read(self, tmp_path):
        for path in (tmp_path / "missing.jsonl", tmp_path):
            with pytest.raises(InputError, match="cannot read"):
                list(storage.read_jsonl(path))

    def test_appending_makes_the_folder_and_keeps_what_was_there(self, tmp_path):
        path = tmp_path / "new" / "rows.jsonl"
        storage.append_jsonl(path, [{"id": 1}])
        storage.append_jsonl(path, [])
        storage.append_jsonl(path, [{"id": 2}, {"id": "日本"}])
        assert path.read_text(encoding="utf-8") == '{"id": 1}\n{"id": 2}\n{"id": "日本"}\n'

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
    @given(st.text(st.characters(), max_size=30))  # every character, lone surrogates and line ends too
    def test_any_text_survives(self, tmp_path, text):
        path = tmp_path / "rows.jsonl"
        path.unlink(missing_ok=True)
        storage.append_jsonl(path, [{"text": text}, {"text": "next"}])
        assert [row["text"] for _, row in storage.read_jsonl(path)] == [text, "next"]

    def test_a_lone_surrogate_survives(self, tmp_path):
        storage.append_jsonl(tmp_path / "rows.jsonl", [{"text": "a\ud800b"}])
        assert list(storage.read_jsonl(tmp_path / "rows.jsonl")) == [(1, {"text": "a\ud800b"})]

    def test_a_full_disk(self, tmp_path, monkeypatch):
        def full(*args: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(storage.os, "fsync", full)
        with pytest.raises(StorageError, match="the disk is full"):
            storage.append_jsonl(tmp_path / "rows.jsonl", [{"id": 1}])
