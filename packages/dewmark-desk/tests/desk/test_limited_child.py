"""Functions in child processes: results come back, and no child takes more than it may."""

from __future__ import annotations

import os

import pytest

from dewmark.errors import InputError
from dewmark_desk.limited_child import Bounds, OutOfMemory, run

FUNCTIONS = """
import os, sys, time
from dewmark.errors import InputError, KeyFileError

def echo(data, *arguments):
    return data + " ".join(arguments).encode()

def threads(data):
    return os.environ["OMP_NUM_THREADS"].encode()

def spin(data):
    while True:
        pass

def sleep(data):
    time.sleep(3600)

def hoard(data):
    return b"%d" % len(bytearray(200 << 20))

def refuse(data):
    print("a library's warning", file=sys.stderr)
    raise InputError("not this one")

def lose(data):
    raise KeyFileError("no key in /srv/secret")

def fill(data):
    raise OSError(28, "No space left on device: secret words")

def starve(data):
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")

def fail(data):
    os.abort()

def write(data, path):
    with open(path, "wb") as stream:
        stream.write(data)
    return b""
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Calls one of the functions above."""
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")

    def call(name, *arguments, data=b"", **bounds):
        every = Bounds(**{"seconds": 60.0, "memory": 512 << 20, "patience": 3600.0, **bounds})
        return run(f"functions:{name}", *arguments, data=data, bounds=every)

    return call


def test_the_result_comes_back(child):
    assert child("echo", "one", "two", data=b"\x00data ") == b"\x00data one two"


def test_threads_are_limited(child, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    assert (child("threads"), child("threads", threads=2)) == (b"1", b"2")


def test_time_is_limited(child):
    with pytest.raises(TimeoutError):
        child("spin", seconds=0.2)


def test_patience_ends_with_a_child_that_only_waits(child):
    with pytest.raises(TimeoutError):
        child("sleep", patience=0.5)


def test_memory_is_limited(child):
    assert child("hoard") == b"%d" % (200 << 20)
    with pytest.raises(OutOfMemory):
        child("hoard", memory=128 << 20)
    with pytest.raises(OutOfMemory):
        child("starve")


def test_what_the_child_rejects_is_told_and_a_crash_is_not(child):
    with pytest.raises(InputError, match="^not this one$"):
        child("refuse")
    with pytest.raises(ChildProcessError):
        child("fail")


def test_files_are_written_only_if_that_is_allowed(child, tmp_path):
    with pytest.raises(ChildProcessError):
        child("write", str(tmp_path / "file"), data=b"data")
    child("write", str(tmp_path / "file"), data=b"data", writes=True)
    assert (tmp_path / "file").read_bytes() == b"data"


@pytest.mark.parametrize(("function", "kind"), [("lose", "KeyFileError"), ("fill", "OSError")])
def test_a_fault_of_the_service_is_logged_by_type_and_not_told(child, caplog, function, kind):
    with pytest.raises(ChildProcessError) as caught:
        child(function)
    assert not isinstance(caught.value, OutOfMemory)
    (record,) = caplog.records
    assert record.fields["code"] == 1
    assert record.fields["exception"].endswith(kind)
    assert "secret" not in f"{caught.value} {record.getMessage()} {record.fields}"
