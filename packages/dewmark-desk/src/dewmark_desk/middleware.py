"""The middleware around the application: request ids, authentication, size limits, headers and logging.

It rejects requests before it reads their body. Every path except those in `_PUBLIC` needs a token. Bodies
have to arrive at a minimal speed, and a process holds a limited number of their bytes at a time.

A service without tokens (on loopback, before the first token is created) answers only to loopback names and
the configured host names: otherwise a web page could point its own name here and read the answers (DNS
rebinding). A request that a browser sends on behalf of another site is rejected, whether a token is needed
or a proxy adds one: a form may be sent to any address without asking.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import time

import sqlalchemy as sa
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dewmark.cuda import fallbacks
from dewmark.errors import StorageError
from dewmark_desk.admission import bounds_of
from dewmark_desk.api_tokens import OPEN, Caller
from dewmark_desk.http_errors import INTERNAL, ApiError, api_error, error_body, overloaded
from dewmark_desk.service import Service
from dewmark_desk.settings import is_loopback

_log = logging.getLogger("dewmark_desk")

_PUBLIC = re.compile(
    r"/|/docs|/healthz|/readyz|/\.well-known/[^/]*|/v1/reports/verify|/openapi\.json|/static/[^/]*|/favicon\.ico"
)
_WHOAMI = "/v1/whoami"  # also answers callers without a token
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_METHODS = _SAFE | {"POST", "PUT", "PATCH", "DELETE"}
_OWN_SITE = frozenset({"same-origin", "none"})  # Sec-Fetch-Site; "none": the user typed the address
_BODY_RATE = 16_384.0  # bytes per second that a body must reach, after a first allowance
_POLL_SECONDS = 1.0
_DRAIN_SECONDS = 2.0  # for the rest of a body while the service stops

_CLOSE = {"Connection": "close"}

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class AccessMiddleware:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or reject it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        body = _Body(receive, bounds_of(scope["path"], self._service.settings).body, self._service)
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                found = MutableHeaders(scope=message)
                self._add_headers(found, scope["path"], request_id)
                caller = state.get("caller")
                if scope["method"] == "POST" and caller is not None and caller.id:
                    with contextlib.suppress(sa.exc.SQLAlchemyError):
                        found.update(await self._service.in_thread(self._service.tokens.headers, caller))
            await send(message)

        try:
            try:
                try:
                    state["caller"] = await self._caller(scope["path"], headers)
                except (sa.exc.SQLAlchemyError, StorageError) as error:
                    raise api_error(error) from None
                if scope["method"] not in _SAFE:
                    self._check_site(headers, state["caller"])
                _check_length(headers, body.limit)
                await self._app(scope, body, answer)
            except ApiError as error:
                content = error_body(error.status_code, error.code, error.detail, request_id)
                await JSONResponse(content, error.status_code, error.headers)(scope, receive, answer)
            except Exception as error:  # noqa: BLE001 - the last resort
                _log.error("a request failed", exc_info=error, extra={"fields": {"request_id": request_id}})
                if not status:
                    content = error_body(500, "internal", INTERNAL, request_id)
                    await JSONResponse(content, 500)(scope, receive, answer)
        finally:
            body.release()
            self._report(scope, request_id, status, time.monotonic() - started, body.received)

    async def _caller(self, path: str, headers: Headers) -> Caller | None:
        """The caller; None if a public path is requested without a valid token."""
        service = self._service
        public = bool(_PUBLIC.fullmatch(path))
        kind, _, text = headers.get("authorization", "").partition(" ")
        caller = await service.in_thread(service.caller, text.strip() if kind.lower() == "bearer" else "")
        if caller is OPEN:
            if not self._is_own_name(headers.get("host", "")):
                raise ApiError(400, "bad_request", "unknown host name: allow it with --name")
        elif caller is None and not public and path != _WHOAMI:
            asks = {"WWW-Authenticate": "Bearer"}
            raise ApiError(401, "unauthorized", "a valid token is needed", headers=asks)
        return caller

    def _is_own_name(self, host: str) -> bool:
        """Whether a host, with or without a port, is a name of a service without tokens."""
        name = re.sub(r":\d+$", "", host)
        return is_loopback(name) or name.lower() in self._service.settings.host_names

    def _check_site(self, headers: Headers, caller: Caller | None) -> None:
        """Reject what a browser sends on behalf of another site."""
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        own = site is None or site in _OWN_SITE
        if caller is OPEN and own and site is None and origin is not None:  # an old browser
            own = origin.lower().partition("://")[2] == headers.get("host", "").lower()
        if not own:
            raise ApiError(403, "cross_site", "requests on behalf of other sites are not accepted")

    def _add_headers(self, headers: MutableHeaders, path: str, request_id: str) -> None:
        for name, value in HEADERS.items():
            headers.setdefault(name, value)
        headers["X-Request-Id"] = request_id
        if self._service.draining:
            headers["Connection"] = "close"
        headers.setdefault("Cache-Control", "no-store" if path.startswith("/v1/") else "no-cache")

    def _report(self, scope: Scope, request_id: str, status: int, seconds: float, received: int) -> None:
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in _METHODS else "other"  # anyone may invent one
        caller = scope["state"].get("caller")
        metrics = self._service.metrics
        metrics.requests.labels(method, route, str(status)).inc()
        metrics.seconds.labels(route).observe(seconds)
        metrics.waiting.set(sum(pool.waiting for pool in self._service.pools))
        metrics.fallbacks.set(fallbacks.total())
        fields = {
            "request_id": request_id,
            "method": method,
            "route": route,
            "status": status,
            "ms": round(1000.0 * seconds, 1),
            "bytes_in": received,
            "token": caller.id if caller and not self._service.settings.zero_retention else "",
        }
        if (marked := scope["state"].get("marked")) is not None:  # of a generated text
            fields["marked"] = marked
        _log.info("request", extra={"fields": fields})


class _Body:
    """Limits the bytes and the seconds of a request body, whether or not it declared its length."""

    def __init__(self, receive: Receive, limit: int, service: Service) -> None:
        self._receive, self.limit, self._service = receive, limit, service
        self.received = 0
        self._waited = 0.0
        self._complete = False

    async def __call__(self) -> Message:
        if self._complete:  # the next message is the disconnect
            return await self._receive()
        message = await self._next()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self.received += size
            self._service.held += size
            self._complete = not message.get("more_body", False)
            if self.received > self.limit:
                raise _too_large(self.limit)
            if self._service.held > max(self._service.settings.held_bytes, self.received):
                raise overloaded(2.0, "too many large requests are in progress")
        return message

    def release(self) -> None:
        """Count the body's bytes as no longer held."""
        self._service.held -= self.received

    async def _next(self) -> Message:
        started = time.monotonic()
        allowed = self._service.settings.body_seconds + self.received / _BODY_RATE - self._waited
        while True:
            waited = time.monotonic() - started
            if waited >= allowed:
                raise ApiError(408, "timeout", "the body did not arrive in time", headers=_CLOSE)
            if self._service.draining and waited >= _DRAIN_SECONDS:
                raise overloaded(1.0, "the service is stopping")
            try:
                message = await asyncio.wait_for(self._receive(), min(_POLL_SECONDS, allowed - waited))
            except TimeoutError:
                continue
            self._waited += time.monotonic() - started
            return message


def _check_length(headers: Headers, limit: int) -> None:
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"the body may have at most {limit:,} bytes")
