"""The runner of a Ray cluster: Ray Data spreads the jobs over actors on any number of machines.

The cluster is the one that ``RAY_ADDRESS`` names, otherwise one that is started on this machine and ended by
`close`. Each job is one block of a dataset; Ray Data keeps at most `_IN_FLIGHT` of them at each actor, waits
when results are not taken, and gives the blocks of an actor that died to others. It would do so for ever, so
a ledger (an actor of its own) counts the attempts: see `base`.

Ray stores the jobs, ``open_worker`` and the results in its object store, where everyone who may use the
cluster can read them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dewmark.batch.runners.base import ATTEMPTS, J, R, Runner, cores, died_again, portable
from dewmark.errors import ConfigError, DewmarkError, WorkerError
from dewmark.extras import require

__all__ = ["RayRunner"]

_IN_FLIGHT = 2  # one job in work and one that waits beside it, so that a worker never idles
_STORE = 256 << 20  # bytes of shared memory of a cluster on this machine; Ray would take a third of all

_PATIENCE = 10.0  # seconds for a cluster to answer

# Ray's own reports go to its log files: a terminal is for results and progress.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}


class RayRunner(Runner):
    """Does jobs on a Ray cluster. ``workers`` is by default the number of its CPUs, one each."""

    def __init__(self, *, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        self._ray: Any = require("ray", extra="ray")
        self._data: Any = require("ray.data", extra="ray")
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        self._ours = not self._ray.is_initialized()
        if self._ours:
            self._connect(workers)
        self.workers = workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def _connect(self, workers: int | None) -> None:
        address = os.environ.get("RAY_ADDRESS")
        # Ray tells of lost workers on standard output, where results belong; no public switch stops it
        self._ray._private.worker._worker_logs_enabled = False
        local = {
            "address": "local",
            "num_cpus": workers or cores(),
            "include_dashboard": False,
            "object_store_memory": _STORE,
        }
        where = f"the Ray cluster at RAY_ADDRESS={address}" if address else "a Ray cluster on this machine"
        try:
            if address:
                _knock(address)
            with _no_stderr():
                self._ray.init(
                    **({"address": address} if address else local),
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
        except (OSError, RuntimeError, ValueError) as error:
            hint = "; if it wants a token, set RAY_AUTH_TOKEN_PATH" if address else ""
            raise WorkerError(f"cannot reach {where}: {error}{hint}") from error

    def map(
        self, jobs: Sequence[J], open_worker: Callable[[], Callable[[J], R]], *, ordered: bool = False
    ) -> Iterator[tuple[int, R]]:
        """See `Runner.map`."""
        if not jobs:
            return
        ledger = self._ray.remote(num_cpus=0)(_Ledger).remote()
        rows = [{"index": index, "job": pickle.dumps(job)} for index, job in enumerate(jobs)]
        context = self._data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        context.execution_options.preserve_order = ordered
        results = self._data.from_items(rows, override_num_blocks=len(rows)).map(
            _Actor,
            fn_constructor_args=(ledger, pickle.dumps(open_worker)),
            compute=self._data.ActorPoolStrategy(
                size=min(self.workers, len(jobs)), max_tasks_in_flight_per_actor=_IN_FLIGHT
            ),
            num_cpus=1,
        )
        try:
            for row in results.iter_rows():
                done, value = pickle.loads(row["result"])  # noqa: S301 - from our own worker
                if not done:
                    raise value
                yield row["index"], value
        except DewmarkError:
            raise
        except self._ray.exceptions.RayError as error:
            raise WorkerError(f"Ray gave up: {str(error).strip().splitlines()[0]}") from error
        finally:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self.retried += self._ray.get(ledger.retried.remote(), timeout=10)

    def close(self) -> None:
        """End the cluster on this machine, or leave the one that was there before."""
        if self._ours:
            self._ray.shutdown()


def _knock(address: str) -> None:
    """See that somebody is there: Ray itself would try for minutes, in silence."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():  # not "auto"
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    """Ray's compiled part announces its log level there when it starts; errors come as exceptions."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class _Ledger:
    """How often each job was begun; lives in an actor that does nothing else."""

    def __init__(self) -> None:
        self._begun: dict[int, int] = {}

    def begin(self, index: int) -> int:
        self._begun[index] = self._begun.get(index, 0) + 1
        return self._begun[index]

    def retried(self) -> int:
        return sum(self._begun.values()) - len(self._begun)


class _Actor:
    """A worker. It opens what it works with at its first job, so that a death meanwhile is counted too."""

    def __init__(self, ledger: Any, open_worker: bytes) -> None:  # noqa: ANN401 - Ray's handle
        self._ledger = ledger
        self._open: Callable[[], Callable[[Any], Any]] = pickle.loads(open_worker)  # noqa: S301 - our driver's
        self._work: Callable[[Any], Any] | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        index = int(row["index"])
        try:
            result = (True, self._do(index, row["job"]))
            packed = pickle.dumps(result)
        except Exception as error:  # noqa: BLE001 - it is raised in the driver
            packed = pickle.dumps((False, portable(error)))
        return {"index": index, "result": packed}

    def _do(self, index: int, job: bytes) -> object:
        ray: Any = require("ray", extra="ray")
        if ray.get(self._ledger.begin.remote(index)) > ATTEMPTS:
            raise died_again(index)
        self._work = self._work or self._open()
        return self._work(pickle.loads(job))  # noqa: S301 - our driver's
