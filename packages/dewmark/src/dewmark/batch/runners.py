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

import os
import pickle
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self, TypeVar

from dewmark.errors import DewmarkError, WorkerError
from dewmark.registry import Registry

__all__ = ["Runner", "cores", "open_runner"]

_RUNNERS = Registry(
    "engine",
    {"local": "dewmark.batch.local_runner:LocalRunner", "ray": "dewmark.batch.ray_runner:RayRunner"},
)

ATTEMPTS = 3
"""How many workers may die over one job before the run ends."""

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
