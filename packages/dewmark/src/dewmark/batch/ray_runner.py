"""The Ray runner: Ray Data spreads jobs over actors on any number of machines.

The cluster is the one that ``RAY_ADDRESS`` names, otherwise one that is started on this machine and stopped
by `close`. Each job is one block of a dataset. Ray Data keeps at most `_IN_FLIGHT` of them per actor, waits
while results are not consumed, and hands the blocks of a dead actor to others. It would do so for ever, so a
ledger (an actor of its own) counts the attempts (`dewmark.batch.runners`).

Ray puts the jobs, ``open_worker`` and the results in its object store, which everyone with access to the
cluster can read.
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

from dewmark.batch.runners import ATTEMPTS, J, R, Runner, cores, died_again, portable
from dewmark.errors import ConfigError, DewmarkError, WorkerError
from dewmark.extras import require

_IN_FLIGHT = 2  # one running and one waiting, so that a worker never idles
_STORE = 256 << 20  # bytes of shared memory for a local cluster; Ray would take a third of all memory
_TIMEOUT = 10.0  # seconds for a cluster to answer

# Ray's own messages stay in its log files.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}


class RayRunner(Runner):
    """Does jobs on a Ray cluster. ``workers`` defaults to its number of CPUs."""

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
            # Ray reports lost workers on standard output, where results belong; there is no public switch
            self._ray._private.worker._worker_logs_enabled = False
            address, where, hint = os.environ.get("RAY_ADDRESS"), "a Ray cluster on this machine", ""
            cluster: dict[str, Any] = {"address": "local", "num_cpus": workers or cores()}
            cluster |= {"include_dashboard": False, "object_store_memory": _STORE}
            if address:
                where = f"the Ray cluster at RAY_ADDRESS={address}"
                cluster, hint = {"address": address}, "; if it requires a token, set RAY_AUTH_TOKEN_PATH"
            try:
                host, _, port = (address or "").removeprefix("ray://").rpartition(":")
                if host and port.isdigit():  # not "auto"; Ray itself would try for minutes, silently
                    socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT).close()
                with _no_stderr():
                    self._ray.init(**cluster, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, RuntimeError, ValueError) as error:
                raise WorkerError(f"cannot reach {where}: {error}{hint}") from error
        self.workers = workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def map(
        self, jobs: Sequence[J], open_worker: Callable[[], Callable[[J], R]], *, ordered: bool = False
    ) -> Iterator[tuple[int, R]]:
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
        if self._ours:
            self._ray.shutdown()


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    """Silence stderr: Ray's native code prints its log level there, and errors come as exceptions."""
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
    """Counts how often each job was started; an actor that does nothing else."""

    def __init__(self) -> None:
        self._started: dict[int, int] = {}

    def begin(self, index: int) -> int:
        self._started[index] = self._started.get(index, 0) + 1
        return self._started[index]

    def retried(self) -> int:
        return sum(self._started.values()) - len(self._started)


class _Actor:
    """A worker. It opens itself at its first job, so that dying meanwhile counts as an attempt."""

    def __init__(self, ledger: Any, open_worker: bytes) -> None:  # noqa: ANN401 - Ray's handle
        self._ledger = ledger
        self._open: Callable[[], Callable[[Any], Any]] = pickle.loads(open_worker)  # noqa: S301 - our driver's
        self._work: Callable[[Any], Any] | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        index, ray = int(row["index"]), require("ray", extra="ray")
        try:
            if ray.get(self._ledger.begin.remote(index)) > ATTEMPTS:
                raise died_again(index)
            self._work = self._work or self._open()
            packed = pickle.dumps((True, self._work(pickle.loads(row["job"]))))  # noqa: S301 - our driver's
        except Exception as error:  # noqa: BLE001 - raised in the driver
            packed = pickle.dumps((False, portable(error)))
        return {"index": index, "result": packed}
