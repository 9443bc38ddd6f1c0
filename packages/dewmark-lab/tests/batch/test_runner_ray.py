"""The Ray runner on a real cluster of two workers (run: make test-ray)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.batch.jobs import BAD, DEADLY, Opener

from dewmark.batch.runners import Runner, open_runner
from dewmark.errors import InputError, WorkerError

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def runner():
    with open_runner("ray", workers=2) as opened:
        yield opened


@pytest.fixture
def opener(tmp_path: Path) -> Opener:
    return Opener(tmp_path)


def test_every_job_once_and_in_order_if_asked(runner: Runner, opener, capfd):
    found = list(runner.map(range(20), opener, ordered=True))
    assert [(index, square) for index, (square, _) in found] == [(i, i**2) for i in range(20)]
    assert opener.opened() == len({process for _, (_, process) in found}) <= 2
    assert capfd.readouterr() == ("", "")  # the terminal is for results and progress


def test_a_worker_that_is_killed_from_outside(runner: Runner, tmp_path, capfd):
    opener, before = Opener(tmp_path, seconds=0.2), runner.retried
    killed, found = 0, []
    for index, (square, process) in runner.map(range(20), opener):
        found.append((index, square))
        if not killed:
            killed = process
            os.kill(process, signal.SIGKILL)
    assert sorted(found) == [(i, i**2) for i in range(20)]
    assert runner.retried > before
    assert capfd.readouterr() == ("", "")


def test_a_worker_that_dies_at_its_job(runner: Runner, tmp_path):
    opener = Opener(tmp_path, dies_at=3)
    found = list(runner.map(range(10), opener))
    assert sorted((index, square) for index, (square, _) in found) == [(i, i**2) for i in range(10)]


def test_a_job_that_kills_every_worker_ends_the_run(runner: Runner, opener):
    with pytest.raises(WorkerError, match="3 workers died over job 2"):
        list(runner.map([1, 2, DEADLY, 4], opener))


def test_dewmark_errors_keep_their_type(runner: Runner, opener):
    with pytest.raises(InputError, match="^row 7 is bad: mend it$"):
        list(runner.map([1, BAD, 2], opener))


def test_an_unreachable_cluster(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(WorkerError, match="cannot reach the Ray cluster at RAY_ADDRESS=127.0.0.1:1: "):
        open_runner("ray")


def test_no_jobs(runner: Runner, opener):
    assert list(runner.map([], opener)) == []


def test_tasks_of_an_experiment(runner: Runner, tmp_path):
    from tests.batch.notes import Noting

    from dewmark.errors import ConfigError
    from dewmark_lab.experiments.workers import Workers

    told: list[tuple[str, int, int]] = []
    tasks = [Noting(2, tmp_path / str(i)) for i in range(5)]
    with Workers(jobs=2, engine="ray", progress=lambda *call: told.append(call)) as workers:
        workers.map("noting", tasks)
        with pytest.raises(ConfigError, match="^noting: no file$"):
            workers.map("noting", [*tasks, Noting(1, None)])
    found = [(tmp_path / str(i)).read_text().split() for i in range(5)]
    assert [len(lines) for lines in found] == [2] * 5  # a failure stops no other task
    assert str(os.getpid()) not in {line for lines in found for line in lines}
    assert told[5] == ("noting", 10, 10)
