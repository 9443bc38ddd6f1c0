"""Storage: atomic files and folders, bundles of arrays, JSONL, and files of rows that resume."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dewmark import storage
from dewmark.errors import ArtifactError, ConfigError, DewmarkError, InputError, StorageError
from dewmark.storage import ResumableRows, first_row


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fail_with(code: int):
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


class TestManifest:
    def files(self, folder: Path, monkeypatch) -> Path:
        """A folder with one file of 100 bytes, listed in its manifest; returns the file."""
        monkeypatch.setattr(storage, "verified", set())
        file = folder / "file"
        file.write_bytes(bytes(100))
        storage.write_manifest(folder, "files")
        return file

    def test_a_small_file_is_hashed_at_every_call(self, tmp_path, monkeypatch):
        file = self.files(tmp_path, monkeypatch)
        assert storage.read_manifest(tmp_path, "files")["files"].keys() == {"file"}
        file.write_bytes(bytes(99) + b"x")
        assert storage.read_manifest(tmp_path, "files") == {}

    def test_a_look_at_sizes_does_not_count_as_a_look_at_contents(self, tmp_path, monkeypatch):
        monkeypatch.setattr(storage, "SMALL_FILE", 0)  # all files are large
        file = self.files(tmp_path, monkeypatch)
        assert storage.read_manifest(tmp_path, "files", contents=False)
        file.write_bytes(bytes(99) + b"x")
        assert storage.read_manifest(tmp_path, "files") == {}

    def test_a_manifest_does_not_depend_on_the_order_of_the_disk(self, tmp_path, monkeypatch):
        for name in ("b", "a/d", "a/c"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(name, encoding="utf-8")
        listed, manifests = Path.rglob, []
        for backwards in (False, True):
            monkeypatch.setattr(
                Path, "rglob", lambda path, of, way=backwards: iter(sorted(listed(path, of), reverse=way))
            )
            storage.write_manifest(tmp_path, "files")
            manifests.append((tmp_path / "manifest.json").read_bytes())
            (tmp_path / "manifest.json").unlink()
        assert manifests[0] == manifests[1]


class TestAtomicWrite:
    def test_the_file_appears_complete_with_its_parents(self, tmp_path):
        path = tmp_path / "a" / "b" / "file.bin"
        with storage.atomic_write(path) as stream:
            stream.write(b"one")
            assert not path.exists()
            stream.write(b"two")
        assert path.read_bytes() == b"onetwo"
        assert names(path.parent) == ["file.bin"]

    def test_an_error_keeps_the_old_file(self, tmp_path):
        path = tmp_path / "file"
        path.write_bytes(b"old")
        with pytest.raises(KeyboardInterrupt, match="halfway"), storage.atomic_write(path) as stream:
            stream.write(b"new")
            raise KeyboardInterrupt("halfway")
        assert path.read_bytes() == b"old"
        assert names(tmp_path) == ["file"]

    def test_a_link_stays_and_the_file_behind_it_is_replaced(self, tmp_path):
        target, link = tmp_path / "there" / "file", tmp_path / "link"
        link.symlink_to(target)  # which does not exist yet
        for content in (b"one", b"two"):
            with storage.atomic_write(link) as stream:
                stream.write(content)
            assert link.is_symlink()
            assert target.read_bytes() == content
            assert names(target.parent) == ["file"]

    def test_a_replaced_file_keeps_its_mode(self, tmp_path):
        path = tmp_path / "file"
        path.touch(0o640)
        path.chmod(0o640)
        with storage.atomic_write(path) as stream:
            stream.write(b"new")
        assert mode(path) == 0o640

    @pytest.mark.parametrize("place", ["/dev/full", "fifo", "link to fifo"])
    def test_nothing_but_a_file_is_replaced(self, tmp_path, place):
        path = tmp_path / place
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "link to fifo").symlink_to("fifo")
        before = path.stat()
        for write in (
            lambda: storage.atomic_write(path).__enter__(),
            lambda: storage.atomic_folder(path).__enter__(),
            lambda: storage.append_jsonl(path, [{}]),
            lambda: ResumableRows(path, 1, batch_size=1),
        ):
            with pytest.raises(StorageError, match="cannot write .* it is a (FIFO|device), not a "):
                write()
        assert path.stat() == before

    def test_links_in_a_circle_are_one_line(self, tmp_path):
        path = tmp_path / "link"
        path.symlink_to("link")
        with pytest.raises(StorageError, match="cannot write .*link: Too many levels"):
            storage.atomic_write(path).__enter__()
        assert path.is_symlink()

    def test_a_private_file_is_never_readable_by_others_while_it_grows(self, tmp_path):
        with storage.atomic_write(tmp_path / "file", private=True) as stream:
            stream.write(b"x")
            (growing,) = tmp_path.iterdir()
            assert mode(growing) == 0o600

    def test_overwriting_is_the_default_and_can_be_forbidden(self, tmp_path):
        path = tmp_path / "file"
        for content in (b"one", b"two"):
            with storage.atomic_write(path) as stream:
                stream.write(content)
        with (
            pytest.raises(StorageError, match="exists already and is not overwritten"),
            storage.atomic_write(path, overwrite=False) as stream,
        ):
            stream.write(b"three")
        assert path.read_bytes() == b"two"
        assert names(tmp_path) == ["file"]

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
    def test_a_full_disk_is_reported(self, tmp_path, monkeypatch, code):
        monkeypatch.setattr(storage.os, "fsync", fail_with(code))
        with (
            pytest.raises(StorageError, match="the disk is full at .*file: free some space"),
            storage.atomic_write(tmp_path / "file") as stream,
        ):
            stream.write(b"x")
        assert names(tmp_path) == []

    @pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EPERM])
    def test_a_forbidden_path_is_reported(self, tmp_path, monkeypatch, code):
        monkeypatch.setattr(storage.tempfile, "mkstemp", fail_with(code))
        with (
            pytest.raises(StorageError, match="cannot write .*file: permission denied"),
            storage.atomic_write(tmp_path / "file"),
        ):
            pass


class TestAtomicFolder:
    def test_the_folder_appears_complete(self, tmp_path):
        path = tmp_path / "deep" / "model"
        with storage.atomic_folder(path) as folder:
            (folder / "sub").mkdir()
            (folder / "sub" / "a.txt").write_text("a")
            assert not path.exists()
        assert (path / "sub" / "a.txt").read_text() == "a"
        assert names(path.parent) == ["model"]
        assert mode(path) == 0o755

    def test_an_error_leaves_nothing_and_keeps_the_old_folder(self, tmp_path):
        path = tmp_path / "model"
        with storage.atomic_folder(path) as folder:
            (folder / "a").write_text("old")
        with pytest.raises(ValueError, match="stop"), storage.atomic_folder(path) as folder:
            (folder / "a").write_text("new")
            raise ValueError("stop")
        assert (path / "a").read_text() == "old"
        assert names(tmp_path) == ["model"]

    def test_private_modes_reach_every_file(self, tmp_path):
        path = tmp_path / "secret"
        with storage.atomic_folder(path, private=True) as folder:
            assert mode(folder) == 0o700
            (folder / "sub").mkdir()
            (folder / "sub" / "table").write_text("x")
        assert mode(path) == 0o700
        assert mode(path / "sub" / "table") == 0o600

    def test_two_writers_of_one_folder(self, tmp_path):
        path = tmp_path / "model"
        with storage.atomic_folder(path) as slow:
            (slow / "a").write_text("slow")
            with storage.atomic_folder(path) as quick:
                (quick / "a").write_text("quick")
        assert (path / "a").read_text() in {"slow", "quick"}
        assert names(tmp_path) == ["model"]


@pytest.fixture
def bundle(tmp_path) -> Path:
    path = tmp_path / "table"
    arrays = {"Q": np.arange(12, dtype=np.float32).reshape(3, 4), "mean": np.ones(4)}
    storage.save_bundle(path, meta={"host": "tiny", "d": 4}, arrays=arrays)
    return path


class TestBundles:
    def test_round_trip(self, bundle):
        opened = storage.load_bundle(bundle)
        assert opened.meta == {"host": "tiny", "d": 4}
        assert set(opened.arrays) == {"Q", "mean"}
        assert opened.arrays["Q"].dtype == np.float32
        np.testing.assert_array_equal(opened.arrays["Q"], np.arange(12).reshape(3, 4))

    @pytest.mark.parametrize("position", [0, 60, -1])
    def test_one_flipped_byte_is_found(self, bundle, position):
        file = bundle / "Q.npy"
        data = bytearray(file.read_bytes())
        data[position] ^= 1
        file.write_bytes(data)
        with pytest.raises(ArtifactError, match=r"Q\.npy is corrupt .*delete .*table and make it again"):
            storage.load_bundle(bundle)

    @pytest.mark.parametrize("verify", [True, False])
    def test_a_truncated_file_is_found_even_unverified(self, bundle, verify):
        file = bundle / "Q.npy"
        file.write_bytes(file.read_bytes()[:-8])
        with pytest.raises(ArtifactError, match="make it again"):
            storage.load_bundle(bundle, verify=verify)

    @pytest.mark.parametrize("verify", [True, False])
    @pytest.mark.parametrize("content", [None, b""])
    def test_a_missing_or_empty_array_is_found(self, bundle, verify, content):
        (bundle / "mean.npy").unlink()
        if content is not None:
            (bundle / "mean.npy").write_bytes(content)
        with pytest.raises(ArtifactError, match=r"mean\.npy is .*make it again"):
            storage.load_bundle(bundle, verify=verify)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[]",
            "3",
            "{}",
            '{"meta": {}}',
            '{"meta": {}, "sha256": 5}',
            '{"meta": 5, "sha256": {}}',
            "\x00",
        ],
    )
    def test_a_broken_index_is_found(self, bundle, text):
        (bundle / "bundle.json").write_text(text)
        with pytest.raises(ArtifactError, match=r"bundle\.json is corrupt: delete"):
            storage.load_bundle(bundle)

    def test_other_folders_are_rejected(self, tmp_path):
        (tmp_path / "file").write_text("x")
        for path in (tmp_path, tmp_path / "nothing", tmp_path / "file"):
            with pytest.raises(ArtifactError, match=r"is not a dewmark table: it has no bundle\.json"):
                storage.load_bundle(path)

    def test_arrays_are_stored_row_by_row(self, tmp_path):
        """Whatever their order in memory: sums over rows round by it."""
        storage.save_bundle(tmp_path / "b", meta={}, arrays={"x": np.asfortranarray(np.ones((3, 4)))})
        assert storage.load_bundle(tmp_path / "b").arrays["x"].flags.c_contiguous

    def test_object_arrays_are_rejected_both_ways(self, bundle, tmp_path):
        with pytest.raises(ValueError, match="allow_pickle"):
            storage.save_bundle(tmp_path / "b", meta={}, arrays={"x": np.array([{}, []], dtype=object)})
        assert not (tmp_path / "b").exists()
        np.save(bundle / "Q.npy", np.array([{}], dtype=object), allow_pickle=True)
        with pytest.raises(ArtifactError, match=r"Q\.npy is .*make it again"):
            storage.load_bundle(bundle, verify=False)

    def test_numpy_s_error_for_a_full_disk_is_recognised(self, tmp_path, monkeypatch):
        def short_write(*args: object, **kwargs: object) -> None:
            raise OSError("1000000 requested and 131056 written")

        monkeypatch.setattr(storage.np, "save", short_write)
        with pytest.raises(StorageError, match="the disk is full"):
            storage.save_bundle(tmp_path / "b", meta={}, arrays={"x": np.ones(2)})
        assert names(tmp_path) == []

    def test_other_errors_of_numpy_are_not_a_full_disk(self, tmp_path, monkeypatch):
        def fail(*args: object, **kwargs: object) -> None:
            raise OSError("obtaining file position failed")

        monkeypatch.setattr(storage.np, "save", fail)
        with pytest.raises(OSError, match="^obtaining file position failed$"):
            storage.save_bundle(tmp_path / "b", meta={}, arrays={"x": np.ones(2)})
        assert names(tmp_path) == []


def test_a_bundle_is_plain_files_that_others_can_read(bundle):
    index = json.loads((bundle / "bundle.json").read_text())
    assert index["sha256"]["Q"] == storage.sha256_file(bundle / "Q.npy")
    np.testing.assert_array_equal(np.load(bundle / "mean.npy"), np.ones(4))


class TestJsonl:
    def test_rows_come_back_with_their_line_numbers(self, tmp_path):
        path = tmp_path / "rows.jsonl"
        path.write_text('{"a": 1}\n\n  \n{"a": "ü"}', encoding="utf-8")
        assert list(storage.read_jsonl(path)) == [(1, {"a": 1}), (4, {"a": "ü"})]

    def test_byte_order_mark_and_windows_line_ends(self, tmp_path):
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


TOTAL = 5


def make(i: int) -> dict:
    return {"id": i, "prompt": f"ü {i}", "text": f"–\u2028{i}", "seed": 5 + i}


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
def test_killed_at_any_byte_it_resumes_to_the_same_bytes(tmp_path, expected, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # for speed
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
    run(path, total=4)
    assert run(path) == 3  # the last batch of the shorter run was not full
    assert path.read_bytes() == whole.read_bytes()


def test_without_a_template_more_rows_than_asked_for_are_left_alone(tmp_path):
    path = tmp_path / "rows.jsonl"
    run(path)
    whole = path.read_bytes()
    assert run(path, total=4, expected=None) == 4
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("total", "expected", "message"),
    [
        (TOTAL, lambda i: {**template(i), "seed": 6 + i}, "line 1 .*seed is 5 and not 6"),
        (TOTAL, lambda i: {**template(i), "prompt": "x" * 100}, "line 1 .*prompt differs"),
        (
            TOTAL,
            lambda i: {**template(i), "drafts": ...},
            "line 1 .*another run or version .no field drafts.:",
        ),
        (
            TOTAL,
            lambda i: {"id": i, "text": ..., "seed": 5 + i},
            "line 1 .*another run or version .another field, prompt.:",
        ),
        (4, template, "line 5 .*this one has 4 rows"),
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


def test_private_files_have_mode_0600(tmp_path):
    file = ResumableRows(tmp_path / "rows.jsonl", 1, batch_size=1, private=True)
    file.append([{"id": 1}])
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_first_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    for content, row in ((b"", None), (b'{"id": 1}', None), (b'{"id": 1}\n{"i', {"id": 1}), (b"[]\n", None)):
        path.write_bytes(content)
        assert first_row(path) == row
    for other in (tmp_path / "missing", tmp_path, Path("/dev/zero")):
        assert first_row(other) is None


def test_a_large_file_is_hashed_in_pieces_and_a_small_one_takes_no_more_than_itself(monkeypatch, tmp_path):
    file, data = tmp_path / "file", os.urandom(300_000)
    file.write_bytes(data)
    for at_once, most in ((20_000, 100_000), (1 << 28, 500_000)):
        monkeypatch.setattr(storage, "_HASHED_AT_ONCE", at_once)
        tracemalloc.start()
        assert storage.sha256_file(file) == hashlib.sha256(data).hexdigest()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < most
