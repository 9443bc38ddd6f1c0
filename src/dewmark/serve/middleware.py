"""The middleware around the application: request ids, authentication, size limits, headers and logging.

It rejects requests before it reads their body. Every path except those in `_PUBLIC` needs a token.

A service without tokens (on loopback, before the first token is created) answers only to loopback names and
the configured host names: otherwise a web page could point its own name here and read the answers (DNS
rebinding).
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dewmark.serve.api_tokens import OPEN, Caller
from dewmark.serve.http_errors import INTERNAL, ApiError, error_body, overloaded
from dewmark.serve.monitoring import log_request
from dewmark.serve.service import Service, allowance
from dewmark.serve.settings import is_loopback

__all__ = ["AccessMiddleware"]

_log = logging.getLogger("dewmark.serve")

_PUBLIC = re.compile(
    r"/|/docs|/healthz|/readyz|/\.well-known/[^/]*|/v1/reports/verify|/openapi\.json|/static/[^/]*|/favicon\.ico"
)
_WHOAMI = "/v1/whoami"  # also answers callers without a token
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_BODY_SECONDS = 60.0

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
        body = _Body(receive, self._limit(scope["path"]))
        status = 0
        allowance.set(None)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                found = MutableHeaders(scope=message)
                self._add_headers(found, scope["path"], request_id)
                if (left := allowance.get()) is not None:
                    found.update(left.headers())
            await send(message)

        try:
            try:
                state["caller"] = await self._caller(scope["path"], headers)
                self._check_body(scope["method"], headers, body.limit)
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
            self._report(scope, request_id, status, time.monotonic() - started, body.received)

    async def _caller(self, path: str, headers: Headers) -> Caller | None:
        """The caller; None if a public path is requested without a valid token."""
        service = self._service
        public = bool(_PUBLIC.fullmatch(path)) or (path == "/metrics" and service.settings.loopback)
        kind, _, text = headers.get("authorization", "").partition(" ")
        caller = await service.in_thread(service.caller, text.strip() if kind.lower() == "bearer" else "")
        if caller is OPEN:
            name = re.sub(r":\d+$", "", headers.get("host", ""))
            if not (is_loopback(name) or name.lower() in service.settings.host_names):
                raise ApiError(400, "bad_request", "unknown host name: allow it with --name")
        elif caller is None and not public and path != _WHOAMI:
            raise ApiError(
                401, "unauthorized", "a valid token is needed", headers={"WWW-Authenticate": "Bearer"}
            )
        return caller

    def _check_body(self, method: str, headers: Headers, limit: int) -> None:
        if self._service.draining and method != "GET":
            raise overloaded(1.0, "the service is stopping")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > limit:
            raise _too_large(limit)

    def _limit(self, path: str) -> int:
        settings = self._service.settings
        special = {
            "/v1/audit": settings.audit_bytes,
            "/v1/batches": settings.audit_bytes,
            "/v1/extract": settings.extract_bytes + 4096,
        }
        return special.get(path, settings.body_bytes)

    def _add_headers(self, headers: MutableHeaders, path: str, request_id: str) -> None:
        for name, value in HEADERS.items():
            headers.setdefault(name, value)
        headers["X-Request-Id"] = request_id
        headers.setdefault("Cache-Control", "no-store" if path.startswith("/v1/") else "no-cache")

    def _report(self, scope: Scope, request_id: str, status: int, seconds: float, received: int) -> None:
        route = getattr(scope.get("route"), "path", "other")
        caller = scope["state"].get("caller")
        metrics = self._service.metrics
        metrics.requests.labels(scope["method"] if route != "other" else "any", route, str(status)).inc()
        metrics.seconds.labels(route).observe(seconds)
        metrics.waiting.set(self._service.pool.waiting)
        log_request(
            request_id=request_id,
            method=scope["method"],
            route=route,
            status=status,
            seconds=seconds,
            received=received,
            token=caller.id if caller and not self._service.settings.zero_retention else "",
        )


class _Body:
    """Counts and limits the bytes of a request body, whether or not it declared its length."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self.limit = receive, limit
        self.received = 0
        self._complete = False

    async def __call__(self) -> Message:
        if self._complete:  # the next message is the disconnect
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), _BODY_SECONDS)
        except TimeoutError:
            raise ApiError(408, "timeout", "the body did not arrive in time") from None
        if message["type"] == "http.request":
            self.received += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self.received > self.limit:
                raise _too_large(self.limit)
        return message


def _too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"the body may have at most {limit:,} bytes")
