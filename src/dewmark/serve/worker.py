"""One worker process: ``python -m dewmark.serve.worker FD``, started by the supervisor.

It reads its settings from stdin, serves on the listening socket FD that all workers share, and writes one
line to stdout when it is ready. When stdin ends, the supervisor is gone, and it stops too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import uvicorn

from dewmark.serve import monitoring
from dewmark.serve.app import create_app
from dewmark.serve.generation import Writer, chat_renderer
from dewmark.serve.service import Service
from dewmark.serve.settings import Settings
from dewmark.serve.tenants import open_tenants, open_writer

__all__ = ["READY", "open_service", "serve"]

READY = "ready"


def open_service(settings: Settings) -> Service:
    """The service with its detectors and its host, if there is one; their tables have been verified."""
    tenants = open_tenants(settings, verify=False)
    writer = None
    if settings.host_model is not None:
        writer = Writer(
            open_writer(settings, tenants),
            name=settings.host_model,
            render=chat_renderer(settings.host_model),
            waiting=settings.writing,
            batch=settings.writing_batch,
        )
    return Service(settings, tenants, writer=writer)


class _Server(uvicorn.Server):
    """Says when it is ready, and tells the service when it is to stop."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.draining = True
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a stop that was asked for is no failure: the signal is not raised again."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self.handle_exit)
        yield


def serve(settings: Settings, listening: socket.socket) -> None:
    """Serve until a signal says stop; requests in work are finished first."""
    service = open_service(settings)
    config = uvicorn.Config(
        create_app(service),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        timeout_graceful_shutdown=settings.grace,
    )
    _Server(config, service).run(sockets=[listening])


def _stop_with_supervisor() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run as a worker."""
    monitoring.set_up()
    settings = Settings.from_json(sys.stdin.readline())
    threading.Thread(target=_stop_with_supervisor, daemon=True).start()
    serve(settings, socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
