"""Connections: how many there may be, and how long a client may take to send a request or read a response.

uvicorn waits without end for the headers of a request and for a client that does not read its response, and
accepts connections until the process has no file descriptors left. `guarded_protocol` limits all three:

- a request's headers must be complete within ``header_seconds`` of the connection's (or the request's) first
  byte, and a client must take what was written to it within ``write_seconds``;
- above ``total`` connections, the one that has waited longest without a request makes room for the new one;
  if all have requests, the new one is closed;
- one address has at most ``per_address`` connections. Loopback is exempt, as a proxy connects from there.

Boundary: bytes and connections; `middleware` limits bodies.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dewmark_desk.settings import Settings, is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_SPARE_FILES = 128  # descriptors for the store, tables and child processes
_MOST_FILES = 65_536
_DRAIN_SECONDS = 2.0  # for a client to take its response while the service stops


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one worker process."""

    total: int = 512
    per_address: int = 64
    header_seconds: float = 10.0
    write_seconds: float = 30.0


def raise_file_limit(connections: int) -> int:
    """Allow as many open files as the system permits; returns how many connections fit, at most the given."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return connections if soft == resource.RLIM_INFINITY else max(1, min(connections, soft - _SPARE_FILES))


def server_config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """How uvicorn serves the application."""
    limits = ConnectionLimits(
        total=raise_file_limit(settings.connections),
        per_address=settings.connections_per_address,
        header_seconds=settings.header_seconds,
        write_seconds=settings.write_seconds,
    )
    return uvicorn.Config(
        app,
        http=guarded_protocol(limits),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        timeout_graceful_shutdown=settings.grace_seconds,
    )


def guarded_protocol(limits: ConnectionLimits) -> type[H11Protocol]:
    """uvicorn's HTTP protocol within limits."""

    class Guarded(_Guarded):
        pass

    Guarded.limits = limits
    return Guarded


class _Guarded(H11Protocol):
    limits: ConnectionLimits

    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _stopping = False
    waiting_since = 0.0

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        cycle: object | None = self.cycle  # None before the first request, whatever its type says
        return cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.waiting_since = time.monotonic()
        if self._too_many():
            self.transport.abort()
            return
        self._header_timer = self.loop.call_later(self.limits.header_seconds, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.busy:
            self._stop_header_timer()
        elif self._header_timer is None:  # the first bytes of a request on a connection that was idle
            self._header_timer = self.loop.call_later(self.limits.header_seconds, self._give_up)

    def on_response_complete(self) -> None:
        self.waiting_since = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_write_timer()
        seconds = _DRAIN_SECONDS if self._stopping else self.limits.write_seconds
        self._write_timer = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def shutdown(self) -> None:
        """Close the connection after its response, which the client must take soon."""
        self._stopping = True
        if self.transport.get_write_buffer_size() > 0:
            self._stop_write_timer()
            self._write_timer = self.loop.call_later(_DRAIN_SECONDS, self.transport.abort)
        super().shutdown()

    def _too_many(self) -> bool:
        """Whether there is no room for this connection, even after closing one that waits."""
        limits = self.limits
        others = [each for each in self.connections if isinstance(each, _Guarded) and each is not self]
        if self.client is not None and not is_loopback(self.client[0]):
            mine = sum(each.client is not None and each.client[0] == self.client[0] for each in others)
            if mine >= limits.per_address:
                return True
        if len(others) < limits.total:
            return False
        idle = [each for each in others if not each.busy]
        if not idle:
            return True
        min(idle, key=lambda each: each.waiting_since).transport.abort()
        return False

    def _give_up(self) -> None:
        self._header_timer = None
        if not self.busy:
            self.transport.abort()

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
