"""Runners: jobs in, results out, over workers on this machine or on a Ray cluster.

A *worker* is a process that holds one loaded object. It calls ``open_worker`` once, before its first job, and
gets the function that does jobs, so a detector is loaded once per worker, not once per job. Jobs, results and
``open_worker`` are pickled between processes: they must not contain a key, only the path of its file.

Failures are handled alike by every runner:

- if a worker **dies** (killed, out of memory, its machine lost), another one takes its place and its job, at
  most `ATTEMPTS` times, so a job that kills every worker ends the run;
- if a job **raises**, the run ends with that error, since the job would raise again.

Every job yields its result exactly once. The number of jobs under way is bounded, so a slow consumer slows
the workers down instead of filling its memory.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Self, TypeVar

from dewmark.errors import ConfigError, DewmarkError, WorkerError
from dewmark.registry import Registry

__all__ = ["Runner", "cores", "open_runner"]

_RUNNERS = Registry(
    "engine", {"local": "dewmark.batch.runners:LocalRunner", "ray": "dewmark.batch.ray_runner:RayRunner"}
)

ATTEMPTS = 3
"""How many workers may die over one job before the run ends."""

_AHEAD = 4  # jobs per worker that may finish before their turn, if results are ordered
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

J = TypeVar("J")
R = TypeVar("R")


class Runner(ABC):
    """Does jobs with ``workers`` workers. As a context manager, it closes itself."""

    workers: int
    retried: int = 0
    """How many times a job was restarted because its worker had died."""

    @abstractmethod
    def map(
        self, jobs: Sequence[J], open_worker: Callable[[], Callable[[J], R]], *, ordered: bool = False
    ) -> Iterator[tuple[int, R]]:
        """Yield (index of the job, result) as results arrive or, if ``ordered``, in the order of the jobs."""

    def close(self) -> None:  # noqa: B027 - optional
        """Stop the workers and release all resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_runner(engine: str = "local", *, workers: int | None = None) -> Runner:
    """A runner by name; ``workers`` defaults to 1 locally and to all CPUs of a Ray cluster."""
    runner: Runner = _RUNNERS[engine](workers=workers)
    return runner


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def died_again(job: int) -> WorkerError:
    """The error that ends a run after a job's workers have died too often."""
    return WorkerError(
        f"{ATTEMPTS} workers died over job {job}, perhaps out of memory: use fewer workers or smaller blocks"
    )


def portable(error: BaseException) -> DewmarkError:
    """An error that can be pickled: dewmark's own as they are, others as a one-line `WorkerError`."""
    if isinstance(error, DewmarkError):
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
        except Exception:  # noqa: BLE001 - the message can still be sent
            return WorkerError(str(error))
        return error
    wrapped = WorkerError(f"a worker failed: {type(error).__name__}: {error}")
    wrapped.add_note("".join(traceback.format_exception(error)))
    return wrapped


@dataclass(eq=False)
class _Worker:
    """A process, its connection, and the index of its current job."""

    process: SpawnProcess
    line: Connection
    job: int | None = None

    def end(self) -> None:
        self.line.close()
        self.process.kill()
        self.process.join()


@dataclass
class _Jobs:
    """The jobs of one `Runner.map`: those that wait, and how often each was begun."""

    all: Sequence[Any]
    waiting: deque[int]
    attempts: Counter[int] = field(default_factory=Counter)

    def give(self, worker: _Worker, limit: int) -> None:
        """Give an idle worker the next job, if that is below ``limit``."""
        if worker.job is None and self.waiting and self.waiting[0] < limit:
            worker.job = self.waiting.popleft()
            self.attempts[worker.job] += 1
            with contextlib.suppress(ConnectionError):  # it died while idle, which the next `wait` reports
                worker.line.send(self.all[worker.job])


class LocalRunner(Runner):
    """Does jobs on this machine. A single worker is this process itself, so errors keep their tracebacks.

    Idle workers are kept for the next `map` with the same ``open_worker``, until `close`.
    """

    def __init__(self, *, workers: int | None = None) -> None:
        self.workers = 1 if workers is None else workers
        if self.workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        self._pool: list[_Worker] = []
        self._opened: object = None

    def map(
        self, jobs: Sequence[J], open_worker: Callable[[], Callable[[J], R]], *, ordered: bool = False
    ) -> Iterator[tuple[int, R]]:
        if self.workers > 1:
            yield from self._spread(jobs, open_worker, ordered)
        elif jobs:
            work = open_worker()
            for index, job in enumerate(jobs):
                yield index, work(job)

    def close(self) -> None:
        while self._pool:
            self._pool.pop().end()

    def _spread(
        self, jobs: Sequence[J], open_worker: Callable[[], Callable[[J], R]], ordered: bool
    ) -> Iterator[tuple[int, R]]:
        if self._opened != open_worker:
            self.close()
        self._opened = open_worker
        all_jobs = _Jobs(jobs, deque(range(len(jobs))))
        early: dict[int, R] = {}  # finished, not yet yielded
        try:
            for turn in range(len(jobs)):
                limit = turn + _AHEAD * self.workers if ordered else len(jobs)
                while turn not in early if ordered else not early:
                    while len(self._pool) < min(self.workers, len(jobs)):
                        self._pool.append(_start(open_worker, self.workers))
                    early.update(self._collect(all_jobs, limit))
                index = turn if ordered else next(iter(early))
                yield index, early.pop(index)
        finally:
            for worker in [each for each in self._pool if each.job is not None]:
                self._pool.remove(worker)
                worker.end()

    def _collect(self, jobs: _Jobs, limit: int) -> Iterator[tuple[int, Any]]:
        """Wait for at least one worker, keeping all busy; jobs from ``limit`` on are not started."""
        for worker in self._pool:
            jobs.give(worker, limit)
        busy = {worker.line: worker for worker in self._pool if worker.job is not None}
        for line in wait(list(busy)):
            worker = busy[line]  # type: ignore[index]  # `wait` returns some of its arguments
            index = worker.job
            assert index is not None
            try:
                done, value = worker.line.recv()
            except (EOFError, ConnectionResetError):  # it died
                worker.end()
                self._pool.remove(worker)
                if jobs.attempts[index] >= ATTEMPTS:
                    raise died_again(index) from None
                self.retried += 1
                jobs.waiting.appendleft(index)
                continue
            if not done:
                raise value
            worker.job = None
            jobs.give(worker, limit)
            yield index, value


def _start(open_worker: Callable[[], Callable[[Any], Any]], count: int) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, open_worker), daemon=True)
    # each gets its share of the cores, unless the user has set the number of threads
    unset = [name for name in _THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(unset, str(max(1, cores() // count))))
    try:
        process.start()
    finally:
        for name in unset:
            del os.environ[name]
    theirs.close()  # then our end reports when the process ends
    return _Worker(process, ours)


def _serve(line: Connection, open_worker: Callable[[], Callable[[Any], Any]]) -> None:
    """The main loop of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and stops its workers

    def end_with_parent() -> None:  # a killed parent cannot stop its workers, so each stops itself
        parent = multiprocessing.parent_process()
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    work: Callable[[Any], Any] | None = None
    with contextlib.suppress(EOFError, OSError):  # the parent has ended
        while True:
            job = line.recv()
            try:
                work = work or open_worker()
                line.send((True, work(job)))
            except (BrokenPipeError, ConnectionResetError):
                return
            except Exception as error:  # noqa: BLE001 - raised in the parent
                line.send((False, portable(error)))
