"""Connections: how many there may be, and how long a client may take to send a request or read a response.

uvicorn limits the size of headers and how long a connection stays open between requests. It waits without end
for the first request, for the rest of its headers and for a client that does not read, and accepts
connections until the process has no file descriptors left. `guarded_protocol` limits these:

- a request's headers must be complete within ``header_seconds`` of the connection's (or the request's) first
  byte, and a client must take what was written to it within ``write_seconds``;
- above ``total`` connections, the one that has waited longest for its client makes room for the new one,
  whether it waits for headers or for a body; if all are being answered, the new one is closed.

Limits per address belong to the proxy in front, which knows the addresses (docs/service.md).

Boundary: bytes and connections; `middleware` limits bodies.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dewmark_desk.settings import Settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_SPARE_FILES = 128  # descriptors for the store, tables and child processes
_MOST_FILES = 65_536
_DRAIN_SECONDS = 2.0  # for clients to send their last request, and to take its response, while it stops


@dataclass
class Connections:
    """The limits of one worker process, and its connections: all, and those that wait for their clients."""

    total: int = 512
    header_seconds: float = 10.0
    write_seconds: float = 30.0
    open: set[H11Protocol] = field(default_factory=set)
    waiting: dict[H11Protocol, None] = field(default_factory=dict)  # the longest first

    def admit(self, connection: H11Protocol) -> bool:
        """Whether there is room for a connection, perhaps because another one is closed for it."""
        if len(self.open) >= self.total:
            if not self.waiting:
                return False
            oldest = next(iter(self.waiting))
            self.forget(oldest)
            oldest.transport.abort()
        self.open.add(connection)
        self.waiting[connection] = None
        return True

    def forget(self, connection: H11Protocol) -> None:
        """A connection was closed."""
        self.open.discard(connection)
        self.waiting.pop(connection, None)


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
    connections = Connections(
        raise_file_limit(settings.connections), settings.header_seconds, settings.write_seconds
    )
    return uvicorn.Config(
        app,
        http=guarded_protocol(connections),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        timeout_graceful_shutdown=settings.grace_seconds,
    )


def guarded_protocol(connections: Connections) -> type[H11Protocol]:
    """uvicorn's HTTP protocol within limits."""
    return type("Guarded", (_Guarded,), {"kept": connections})


class _Guarded(H11Protocol):
    kept: Connections

    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _stopping = False

    @property
    def _answering(self) -> bool:
        """Whether a request has begun and is not answered."""
        cycle: object | None = self.cycle  # None before the first request, whatever its type says
        return cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        if self.kept.admit(self):
            self._header_timer = self.loop.call_later(self.kept.header_seconds, self._give_up)
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.kept.forget(self)
        _stop(self._header_timer)
        _stop(self._write_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._answering:
            _stop(self._header_timer)
            self._header_timer = None
            if not self.cycle.more_body:  # from now on the client waits for us
                self.kept.waiting.pop(self, None)
            if self._stopping:
                self.cycle.keep_alive = False
        elif self._header_timer is None:  # the first bytes of a request on a connection that was idle
            self._header_timer = self.loop.call_later(self.kept.header_seconds, self._give_up)

    def on_response_complete(self) -> None:
        if self in self.kept.open:
            self.kept.waiting.pop(self, None)
            self.kept.waiting[self] = None
        super().on_response_complete()
        if self._answering and not self.cycle.more_body:  # a request that had been sent ahead
            self.kept.waiting.pop(self, None)

    def pause_writing(self) -> None:
        super().pause_writing()
        _stop(self._write_timer)
        seconds = _DRAIN_SECONDS if self._stopping else self.kept.write_seconds
        self._write_timer = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _stop(self._write_timer)

    def shutdown(self) -> None:
        """Close the connection after its response, or after a moment: a request may be on its way."""
        self._stopping = True
        if self.transport.get_write_buffer_size() > 0:
            _stop(self._write_timer)
            self._write_timer = self.loop.call_later(_DRAIN_SECONDS, self.transport.abort)
        if self._answering:
            super().shutdown()
        else:
            self.loop.call_later(_DRAIN_SECONDS, self._leave)

    def _leave(self) -> None:
        if not self._answering and not self.transport.is_closing():
            super().shutdown()

    def _give_up(self) -> None:
        self._header_timer = None
        if not self._answering:
            self.transport.abort()


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
