"""The local runner: one worker runs in this process, several run in processes of their own."""

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

from dewmark.batch.runners import ATTEMPTS, J, R, Runner, cores, died_again, portable
from dewmark.errors import ConfigError

_AHEAD = 4  # jobs per worker that may finish before their turn, if results are ordered
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


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


class LocalRunner(Runner):
    """Does jobs on this machine. A single worker is this process itself, so errors keep their tracebacks.

    Idle workers are kept for the next `map` with the same ``open_worker``, until `close`.
    """

    def __init__(self, *, workers: int | None = None) -> None:
        workers = 1 if workers is None else workers
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
        """Stop the idle workers."""
        while self._idle:
            self._idle.pop().end()

    def _spread(
        self, jobs: Sequence[J], open_worker: Callable[[], Callable[[J], R]], ordered: bool
    ) -> Iterator[tuple[int, R]]:
        if self._opened != open_worker:
            self.close()
        pool = _Pool(jobs, open_worker, self.workers, self._idle)
        self._opened, self._idle = open_worker, []
        early: dict[int, R] = {}  # finished, not yet yielded
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
    """Workers, and the jobs that wait for them."""

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
        """Wait for at least one result, keeping all workers busy; jobs from ``limit`` on are not started."""
        while len(self._workers) < min(self._size, len(self._jobs)):
            self._workers.append(_start(self._open_worker, self._size))
        for worker in self._workers:
            self._give(worker, limit)
        busy = {worker.line: worker for worker in self._workers if worker.job is not None}
        for line in wait(list(busy)):
            worker = busy[line]  # type: ignore[index]  # `wait` returns some of its arguments
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
        """Stop the busy workers; returns the idle ones."""
        for worker in self._workers:
            if worker.job is not None:
                worker.end()
        return [worker for worker in self._workers if worker.job is None]

    def _give(self, worker: _Worker, limit: int) -> None:
        if worker.job is None and self._waiting and self._waiting[0] < limit:
            worker.job = self._waiting.popleft()
            self._attempts[worker.job] += 1
            with contextlib.suppress(ConnectionError):  # it died while idle, which the next `wait` reports
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
    theirs.close()  # then our end reports when the process ends
    return _Worker(process, ours)


def _serve(line: Connection, open_worker: Callable[[], Callable[[Any], Any]]) -> None:
    """The main loop of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and stops its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
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


def _end_with_parent() -> None:
    """A killed parent cannot stop its workers, so each stops itself."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Give processes started inside ``count`` threads each, unless the user has set the number."""
    unset = [name for name in _THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(unset, str(count)))
    try:
        yield
    finally:
        for name in unset:
            del os.environ[name]
