"""Tasks over workers: each keeps its models open and takes the next task when it is free.

With one job everything runs in this process. With more, each is a process of its own (a GPU's context does
not survive a fork) with its share of the cores, on this machine or over a Ray cluster: see
`dewmark.batch.runners`.
A worker that dies is replaced, and its task goes on where the cell was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from dewmark.batch.runners import Runner, cores, open_runner
from dewmark.errors import DewmarkError
from dewmark.lab.experiments.tasks import Bench, Task
from dewmark.workspace import Progress, silent

__all__ = ["Workers"]


class Workers:
    """``jobs`` workers of an engine; a context manager, which ends their processes."""

    def __init__(
        self,
        *,
        jobs: int = 1,
        engine: str = "local",
        device: str = "auto",
        dtype: str = "auto",
        progress: Progress = silent,
    ) -> None:
        self.jobs, self.progress = jobs, progress
        self._engine, self._models = engine, (device, dtype)
        self._bench: Bench | None = None
        self._runner: Runner | None = None

    def map(self, what: str, tasks: Sequence[Task], *, side_by_side: bool = True) -> None:
        """Run every task; one that fails stops no other, and the first failure is raised at the end."""
        if not tasks:
            return
        total, done = sum(task.rows for task in tasks), 0
        self.progress(what, 0, total)
        failures: list[DewmarkError] = []
        several = side_by_side and (self._engine != "local" or min(self.jobs, len(tasks)) > 1)
        for task, failure in self._several(tasks) if several else self._one_by_one(what, tasks, total):
            done += task.rows
            self.progress(what, done, total)
            failures += [] if failure is None else [failure]
        if failures:
            more = f" (and {len(failures) - 1} more of {len(tasks)} failed)" if len(failures) > 1 else ""
            raise type(failures[0])(f"{what}: {failures[0]}{more}")

    def bench(self) -> Bench:
        """The models that this process keeps open."""
        self._bench = self._bench or Bench(*self._models, progress=self.progress)
        return self._bench

    def _one_by_one(
        self, what: str, tasks: Sequence[Task], total: int
    ) -> Iterator[tuple[Task, DewmarkError | None]]:
        bench, before = self.bench(), 0
        for task in tasks:

            def tell(rows: int, before: int = before) -> None:
                self.progress(what, before + rows, total)

            failure = None
            try:
                task.run(bench, tell)
            except DewmarkError as error:
                failure = error
            before += task.rows
            yield task, failure

    def _several(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, DewmarkError | None]]:
        self._bench = None  # what this process holds is not needed beside the workers'
        if self._runner is None:
            self._runner = open_runner(self._engine, workers=self.jobs)
        opened = _Open(*self._models, max(cores() // self.jobs, 1))
        for place, failure in self._runner.map(tasks, opened):
            yield tasks[place], failure

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None


@dataclass(frozen=True)
class _Open:
    """Opens a worker: its models, and what does a task with them and returns its failure, if any."""

    device: str
    dtype: str
    threads: int

    def __call__(self) -> Callable[[Task], DewmarkError | None]:
        bench = Bench(self.device, self.dtype, threads=self.threads)

        def work(task: Task) -> DewmarkError | None:
            try:
                task.run(bench, _nothing)
            except DewmarkError as error:
                return error
            return None

        return work


def _nothing(rows: int) -> None:
    """Workers tell nothing; who waits for them does."""
