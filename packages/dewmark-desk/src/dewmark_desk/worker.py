"""A worker process: ``python -m dewmark_desk.worker FD``, started by the supervisor.

It reads its settings from stdin, serves on the listening socket FD, which all workers share, and writes a
line to stdout when it is ready and every second after that. When stdin closes, the supervisor has died, and
the worker stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator

import anyio
import uvicorn

from dewmark.errors import DewmarkError
from dewmark.policy import load_policy
from dewmark_desk import verdicts
from dewmark_desk.app import create_app
from dewmark_desk.connections import server_config
from dewmark_desk.monitoring import set_up_logging
from dewmark_desk.service import Service
from dewmark_desk.settings import Settings
from dewmark_desk.tenants import open_tenants, open_writers
from dewmark_desk.verdicts import Examination, Query

_BEAT_SECONDS = 1.0
_SWITCH_SECONDS = 5e-4  # the event loop waits so long at each read beside a busy thread; by default 5 ms


def open_service(settings: Settings) -> Service:
    """Open the detectors and the host, if there is one; the command line has already verified the files."""
    tenants = open_tenants(settings, verify=False)
    first = Examination(list(tenants.values()), keys=1)
    if first.has_reader:  # loads it, which would count as the time that texts take
        verdicts.detect([Query("The first text.")], first)
    generator = None
    if settings.host_model is not None:
        from dewmark_desk.generation import TextGenerator, chat_format_or_transcript  # needs torch

        host, writers = open_writers(settings, tenants)
        generator = TextGenerator(
            host,
            writers,
            name=settings.host_model,
            chat=chat_format_or_transcript(settings.host_model),
            max_waiting=settings.max_waiting_completions,
            batch_size=settings.generation_batch_size,
            policy=None if settings.policy is None else load_policy(settings.policy),
            fpr=settings.fpr,
        )
    return Service(settings, tenants, generator=generator)


class _Server(uvicorn.Server):
    """Announces that it is ready, again and again, and tells the service when to stop."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._beating = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        """Show that the event loop runs and can start a thread."""
        own = anyio.CapacityLimiter(1)  # all other threads may wait for a slow store, which is no fault
        while True:
            await anyio.to_thread.run_sync(_say, "ready\n", limiter=own)
            await asyncio.sleep(_BEAT_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and refuse work from now on; what was accepted since the signal is answered."""
        self._service.draining = True
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Like uvicorn's, but does not raise the signal again, because a requested stop is not a failure."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self.handle_exit)
        yield


def _say(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def _stop_with_supervisor() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Serve until a signal; running requests are finished first."""
    set_up_logging()
    sys.setswitchinterval(_SWITCH_SECONDS)
    settings = Settings.from_json(sys.stdin.readline())
    threading.Thread(target=_stop_with_supervisor, daemon=True).start()
    try:
        service = open_service(settings)
        config = server_config(create_app(service), settings)
        _Server(config, service).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
    except DewmarkError as error:
        # the command line has checked the files, so something was taken away since: no traceback
        why = {"fields": {"why": str(error)}}
        logging.getLogger("dewmark_desk").critical("a worker cannot start", extra=why)
        sys.exit(1)


if __name__ == "__main__":
    main()
