"""The parent process of the workers: it holds the listening socket and replaces workers that die or hang.

A worker says every second that it is alive, from a thread that its event loop has started; one that falls
silent is killed.

Connections wait in the shared socket, so a dying worker loses only the requests that it was serving; accepted
jobs are in the store. Settings go through a pipe, because other users can read command lines and
environments.

SIGHUP reads the settings, keys and detectors again: new workers start beside the old ones, which finish their
requests and leave once all new ones are ready. If that fails, the old ones stay.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from dewmark.errors import ConfigError, DewmarkError
from dewmark_desk.settings import Settings

_log = logging.getLogger("dewmark_desk")

_COMMAND = [sys.executable, "-m", "dewmark_desk.worker"]
_POLL_SECONDS = 0.1
_PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0)  # seconds before a restart, by the number of consecutive failures
_KILL_SECONDS = 5.0  # after the grace period
_START_SECONDS = 300.0  # for new workers to open their tables and the host


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}") from None


class _Worker:
    """A worker process."""

    def __init__(self, settings: Settings, listening: socket.socket, environment: dict[str, str]) -> None:
        number = listening.fileno()
        self.process = subprocess.Popen(
            [*_COMMAND, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(number,),
            env=environment,
            process_group=0,  # Ctrl-C goes to the supervisor only, which lets workers finish
            text=True,
        )
        self.ready = threading.Event()
        self.silent = 0.0
        """Seconds of polls since the worker has last been heard; a pause of the machine is none."""
        assert self.process.stdin is not None
        self.process.stdin.write(settings.to_json() + "\n")
        self.process.stdin.flush()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        while self.process.stdout.readline():
            self.silent = 0.0
            self.ready.set()


class Supervisor:
    """Keeps ``settings.workers`` processes running until it is stopped; ``reread`` gets new settings."""

    def __init__(
        self, settings: Settings, listening: socket.socket, *, reread: Callable[[], Settings] | None = None
    ) -> None:
        self._settings, self._listening, self._reread = settings, listening, reread
        self._stop, self._hung_up = threading.Event(), threading.Event()
        self._workers: list[_Worker] = []
        self._leaving: list[tuple[float, _Worker]] = []  # replaced workers, and until when they may stay
        self._metrics_folder = ""  # set while running
        self._failures = 0  # consecutive workers that never became ready

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [worker.process.pid for worker in self._workers]

    def stop(self) -> None:
        """Let the workers finish their requests, then return from `run`."""
        self._stop.set()

    def run(self, on_ready: Callable[[], None]) -> int:
        """Run until stopped; returns an exit code. Calls ``on_ready`` when the first worker is ready."""
        with tempfile.TemporaryDirectory(prefix="dewmark-metrics-") as folder:
            self._metrics_folder = folder
            environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": folder}
            # a worker has two threads that score, and threads that wait for each other are slow
            cores = max(1, (os.cpu_count() or 1) // (2 * self._settings.workers))
            environment.setdefault("OMP_NUM_THREADS", str(cores))
            # glibc: few heaps, and large bodies apart from them, so that their memory goes back at once
            environment.setdefault("MALLOC_ARENA_MAX", "2")
            environment.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 20))
            try:
                return self._run(environment, on_ready)
            finally:
                self._stop_workers()

    def handle_signals(self) -> None:
        """Stop on Ctrl-C and SIGTERM, reload on SIGHUP; call it in the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stop.set())
        signal.signal(signal.SIGHUP, lambda *_: self._hung_up.set())

    def _run(self, environment: dict[str, str], on_ready: Callable[[], None]) -> int:
        announced = False
        while True:
            while len(self._workers) < self._settings.workers and not self._stop.is_set():
                self._workers.append(_Worker(self._settings, self._listening, environment))
            if self._stop.wait(_POLL_SECONDS):
                return 0
            if self._hung_up.is_set():
                self._hung_up.clear()
                self._reload(environment)
            self._reap()
            self._kill_silent()
            if any(worker.ready.is_set() for worker in self._workers):
                self._failures = 0
                if not announced:
                    announced = True
                    on_ready()
            for worker in [each for each in self._workers if each.process.poll() is not None]:
                self._remove(worker)
                if self._failures >= len(_PAUSES):
                    _log.error("workers fail to start")
                    return 1
                self._stop.wait(_PAUSES[self._failures])

    def _reload(self, environment: dict[str, str]) -> None:
        """Replace the workers by workers with new settings; keep them if that fails."""
        fresh: list[_Worker] = []
        try:
            settings = self._settings if self._reread is None else self._reread()
            fresh += [_Worker(settings, self._listening, environment) for _ in range(settings.workers)]
            deadline = time.monotonic() + _START_SECONDS
            while not all(worker.ready.is_set() for worker in fresh):
                dead = any(worker.process.poll() is not None for worker in fresh)
                if dead or time.monotonic() > deadline or self._stop.wait(_POLL_SECONDS):
                    raise ConfigError("a new worker did not start: see the lines above")
        except (DewmarkError, OSError) as error:  # a file that cannot be read, no memory for a process
            for worker in fresh:
                worker.process.kill()
                worker.process.wait()
            _log.error("reloading failed, nothing has changed", extra={"fields": {"why": str(error)}})
            return
        until = time.monotonic() + self._settings.grace_seconds + _KILL_SECONDS
        for worker in self._workers:
            worker.process.terminate()
        self._leaving += [(until, worker) for worker in self._workers]
        self._workers, self._settings = fresh, settings
        _log.warning("reloaded", extra={"fields": {"pids": self.pids}})

    def _reap(self) -> None:
        """Collect replaced workers that have left, and kill those that stay too long."""
        for until, worker in list(self._leaving):
            if worker.process.poll() is not None:
                self._leaving.remove((until, worker))
            elif time.monotonic() > until:
                worker.process.kill()

    def _kill_silent(self) -> None:
        """Kill workers that do not answer."""
        for worker in self._workers:
            worker.silent += _POLL_SECONDS * worker.ready.is_set()
            if worker.process.poll() is None and worker.silent > self._settings.silent_seconds:
                _log.error("a worker does not answer", extra={"fields": {"pid": worker.process.pid}})
                worker.process.kill()
                worker.process.wait()

    def _remove(self, worker: _Worker) -> None:
        """Remove a dead worker; the next poll replaces it."""
        from prometheus_client.multiprocess import mark_process_dead

        self._workers.remove(worker)
        self._failures += not worker.ready.is_set()
        mark_process_dead(worker.process.pid, path=self._metrics_folder)  # type: ignore[no-untyped-call]
        fields = {"pid": worker.process.pid, "code": worker.process.returncode}
        _log.warning("a worker died", extra={"fields": fields})

    def _stop_workers(self) -> None:
        running = [*self._workers, *(worker for _, worker in self._leaving)]
        for worker in running:
            worker.process.terminate()
        deadline = time.monotonic() + self._settings.grace_seconds + _KILL_SECONDS
        for worker in running:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
