"""Chat models behind any OpenAI-compatible endpoint: POST {base_url}/chat/completions, many at a time.

Transient failures are retried, with exponential backoff or after the pause that the server asks for: no
connection, a timeout, statuses 408, 409, 425, 429 and 5xx, an answer that is not JSON or contains no text.
Any other failure ends the work at once; answers already on their way are delivered before the error is
raised.

The API key goes into the Authorization header and nowhere else: redirects, which would carry it to another
server, are not followed, and no error quotes it. Boundary: one request and its answer; no file is written.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ipaddress
import json
import random
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import httpx2

from dewmark.errors import ConfigError, ModelError
from dewmark.hosts.base import Conversation

OnAnswer = Callable[[int, str], None]
LengthField = Literal["max_tokens", "max_completion_tokens"]

_RETRIED = {408, 409, 425, 429}  # and 5xx
_MAX_BYTES = 1 << 24
_SEEDS = 1 << 31  # some servers store seeds in 32 bits
_MAX_BACKOFF = 60.0  # seconds
_MAX_HOLD = 600.0  # seconds; if a server asks for more, the user has to try again later


class EndpointChat:
    """A model by its name at a base URL, such as ``https://api.example.org/v1``.

    ``temperature`` and ``top_p`` None leave the choice to the server. Seeds are sent if ``send_seed``; few
    servers guarantee the same answer for the same seed, so cache answers (`dewmark_lab.chat.settings`).
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        key: str | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        send_seed: bool = True,
        length_field: LengthField = "max_tokens",
        concurrency: int = 8,
        retries: int = 8,
        timeout: float = 120.0,
        first_pause: float = 0.5,
    ) -> None:
        check_base_url(base_url, with_key=key is not None)
        if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
            raise ConfigError("the API key contains a character that no key has: set its variable again")
        self.model = model
        self.base_url = base_url.rstrip("/")
        self._key = key
        self._sampling = {"temperature": temperature, "top_p": top_p}
        self._send_seed, self._length_field = send_seed, length_field
        self._concurrency, self._retries, self._timeout = concurrency, retries, timeout
        self._first_pause = first_pause
        self._hold = Hold()

    def identity(self) -> dict[str, object]:
        """The endpoint, the model and its sampling options."""
        return {"base_url": self.base_url, "model": self.model, **self._sampling}

    def complete(
        self,
        conversations: Sequence[Conversation],
        *,
        seeds: Sequence[int],
        max_new_tokens: int,
        on_answer: OnAnswer | None = None,
    ) -> list[str]:
        """One answer each; an answer that the server withholds (content filter) is empty."""
        answers = [""] * len(conversations)
        stop, delivering = threading.Event(), threading.Lock()

        def work(index: int, body: bytes) -> None:
            answer = self._ask(client, body, stop)
            with delivering:  # before this thread sends another request, so that a kill loses little
                answers[index] = answer
                if on_answer is not None:
                    on_answer(index, answer)

        with self._open() as client, concurrent.futures.ThreadPoolExecutor(self._concurrency) as pool:
            asked = [
                pool.submit(work, index, self._body(conversation, seed, max_new_tokens))
                for index, (conversation, seed) in enumerate(zip(conversations, seeds, strict=True))
            ]
            try:
                for future in concurrent.futures.as_completed(asked):
                    future.result()
            except BaseException:
                stop.set()
                pool.shutdown(cancel_futures=True)  # running requests still deliver their answers
                raise
        return answers

    def _open(self) -> httpx2.Client:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        room = httpx2.Limits(max_connections=self._concurrency)
        return httpx2.Client(headers=headers, timeout=self._timeout, limits=room, follow_redirects=False)

    def _body(self, conversation: Conversation, seed: int, max_new_tokens: int) -> bytes:
        chosen = {name: value for name, value in self._sampling.items() if value is not None}
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [dict(message) for message in conversation],
            self._length_field: max_new_tokens,
            **chosen,
        }
        if self._send_seed:
            body["seed"] = seed % _SEEDS
        return json.dumps(body).encode()

    def _ask(self, client: httpx2.Client, body: bytes, stop: threading.Event) -> str:
        """One answer, with retries."""
        reason = ""
        for attempt in range(self._retries + 1):
            if not self._hold.wait(stop):
                break
            try:
                return self._once(client, body)
            except _RetryError as error:
                reason = error.reason
                if attempt == self._retries:
                    break
                pause = backoff(attempt, first=self._first_pause)
                if error.seconds is not None:
                    pause = max(pause, error.seconds)
                if error.everybody:
                    self._hold.start(pause)
                else:
                    stop.wait(pause)
        if stop.is_set():
            raise ModelError("stopped")  # another request failed for good, and its error is the one reported
        raise self._failed(f"gave no answer in {self._retries + 1} tries ({reason})")

    def _once(self, client: httpx2.Client, body: bytes) -> str:
        data = b""
        try:
            with client.stream("POST", f"{self.base_url}/chat/completions", content=body) as response:
                for block in response.iter_bytes():
                    data += block
                    if len(data) > _MAX_BYTES:
                        raise _RetryError("the answer is too long")
        except httpx2.TimeoutException:
            raise _RetryError(f"no answer within {self._timeout:g} s") from None
        except httpx2.ConnectError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise self._failed("presents a certificate that cannot be verified") from None
            raise _RetryError(f"no connection: {error}") from None
        except httpx2.HTTPError as error:  # whose message may quote the server
            raise _RetryError(f"the connection broke: {type(error).__name__}") from None
        if not response.is_success:
            raise self._status_error(response, self._server_message(data))
        return _content(data)

    def _status_error(self, response: httpx2.Response, said: str) -> Exception:
        """The error for a status other than 200: one to retry, or one that ends the work."""
        status = response.status_code
        if status in {401, 403}:
            # not the server's message, which may quote part of the key
            asked = "without a key" if self._key is None else "with the key given"
            return self._failed(f"denies access (status {status}, asked {asked}): check the API key variable")
        if status == 429 and "insufficient_quota" in said:
            return self._failed("says that the account has no credit left (status 429)")
        if status < 500 and status not in _RETRIED:
            return self._failed(f"rejects the request (status {status}): {said or response.reason_phrase}")
        seconds = retry_after(response.headers.get("Retry-After"))
        if seconds is not None and seconds > _MAX_HOLD:
            return self._failed(f"asks to wait {seconds:.0f} s (status {status}): run again after that")
        everybody = status == 429 or seconds is not None
        return _RetryError(f"status {status}", seconds=seconds, everybody=everybody)

    def _server_message(self, data: bytes) -> str:
        """The server's message in one line, without the key."""
        said = data[:4096].decode("utf-8", "replace")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            details = json.loads(said)["error"]
            said = f"{details['message']} {details.get('code') or ''}"
        if self._key is not None:
            said = said.replace(self._key, "…")
        return " ".join(said.split())[:200]

    def _failed(self, what: str) -> ModelError:
        return ModelError(f"{self.model} at {self.base_url} {what}; the answers so far are kept")


class Hold:
    """A pause that a server asked for, kept by all threads together."""

    def __init__(self) -> None:
        self._until = 0.0  # monotonic time before which nothing may start
        self._lock = threading.Lock()

    def wait(self, stop: threading.Event) -> bool:
        """Wait until requests may start; False if ``stop`` was set in the meantime."""
        while not stop.is_set():
            left = self._until - time.monotonic()
            if left <= 0:
                return True
            stop.wait(left)  # then check again: the server may have asked for a longer pause
        return False

    def start(self, seconds: float) -> None:
        """Start no request for this many seconds."""
        with self._lock:
            self._until = max(self._until, time.monotonic() + seconds)


def backoff(attempt: int, *, first: float) -> float:
    """first · 2^attempt seconds, at most a minute; ±50% keeps clients from retrying together."""
    return float(min(_MAX_BACKOFF, first * 2.0**attempt) * random.uniform(0.5, 1.5))


def retry_after(header: str | None) -> float | None:
    """The seconds that a Retry-After header asks for, given as a number or a date; None if there is none."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


class _RetryError(Exception):
    """A transient failure; if ``everybody``, all requests should wait, not only the one that met it."""

    def __init__(self, reason: str, *, seconds: float | None = None, everybody: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.seconds, self.everybody = reason, seconds, everybody


def check_base_url(url: str, *, with_key: bool) -> None:
    """Raise `ConfigError` for a URL that is malformed, contains a secret, or would expose the key."""
    try:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        host = None
    if host is None or parts.scheme not in {"http", "https"}:
        raise ConfigError("base_url must look like https://api.example.org/v1: correct it")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(
            f"base_url for {host} must have no user, password, query or fragment: put keys into a variable"
        )
    if with_key and parts.scheme == "http" and not _is_local(host):
        raise ConfigError(
            f"http would send the API key to {host} unencrypted: use https, or key_env=none if the server "
            "needs no key"
        )


def _is_local(host: str) -> bool:
    """Whether a host is this machine or on a private network."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return False


def _content(data: bytes) -> str:
    """The text of an answer; empty if the server withheld it."""
    try:
        choice = json.loads(data)["choices"][0]
        content = choice["message"].get("content")
        withheld = choice.get("finish_reason") == "content_filter" or choice["message"].get("refusal")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise _RetryError("the answer is not a chat completion") from None
    if content is None and withheld:
        return ""
    if not isinstance(content, str):
        raise _RetryError("the answer contains no text")
    return content.strip()
