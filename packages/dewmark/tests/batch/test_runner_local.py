"""The local runner, and the contract of all runners."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.batch.jobs import BAD, BROKEN, DEADLY, Opener

from dewmark.batch.runners import ATTEMPTS, open_runner
from dewmark.errors import ConfigError, InputError, UnknownNameError, WorkerError


@pytest.fixture
def local():
    """Opens runners; none outlives its test."""
    with contextlib.ExitStack() as stack:
        yield lambda workers=1: stack.enter_context(open_runner("local", workers=workers))


@pytest.fixture
def opener(tmp_path: Path) -> Opener:
    return Opener(tmp_path)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("ordered", [True, False])
def test_every_job_once(local, opener, workers, ordered):
    jobs = list(range(40))
    found = list(local(workers).map(jobs, opener, ordered=ordered))
    assert sorted((index, square) for index, (square, _) in found) == [(i, i**2) for i in jobs]
    if ordered:
        assert [index for index, _ in found] == jobs
    # each worker opened its thing once, whatever the number of its jobs
    assert opener.opened() == len({process for _, (_, process) in found}) <= workers


@pytest.mark.parametrize("ordered", [True, False])
def test_a_killed_worker_is_replaced_and_its_job_restarted(local, tmp_path, ordered):
    opener, runner = Opener(tmp_path, dies_at=9, openings=3), local(2)
    found = list(runner.map(range(30), opener, ordered=ordered))
    assert sorted((index, square) for index, (square, _) in found) == [(i, i**2) for i in range(30)]
    if ordered:
        assert [index for index, _ in found] == list(range(30))
    assert runner.retried == 1
    assert opener.opened() == 3


def test_a_job_that_kills_every_worker_ends_the_run(local, opener):
    runner = local(2)
    with pytest.raises(WorkerError, match=f"{ATTEMPTS} workers died over job 2"):
        list(runner.map([1, 2, DEADLY, 4], opener))
    assert runner.retried == ATTEMPTS - 1


@pytest.mark.parametrize("workers", [1, 2])
def test_dewmark_errors_keep_their_type(local, opener, workers):
    with pytest.raises(InputError, match="^row 7 is bad: mend it$"):
        list(local(workers).map([1, BAD, 2], opener))


def test_other_errors_keep_their_traceback(local, opener):
    runner = local(2)
    with pytest.raises(WorkerError, match="a worker failed: ZeroDivisionError: by nought") as caught:
        list(runner.map([1, BROKEN, 2], opener))
    assert runner.retried == 0  # it would raise again
    assert "raise ZeroDivisionError" in "".join(caught.value.__notes__)


def test_a_slow_consumer_slows_the_workers(local, tmp_path):
    class Counted(list):
        given = 0

        def __getitem__(self, index):
            Counted.given += 1
            return super().__getitem__(index)

    for ordered, ahead in ((False, 4), (True, 4 + 2 * 4)):
        Counted.given = 0
        folder = tmp_path / str(ordered)
        folder.mkdir()
        results = local(2).map(Counted(range(1000)), Opener(folder), ordered=ordered)
        for taken in range(1, 20):
            next(results)
            assert Counted.given <= taken + ahead
        results.close()


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def running(process: int) -> bool:
    """A process exists, and is not merely waiting to be collected by whoever adopted it."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return alive(process)
    return state != "Z"


def test_busy_workers_end_with_the_run_and_idle_ones_with_the_runner(local, tmp_path):
    opener = Opener(tmp_path, seconds=0.05)
    with local(2) as runner:
        results = runner.map(range(50), opener)
        processes = {next(results)[1][1] for _ in range(6)}
        results.close()
        assert not any(map(alive, processes))
        processes = {process for _, (_, process) in runner.map(range(8), opener)}
        assert all(map(alive, processes))  # they wait for more
    assert not any(map(alive, processes))


RUN = """
import sys
from pathlib import Path
from tests.batch.jobs import Opener
from dewmark.batch.runners import open_runner
if __name__ == "__main__":
    with open_runner("local", workers=2) as runner:
        list(runner.map([1, 2], Opener(Path(sys.argv[1]), seconds=600.0)))
"""


def test_busy_workers_end_when_their_parent_is_killed(tmp_path):
    opener, script, deadline = Opener(tmp_path), tmp_path / "run.py", time.monotonic() + 60.0
    script.write_text(RUN, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=environment) as parent:
        while opener.opened() < 2 and parent.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        parent.kill()
    workers = [int(file.name.partition("-")[2]) for file in tmp_path.glob("opened-*")]
    assert len(workers) == 2
    try:
        while any(map(running, workers)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(map(running, workers))
    finally:
        for worker in filter(running, workers):
            os.kill(worker, signal.SIGKILL)


def test_workers_are_reused_for_the_same_opener_only(local, tmp_path):
    with local(2) as runner:
        for _ in range(3):
            assert len(list(runner.map(range(12), Opener(tmp_path)))) == 12
        assert Opener(tmp_path).opened() <= 2
        (tmp_path / "other").mkdir()
        other = Opener(tmp_path / "other")
        assert len(list(runner.map(range(12), other))) == 12
        assert other.opened() >= 1


def test_bad_arguments():
    with pytest.raises(UnknownNameError, match="unknown engine 'rya'; did you mean 'ray'"):
        open_runner("rya")
    with pytest.raises(ConfigError, match="workers must be at least 1, got -1"):
        open_runner("local", workers=-1)
