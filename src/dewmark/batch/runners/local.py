"""The runner of this machine: in this process for one worker, in as many processes as wanted for more."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from dewmark.batch.runners.base import ATTEMPTS, J, R, Runner, cores, died_again, portable
from dewmark.errors import ConfigError

__all__ = ["LocalRunner"]

_AHEAD = 4  # ordered: so many jobs per worker may be finished before their turn
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(eq=False)
class _Worker:
    """A process with its line to us, and the job it has."""

    process: SpawnProcess
    line: Connection
    job: int | None = None

    def end(self) -> None:
        self.line.close()
        self.process.kill()
        self.process.join()


class LocalRunner(Runner):
    """Does jobs on this machine. One worker is this process itself: no copy, and errors with their traces.

    Workers that have nothing more to do wait for the next `map` that opens the same, until `close`.
    """

    def __init__(self, *, workers: int = 1) -> None:
        if workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        self.workers = workers
        self._idle: list[_Worker] = []
        self._opened: object = None

    def map(
        self, jobs: Sequence[J], open_worker: Callable[[], Callable[[J], R]], *, ordered: bool = False
    ) -> Iterator[tuple[int, R]]:
        """See `Runner.map`."""
        if self.workers > 1:
            yield from self._spread(jobs, open_worker, ordered)
        elif jobs:
            work = open_worker()
            for index, job in enumerate(jobs):
                yield index, work(job)

    def close(self) -> None:
        """End the workers that wait."""
        while self._idle:
            self._idle.pop().end()

    def _spread(
        self, jobs: Sequence[J], open_worker: Callable[[], Callable[[J], R]], ordered: bool
    ) -> Iterator[tuple[int, R]]:
        if self._opened != open_worker:
            self.close()
        pool = _Pool(jobs, open_worker, self.workers, self._idle)
        self._opened, self._idle = open_worker, []
        early: dict[int, R] = {}  # finished, and not yet handed on
        try:
            for turn in range(len(jobs)):
                limit = turn + _AHEAD * self.workers if ordered else len(jobs)
                while turn not in early if ordered else not early:
                    retried = pool.retried
                    early.update(pool.collect(limit))
                    self.retried += pool.retried - retried
                index = turn if ordered else next(iter(early))
                yield index, early.pop(index)
        finally:
            self._idle = pool.end()


class _Pool:
    """Workers, and the jobs that wait for one."""

    def __init__(
        self,
        jobs: Sequence[Any],
        open_worker: Callable[[], Callable[[Any], Any]],
        workers: int,
        idle: list[_Worker],
    ) -> None:
        self._jobs, self._open_worker, self._size = jobs, open_worker, workers
        self._waiting = deque(range(len(jobs)))
        self._attempts = Counter[int]()
        self.retried = 0
        self._workers = idle

    def collect(self, limit: int) -> Iterator[tuple[int, Any]]:
        """Wait for one result or more; jobs from ``limit`` on are not begun. Nobody idles meanwhile."""
        while len(self._workers) < min(self._size, len(self._jobs)):
            self._workers.append(_start(self._open_worker, self._size))
        for worker in self._workers:
            self._give(worker, limit)
        busy = {worker.line: worker for worker in self._workers if worker.job is not None}
        for line in wait(list(busy)):
            worker = busy[line]  # type: ignore[index]  # what comes back is what was given
            index = worker.job
            assert index is not None
            try:
                done, value = worker.line.recv()
            except (EOFError, ConnectionResetError):
                self._lost(worker, index)
                continue
            if not done:
                raise value
            worker.job = None
            self._give(worker, limit)
            yield index, value

    def end(self) -> list[_Worker]:
        """End the workers that are in the middle of something; returns the others."""
        for worker in self._workers:
            if worker.job is not None:
                worker.end()
        return [worker for worker in self._workers if worker.job is None]

    def _give(self, worker: _Worker, limit: int) -> None:
        if worker.job is None and self._waiting and self._waiting[0] < limit:
            worker.job = self._waiting.popleft()
            self._attempts[worker.job] += 1
            with contextlib.suppress(ConnectionError):  # it died while idle, and its line will say so
                worker.line.send(self._jobs[worker.job])

    def _lost(self, worker: _Worker, index: int) -> None:
        worker.end()
        self._workers.remove(worker)
        if self._attempts[index] >= ATTEMPTS:
            raise died_again(index) from None
        self.retried += 1
        self._waiting.appendleft(index)


def _start(open_worker: Callable[[], Callable[[Any], Any]], count: int) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, open_worker), daemon=True)
    with _threads(max(1, cores() // count)):
        process.start()
    theirs.close()  # so that our end reports the end of the process
    return _Worker(process, ours)


def _serve(line: Connection, open_worker: Callable[[], Callable[[Any], Any]]) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work: Callable[[Any], Any] | None = None
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        while True:
            job = line.recv()
            try:
                work = work or open_worker()
                line.send((True, work(job)))
            except (BrokenPipeError, ConnectionResetError):
                return
            except Exception as error:  # noqa: BLE001 - it is raised in the parent
                line.send((False, portable(error)))


def _end_with_parent() -> None:
    """A parent that is killed cannot end its workers, and none may go on writing after it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """The processes started inside share the cores: so many threads each, unless the user has said it."""
    unset = [name for name in _THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(unset, str(count)))
    try:
        yield
    finally:
        for name in unset:
            del os.environ[name]
