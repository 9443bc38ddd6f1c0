"""The supervisor's care for its workers, which are small programs here."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
import threading
import time

import anyio
import pytest
import uvicorn
from tests.desk.live import PATIENCE, make_service

from dewmark_desk import supervisor, worker
from dewmark_desk.settings import Settings
from dewmark_desk.supervisor import Supervisor, listen

# The first worker falls silent; the others say that they are alive.
PROGRAM = """
import pathlib, sys, time
first = pathlib.Path(sys.argv[1])
silent = not first.exists()
first.touch()
while True:
    print("ready", flush=True)
    time.sleep(3600 if silent else 0.05)
"""


@pytest.fixture
def running(tmp_path, monkeypatch):
    """A supervisor of one such worker."""
    program = tmp_path / "worker.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(tmp_path / "first")]
    monkeypatch.setattr(supervisor, "_COMMAND", command)
    settings = Settings(detectors=(("acme", "nowhere"),), silent_seconds=2.0, grace_seconds=0)
    with listen("127.0.0.1", 0) as listening:
        made = Supervisor(settings, listening)
        thread = threading.Thread(target=made.run, args=[lambda: None])
        thread.start()
        try:
            yield made
        finally:
            made.stop()
            thread.join()


def test_a_worker_that_does_not_answer_is_replaced(running, caplog):
    def until(condition):
        while not condition():
            time.sleep(0.05)

    with caplog.at_level(logging.WARNING, "dewmark_desk"):
        until(lambda: running.pids)
        (silent,) = running.pids
        until(lambda: running.pids and running.pids != [silent])
        until(lambda: "a worker died" in caplog.messages)
        assert caplog.messages[:2] == ["a worker does not answer", "a worker died"]


def test_a_worker_is_heard_while_all_its_requests_wait_for_the_store(tmp_path, monkeypatch):
    heard, store = threading.Event(), threading.Event()
    monkeypatch.setattr(worker, "_say", lambda _: heard.set())

    async def serve() -> bool:
        service = make_service(tmp_path)
        service.start()
        server = worker._Server(uvicorn.Config(lambda: None), service)
        threads = int(anyio.to_thread.current_default_thread_limiter().total_tokens)
        requests = [asyncio.create_task(service.in_thread(store.wait, PATIENCE)) for _ in range(threads + 1)]
        await asyncio.sleep(0)  # they come first
        beating = asyncio.create_task(server._beat())
        try:
            return await asyncio.to_thread(heard.wait, 5.0)
        finally:
            beating.cancel()
            store.set()
            await asyncio.gather(*requests)
            service.close()

    assert asyncio.run(serve())


def test_a_pause_of_the_machine_is_no_silence(tmp_path, monkeypatch):
    (tmp_path / "worker.py").write_text('import time; print("ready", flush=True); time.sleep(3600)')
    monkeypatch.setattr(supervisor, "_COMMAND", [sys.executable, str(tmp_path / "worker.py")])
    settings = Settings(detectors=(("acme", "nowhere"),), silent_seconds=2.0)
    with listen("127.0.0.1", 0) as listening:
        made = Supervisor(settings, listening)
        only = supervisor._Worker(settings, listening, {})
        made._workers.append(only)
        assert only.ready.wait(PATIENCE)
        after = time.monotonic() + 3600.0
        with monkeypatch.context() as patched:
            patched.setattr(time, "monotonic", lambda: after)
            made._kill_silent()
        assert only.process.poll() is None
        polls = 1
        while only.process.poll() is None:
            made._kill_silent()
            polls += 1
        assert polls == pytest.approx(2.0 / 0.1, abs=1.5)


def test_a_worker_lets_the_event_loop_run_beside_busy_threads(monkeypatch, tmp_path):
    """The interpreter's default lets another thread run for 5 ms at every read."""
    settings = Settings(
        detectors=(("acme", str(tmp_path / "none")),), store=f"sqlite:///{tmp_path}/service.db"
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO(settings.to_json() + "\n"))
    monkeypatch.setattr(worker, "_stop_with_supervisor", lambda: None)
    before = sys.getswitchinterval()
    try:
        with pytest.raises(SystemExit):
            worker.main()
        assert sys.getswitchinterval() < 1e-3
    finally:
        sys.setswitchinterval(before)
