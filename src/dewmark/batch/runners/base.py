"""The contract of runners: jobs in, results out, over workers that each hold one loaded thing.

A *worker* is a process. It calls ``open_worker`` once, before its first job, and gets the function that does
jobs: so a detector is loaded once per worker, not once per job. What crosses between processes (jobs,
results, ``open_worker``) is pickled; it must hold no key, only the path of its file.

What happens when something goes wrong is the same for every runner:

- a worker that **dies** (killed, out of memory, its machine lost) is replaced, and its job is done again by
  the next worker that is free, up to `ATTEMPTS` times in all: a job that kills whoever takes it ends the run;
- a job that **raises** ends the run with that error: it would raise again.

Every job yields its result exactly once. Only so many jobs are under way at a time that a slow consumer holds
the workers up, instead of filling its memory.
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

__all__ = ["ATTEMPTS", "Runner", "cores", "died_again", "portable"]

ATTEMPTS = 3
"""How often a job is tried whose workers die."""

J = TypeVar("J")
R = TypeVar("R")


class Runner(ABC):
    """Does jobs over ``workers`` workers. A context manager: `close` ends what it started."""

    workers: int
    retried: int = 0
    """How many times a job was begun again because its worker had died."""

    @abstractmethod
    def map(
        self, jobs: Sequence[J], open_worker: Callable[[], Callable[[J], R]], *, ordered: bool = False
    ) -> Iterator[tuple[int, R]]:
        """Yield (place in ``jobs``, result) as results come, or, if ``ordered``, in the order of the jobs."""

    def close(self) -> None:  # noqa: B027 - a runner that keeps nothing open has nothing to do
        """End the workers and give back what the runner holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def died_again(job: int) -> WorkerError:
    """The end of a run over a job whose workers die."""
    return WorkerError(
        f"job {job} has ended {ATTEMPTS} workers, the last without a word: out of memory? "
        "Give fewer workers or smaller blocks"
    )


def portable(error: BaseException) -> DewmarkError:
    """An error in a form that another process can read: our own as they are, others as their one line."""
    if isinstance(error, DewmarkError):
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes, to see that they can be read
        except Exception:  # noqa: BLE001 - whatever pickling may raise, the message can still travel
            return WorkerError(str(error))
        return error
    told = WorkerError(f"a worker failed: {type(error).__name__}: {error}")
    told.add_note("".join(traceback.format_exception(error)))
    return told
