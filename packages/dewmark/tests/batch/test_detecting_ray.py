"""Detection over a real Ray cluster of two workers, one of which is killed (run: make test-ray)."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.batch.many import DyingWorker, export_kgw, read, texts, write_jsonl, write_parquet

from dewmark.batch import detect_file, detecting
from dewmark.core.keys import Key
from dewmark_lab.testing.fake_host import tiny_model

pytestmark = pytest.mark.ray

SECRET = bytes(range(100, 132))


def test_the_block_of_a_killed_worker_is_retried(tmp_path, monkeypatch):
    detector, rows = export_kgw(tmp_path / "detector"), texts(400)
    given = write_parquet(tmp_path / "in.parquet", rows)
    local, made = tmp_path / "local.parquet", tmp_path / "ray.parquet"
    detect_file(given, local, detector)
    monkeypatch.setattr(detecting, "ScoringWorker", DyingWorker)
    monkeypatch.setenv("DEWMARK_TEST_DIED", str(tmp_path / "died"))
    found = detect_file(given, made, detector, engine="ray", workers=2, block_size=8)
    assert (tmp_path / "died").exists()
    assert found.blocks_retried >= 1
    assert [row["id"] for row in read(made)] == list(range(400))  # every text exactly once
    assert read(made) == read(local)


@pytest.fixture
def logs():
    """Ray's folder; its path must be short because it contains sockets."""
    folder = Path(tempfile.mkdtemp(prefix="dw"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


COMMAND = [sys.executable, "-c", "import sys; from dewmark.cli.app import main; sys.exit(main())", "detect"]


def test_a_running_cluster(logs, tmp_path):
    """A cluster that RAY_ADDRESS names is used and left running."""
    detector, given = export_kgw(tmp_path / "detector"), write_jsonl(tmp_path / "in.jsonl", texts(60))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}",
        "--num-cpus=2", "--include-dashboard=false", f"--temp-dir={logs}",
        "--object-store-memory=100000000", "--disable-usage-stats",
    ]  # fmt: skip
    # the cluster lets in who knows its token; this one is drawn for the test
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = {**os.environ, **token}
    with subprocess.Popen(start, env=environment, stdout=subprocess.DEVNULL) as cluster:
        try:
            environment["RAY_ADDRESS"] = f"127.0.0.1:{port}"
            _answers(port)
            for name in ("first", "second"):
                made = tmp_path / f"{name}.parquet"
                command = [*COMMAND, "--detector", detector, "--in", given, "--out", made, "--engine", "ray"]
                subprocess.run([*command, "--block-size", "9"], env=environment, check=True)
                assert [row["id"] for row in read(made)] == list(range(60))
            assert cluster.poll() is None
        finally:
            cluster.terminate()


def _answers(port: int) -> None:
    for _ in range(300):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    pytest.fail("the cluster did not start")


def test_a_killed_command_is_resumed_and_leaves_no_key_behind(logs, tmp_path):
    """The command is killed half-way; the next one scores only the missing texts."""
    key_file = tmp_path / "the.key"
    Key(SECRET).save(key_file)
    for part in tiny_model():
        part.save_pretrained(tmp_path / "host")
    given = write_jsonl(tmp_path / "in.jsonl", texts(100))
    made, partial = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"

    def finished() -> int:
        return partial.read_bytes().count(b"\n") - 1 if partial.exists() else 0

    command = [
        *COMMAND, "--key", key_file, "--scheme", "kgw", "--host", tmp_path / "host", "--in", given,
        "--out", made, "--engine", "ray", "--workers", "2", "--block-size", "1", "--json",
    ]  # fmt: skip
    environment = {**os.environ, "RAY_TMPDIR": str(logs)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as first:
        while first.poll() is None and finished() < 10:
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
    kept = finished()
    assert 10 <= kept < 100
    second = subprocess.run([*command, "-q"], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(second.stdout)["resumed_from"] == kept
    assert second.stderr == ""  # a terminal is for progress, and quiet is quiet
    assert [row["id"] for row in read(made)] == list(range(100))
    files = [path for path in logs.rglob("*") if path.is_file()]
    assert files
    for file in files:
        data = file.read_bytes()
        assert SECRET not in data, file
        assert SECRET.hex().encode() not in data, file
