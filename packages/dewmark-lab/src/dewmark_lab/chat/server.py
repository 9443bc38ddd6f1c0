"""A chat model behind OpenAI's protocol on this machine: no mark, no token, loopback only.

`dewmark serve` marks everything that it writes, so it cannot play the attacker. This server answers
``POST /v1/chat/completions`` and ``GET /v1/models`` for one `LocalChat`; requests that wait together are
answered in one batch. It exists so that experiments use the code path of a paid endpoint with a model of
their own. Boundary: HTTP in, `LocalChat` out.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dewmark.errors import DewmarkError, ModelError
from dewmark.hosts.base import Conversation
from dewmark_lab.chat import ChatModel

_WAIT = 0.05  # seconds for which a batch waits for another request
_MAX_BYTES = 1 << 24
_ACCEPTED = {"model", "messages", "seed", "max_tokens", "max_completion_tokens"}


@dataclass(frozen=True)
class _Asked:
    conversation: Conversation
    seed: int
    max_new_tokens: int
    answer: Future[str] = field(default_factory=Future)


@contextlib.contextmanager
def serve_chat(
    chat: ChatModel, name: str, *, port: int = 0, max_new_tokens: int = 1024, batch_size: int = 8
) -> Iterator[str]:
    """Serve a chat model under ``name`` while the context lasts; yields the base URL.

    ``port`` 0 is any free one. ``max_new_tokens`` is for requests that name no length.
    """
    asked: queue.Queue[_Asked | None] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            models = {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "dewmark"}]}
            self._send(*((200, models) if self.path == "/v1/models" else _error(404, "no such path")))

        def do_POST(self) -> None:
            body = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), _MAX_BYTES))
            if self.path != "/v1/chat/completions":
                self._send(*_error(404, "no such path"))
                return
            try:
                request = _parse(body, name, max_new_tokens)
            except (ValueError, KeyError, TypeError) as error:
                self._send(*_error(400, str(error)))
                return
            asked.put(request)
            try:
                answer = request.answer.result()
            except DewmarkError as error:
                self._send(*_error(400, str(error)))
            else:
                self._send(200, _completion(name, answer))

        def log_message(self, *args: object) -> None:  # requests contain somebody's text
            pass

        def _send(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ModelError(
            f"cannot listen on port {port} of this machine ({error.strerror}): end the program that does"
        ) from None
    server.daemon_threads = True
    threads = [
        threading.Thread(target=server.serve_forever, daemon=True),
        threading.Thread(target=_answer_all, args=(chat, asked, batch_size), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        asked.put(None)
        for thread in threads:
            thread.join()


def _answer_all(chat: ChatModel, asked: queue.Queue[_Asked | None], batch_size: int) -> None:
    """Answer requests in batches until a None arrives."""
    ended = False
    while not ended:
        batch: list[_Asked] = []
        while len(batch) < batch_size:
            try:
                request = asked.get(timeout=_WAIT if batch else None)
            except queue.Empty:
                break
            if request is None:
                ended = True
                break
            batch.append(request)
        for tokens in sorted({each.max_new_tokens for each in batch}):
            _answer(chat, [each for each in batch if each.max_new_tokens == tokens], tokens)


def _answer(chat: ChatModel, batch: list[_Asked], tokens: int) -> None:
    try:
        answers = chat.complete(
            [each.conversation for each in batch],
            seeds=[each.seed for each in batch],
            max_new_tokens=tokens,
        )
    except DewmarkError as error:
        if len(batch) == 1:
            batch[0].answer.set_exception(error)
            return
        for each in batch:  # one request must not fail the others
            _answer(chat, [each], tokens)
    except Exception as error:  # every waiting request must hear of it
        for each in batch:
            each.answer.set_exception(ModelError(f"the model failed: {type(error).__name__}"))
        raise
    else:
        for each, answer in zip(batch, answers, strict=True):
            each.answer.set_result(answer)


def _parse(body: bytes, name: str, max_new_tokens: int) -> _Asked:
    """The request; raises `ValueError` for one that this server cannot honour."""
    given = json.loads(body)
    if not isinstance(given, dict):
        raise TypeError("the body must be an object")
    unknown = sorted(set(given) - _ACCEPTED)
    if unknown:
        raise ValueError(f"{unknown[0]} is not supported here: leave it out, the model's own options apply")
    if given.get("model") != name:
        raise ValueError(f"this server has only the model {name}")
    conversation = [
        {"role": str(message["role"]), "content": str(message["content"])} for message in given["messages"]
    ]
    length = given.get("max_tokens") or given.get("max_completion_tokens") or max_new_tokens
    return _Asked(conversation, int(given.get("seed") or 0), int(length))


def _completion(name: str, answer: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": answer}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"object": "chat.completion", "model": name, "choices": [choice]}


def _error(status: int, message: str) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"message": message, "code": None}}
