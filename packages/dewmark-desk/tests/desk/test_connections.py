"""Slow and many clients: a real server on loopback, and sockets that send half a request."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
from urllib.parse import urlsplit

import httpx
import pytest
from tests.desk.live import PATIENCE, live_service, make_service, until

from dewmark_desk import verdicts
from dewmark_desk.connections import Connections
from dewmark_desk.monitoring import JsonLines, LimitedRepeats

POST = b"POST /v1/detect HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@contextlib.contextmanager
def connected(url: str, data: bytes = b""):
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE) as open_:
        open_.sendall(data)
        yield open_


def wait_until_closed(connection: socket.socket) -> None:
    """Return when the other side closes the connection; TimeoutError if it never does."""
    connection.settimeout(PATIENCE)
    with contextlib.suppress(ConnectionError):
        while connection.recv(65_536):
            pass


@pytest.fixture
def seen(monkeypatch) -> list[Connections]:
    """The connections of the services that start."""
    made: list[Connections] = []

    def make(*limits) -> Connections:
        made.append(Connections(*limits))
        return made[-1]

    monkeypatch.setattr("dewmark_desk.connections.Connections", make)
    return made


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "])
def test_headers_must_arrive_in_time(tmp_path, sent):
    with live_service(tmp_path, header_seconds=0.3) as url, connected(url, sent) as connection:
        wait_until_closed(connection)


def test_bodies_must_arrive_in_time(tmp_path):
    with (
        live_service(tmp_path, body_seconds=0.5) as url,
        connected(url, POST + b"Content-Length: 99\r\n\r\n{") as open_,
    ):
        received = b""
        open_.settimeout(0.1)

        def is_refused() -> bool:  # a byte now and then does not help
            nonlocal received
            with contextlib.suppress(ConnectionError):
                open_.sendall(b" ")
            with contextlib.suppress(TimeoutError):
                received += open_.recv(4096)
            return b"408" in received

        until(is_refused)


def test_half_open_connections_make_room(tmp_path):
    with live_service(tmp_path, connections=20) as url, contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(connected(url, b"GET / HTTP/1.1\r\nX: "))
        for _ in range(3):
            assert httpx.get(f"{url}/healthz", timeout=PATIENCE).status_code == 200


def test_connections_that_are_answered_are_not_closed_for_new_ones(tmp_path, monkeypatch, seen):
    gate, real = threading.Event(), verdicts.detect
    monkeypatch.setattr(verdicts, "detect", lambda *a, **k: gate.wait(PATIENCE) and real(*a, **k))
    with live_service(tmp_path, connections=2) as url, contextlib.ExitStack() as stack:
        sent = POST + b'Content-Length: 13\r\n\r\n{"text": "a"}'
        busy = [stack.enter_context(connected(url, sent)) for _ in range(2)]
        until(lambda: len(seen[0].open) == 2 and not seen[0].waiting)
        with connected(url) as late:
            wait_until_closed(late)
        gate.set()
        for each in busy:
            assert each.recv(4096).startswith(b"HTTP/1.1 200")


def test_cap_on_connections_is_kept():
    class Transport:
        closed = False

        def abort(self):
            self.closed = True

    class Connection:
        def __init__(self):
            self.transport = Transport()

    kept, made = Connections(total=10), [Connection() for _ in range(4000)]
    assert all(kept.admit(each) for each in made)
    assert len(kept.open) == 10
    assert [each.transport.closed for each in made] == [True] * 3990 + [False] * 10
    kept.waiting.clear()  # all are being answered
    assert not kept.admit(Connection())


def test_client_that_does_not_read_is_dropped(tmp_path):
    service = make_service(tmp_path, write_seconds=0.5, grace_seconds=5)
    with live_service(tmp_path, service=service) as url, contextlib.ExitStack() as stack:
        request = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        parts = urlsplit(url)
        lazy = stack.enter_context(socket.socket())
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect((parts.hostname, parts.port))
        lazy.settimeout(0.2)

        def is_dropped() -> bool:
            try:
                lazy.sendall(request * 50)
            except TimeoutError:
                return False
            except ConnectionError:
                return True
            return False

        until(is_dropped)


def test_stopping_does_not_wait_for_half_a_body(tmp_path, seen):
    service = make_service(tmp_path, grace_seconds=100_000)  # `live_service` would run out of patience
    with contextlib.ExitStack() as stack, live_service(tmp_path, service=service) as url:
        stack.enter_context(connected(url, POST + b"Content-Length: 99\r\n\r\n{"))
        stack.enter_context(connected(url, b"GET / HTTP/1.1\r\nX: "))
        until(lambda: len(seen[0].open) == 2)
        service.draining = True


def test_limited_log_says_how_much_is_missing(capsys):
    clock = iter([0.0] * 10 + [10.0] * 10).__next__
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    handler.addFilter(LimitedRepeats(burst=2, per_second=1.0, clock=clock))
    logger = logging.getLogger("dewmark.test-counts")
    logger.addHandler(handler)
    logger.propagate = False
    for _ in range(11):
        logger.error("again")
    rows = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [row.get("suppressed") for row in rows] == [None, None, 8]
    logger.removeHandler(handler)
