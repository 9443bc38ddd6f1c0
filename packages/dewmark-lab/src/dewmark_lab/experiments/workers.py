"""Workers that run an experiment's tasks: each keeps its models loaded and takes the next task when free.

A single job runs in this process. With more jobs, or on Ray, every worker is a process of its own, with its
share of the cores (`dewmark.batch.runners`). A worker that dies is replaced, and its task resumes.

A `Task` is plain data that can be sent to another process: it reads finished rows and appends new ones.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dewmark.batch.runners import Runner, cores, open_runner
from dewmark.capabilities import KeepsRecords
from dewmark.config import cache_dir
from dewmark.errors import DewmarkError
from dewmark.workspace import Expectations, LanguageModel, Progress, Workspace, silent
from dewmark_audit.texts import Row
from dewmark_lab.experiments.outputs import Output
from dewmark_lab.experiments.recipe import AttackEntry, SchemeEntry, experiment_key

if TYPE_CHECKING:
    from dewmark.hosts.base import Host
    from dewmark.scheme import BoundScheme
    from dewmark_lab.attacks.base import Attack


class LoadedModels:
    """The models that a process keeps loaded: the last host, scheme and attack, and readers."""

    def __init__(
        self, device: str = "auto", dtype: str = "auto", *, threads: int = 0, progress: Progress = silent
    ) -> None:
        """``threads`` limits the threads of an attack; 0 means one per core."""
        self.device, self.dtype, self.threads, self.progress = device, dtype, threads, progress
        self._host: tuple[str, Host] | None = None
        self._scheme: tuple[object, BoundScheme] | None = None
        self._attack: tuple[AttackEntry, Attack] | None = None
        self._readers: dict[str, Expectations] = {}

    def host(self, name: str) -> Host:
        """A host with its weights; it replaces the previous one."""
        if self._host is None or self._host[0] != name:
            from dewmark import hosts

            self._host = None  # two hosts may not fit into memory
            opened = hosts.load_host(name, device=self.device, dtype=self.dtype, progress=self.progress)
            self._host = name, opened
        return self._host[1]

    def scheme(
        self, entry: SchemeEntry, key: int, *, own_texts: tuple[Output, int] | None = None
    ) -> BoundScheme:
        """A scheme under an experiment's key; if it runs the host to detect, it shares the loaded one.

        ``own_texts`` are the texts that the scheme wrote, and how many: schemes that keep records of their
        texts get them before detection.
        """
        # label, test, reader and score don't matter
        wanted = (entry.scheme, entry.settings, entry.host, key, own_texts)
        if self._scheme is None or self._scheme[0] != wanted:
            from dewmark import hosts

            def open_host(other: str | None) -> LanguageModel:
                return self.host(other or entry.host)

            self._scheme = None
            workspace = Workspace(
                cache=cache_dir(), progress=self.progress, find_host=hosts.host_info, open_host=open_host
            )
            info = hosts.host_info(entry.host, progress=self.progress)
            bound = entry.build().bind(experiment_key(key), info, workspace)
            if own_texts is not None and isinstance(bound, KeepsRecords):
                rows = own_texts[0].read(own_texts[1])
                bound.finished([row["text"] for row in rows], seeds=[row["seed"] for row in rows])
            self._scheme = wanted, bound
        return self._scheme[1]

    def reader(self, name: str) -> Expectations:
        """A language model that reads texts before detection."""
        if name not in self._readers:
            from dewmark.hosts.expectations import open_reader

            opened = open_reader(name, device=self.device, dtype=self.dtype, progress=self.progress)
            assert opened is not None  # only the name "none" has no reader
            self._readers[name] = opened
        return self._readers[name]

    def attack(self, entry: AttackEntry) -> Attack:
        """An attack with its settings."""
        if self._attack is None or self._attack[0] != entry:
            from dewmark_lab.attacks.base import attack_class, load_attack

            kind = attack_class(entry.attack, engine=entry.settings.get("engine"))
            accepted = {each.name for each in dataclasses.fields(kind)}
            resources = {"device": self.device, "jobs": self.threads}  # these don't change the texts
            resources = {name: value for name, value in resources.items() if name in accepted}
            self._attack = entry, load_attack(entry.attack, **{**resources, **entry.settings})
        return self._attack[1]


@dataclass(frozen=True)
class Task(ABC):
    """A unit of work that makes ``rows`` rows."""

    rows: int

    @abstractmethod
    def run(self, models: LoadedModels, on_rows: Callable[[int], None]) -> None:
        """Make the rows that are missing; ``on_rows`` gets the number of rows done so far."""


@dataclass(frozen=True)
class Fill(Task):
    """Make the missing rows of an output in batches of ``size``.

    ``make`` gets the models and a range and returns its rows: a partial of a function that other processes
    can import.
    """

    target: Output
    size: int
    make: Callable[[LoadedModels, range], Sequence[Row]]

    def run(self, models: LoadedModels, on_rows: Callable[[int], None]) -> None:
        self.target.fill(self.rows, functools.partial(self.make, models), size=self.size, on_rows=on_rows)


class Workers:
    """``jobs`` workers of an engine (local or ray); a context manager that ends their processes."""

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
        self._engine, self._placement = engine, (device, dtype)
        self._models: LoadedModels | None = None
        self._runner: Runner | None = None

    def map(self, description: str, tasks: Sequence[Task], *, parallel: bool = True) -> None:
        """Run all tasks; a failed task does not stop the others, and the first error is raised at the end."""
        if not tasks:
            return
        total, done = sum(task.rows for task in tasks), 0
        self.progress(description, 0, total)
        errors: list[DewmarkError] = []
        parallel = parallel and (self._engine != "local" or min(self.jobs, len(tasks)) > 1)
        for task, error in self._parallel(tasks) if parallel else self._serial(description, tasks, total):
            done += task.rows
            self.progress(description, done, total)
            errors += [] if error is None else [error]
        if errors:
            more = f" (and {len(errors) - 1} more of {len(tasks)} failed)" if len(errors) > 1 else ""
            raise type(errors[0])(f"{description}: {errors[0]}{more}")

    def models(self) -> LoadedModels:
        """The models that this process keeps loaded."""
        self._models = self._models or LoadedModels(*self._placement, progress=self.progress)
        return self._models

    def _serial(
        self, description: str, tasks: Sequence[Task], total: int
    ) -> Iterator[tuple[Task, DewmarkError | None]]:
        models, before = self.models(), 0
        for task in tasks:

            def on_rows(rows: int, before: int = before) -> None:
                self.progress(description, before + rows, total)

            yield task, _attempt(task, models, on_rows)
            before += task.rows

    def _parallel(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, DewmarkError | None]]:
        self._models = None  # free the memory for the workers' models
        if self._runner is None:
            self._runner = open_runner(self._engine, workers=self.jobs)
        opened = functools.partial(_worker, *self._placement, max(cores() // self.jobs, 1))
        for index, error in self._runner.map(tasks, opened):
            yield tasks[index], error

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None


def _worker(device: str, dtype: str, threads: int) -> Callable[[Task], DewmarkError | None]:
    """Runs in a worker's process; returns the function that runs one task there."""
    models = LoadedModels(device, dtype, threads=threads)
    return lambda task: _attempt(task, models, lambda _rows: None)


def _attempt(task: Task, models: LoadedModels, on_rows: Callable[[int], None]) -> DewmarkError | None:
    """Run a task; returns its error, if any."""
    try:
        task.run(models, on_rows)
    except DewmarkError as error:
        return error
    return None
