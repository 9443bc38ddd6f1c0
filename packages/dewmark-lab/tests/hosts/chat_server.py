"""A local OpenAI-compatible endpoint that misbehaves as scripted by a test."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-test-0123456789abcdef"


@dataclass
class Reply:
    """One answer of the server; ``content`` becomes a chat completion unless ``raw`` is given."""

    content: str | None = "fine"
    status: int = 200
    raw: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    finish_reason: str = "stop"

    def body(self) -> bytes:
        if self.raw is not None:
            return self.raw
        if self.status != 200:
            return json.dumps({"error": {"message": f"status {self.status}", "code": None}}).encode()
        choice = {"message": {"content": self.content}, "finish_reason": self.finish_reason}
        return json.dumps({"choices": [choice]}).encode()


Script = Callable[[dict[str, Any], int], Reply]


@dataclass
class ChatServer:
    """``script(request, n)`` answers the n-th request with the same last message (n counts from 0)."""

    script: Script
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    most_at_once: int = 0
    url: str = ""
    _now: int = 0
    _seen: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        with self._lock:
            self.bodies.append(body)
            self.headers.append(headers)
            self.times.append(time.monotonic())
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            asked = body["messages"][-1]["content"]
            number = self._seen.get(asked, 0)
            self._seen[asked] = number + 1
        reply = self.script(body, number)
        time.sleep(reply.delay)
        with self._lock:
            self._now -= 1
        return reply


def echo(body: dict[str, Any], _number: int) -> Reply:
    """The answer to "x" is "X"."""
    return Reply(body["messages"][-1]["content"].upper())


@contextlib.contextmanager
def serving(script: Script = echo) -> Iterator[ChatServer]:
    chat = ChatServer(script)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/chat/completions"
            reply = chat.answer(body, {name.lower(): value for name, value in self.headers.items()})
            data = reply.body()
            with contextlib.suppress(OSError):  # the client may have lost patience
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    chat.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield chat
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
