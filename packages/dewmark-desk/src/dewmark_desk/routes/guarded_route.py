"""A route that checks its caller before it reads a body, and a body's structure before it parses it.

FastAPI reads, parses and validates a body before it runs a route or its dependencies, so a small body of many
values (``[0,0,0,…]``) could cost gigabytes whoever sent it. Here the order is: scope, rate and budget of the
token; the size of the body (`middleware`); the number of its JSON values; then parsing and validation, which
stops at the first error of a list.

A route names its scopes with ``openapi_extra=scopes(…)``, which also puts them into the OpenAPI document.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

import anyio.to_thread
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette._utils import AwaitableOrContextManager
from starlette.datastructures import FormData

from dewmark_desk.api_tokens import Scope
from dewmark_desk.http_errors import ApiError
from dewmark_desk.routes.dependencies import require
from dewmark_desk.service import Service

MAX_VALUES = 10_000  # JSON values in a body; a thousand chat messages in parts have about 6,000
_LONG_LISTS = ("/v1/audit", "/v1/batches")
_SCOPES = "x-scopes"
_LARGE = 1 << 18  # bytes; larger bodies are parsed in a thread, so that other requests go on


def scopes(*allowed: Scope) -> dict[str, Any]:
    """A route's ``openapi_extra``: tokens need one of these scopes."""
    return {_SCOPES: [str(scope) for scope in allowed]}


def count_values(body: bytes, limit: int) -> int:
    """An upper bound of the number of values in a JSON document, without parsing; exact up to ``limit``."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    quotes = plain.count(b'"')
    if quotes > 4 * limit:  # a string has two, and in an object every value has a name
        return quotes // 4
    outside = plain.split(b'"')[::2]
    return 1 + sum(part.count(b",") + part.count(b"[") + part.count(b"{") for part in outside)


class GuardedRoute(APIRoute):
    """See the module's docstring."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler behind the checks."""
        handle = super().get_route_handler()
        allowed = [Scope(name) for name in (self.openapi_extra or {}).get(_SCOPES, ())]
        reads_body = self.body_field is not None

        async def guarded(request: Request) -> Response:
            service: Service = request.app.state.service
            if allowed:
                caller = require(request.state.caller, *allowed)
                if reads_body:
                    await service.check_limits(caller)
            return await handle(_BoundedRequest(request.scope, request.receive))

        return guarded


class _BoundedRequest(Request):
    """A request whose body has a limited number of values."""

    async def json(self) -> Any:  # noqa: ANN401 - any JSON value
        """The parsed body."""
        body = await self.body()
        if len(body) > _LARGE:
            await anyio.to_thread.run_sync(self._check, body)
            return await anyio.to_thread.run_sync(json.loads, body)
        self._check(body)
        return await super().json()

    def form(self, **_: Any) -> AwaitableOrContextManager[FormData]:  # noqa: ANN401
        """The parsed form: one file, and a few fields that browsers may add."""
        return super().form(max_files=1, max_fields=8)

    def _check(self, body: bytes) -> None:
        service: Service = self.app.state.service
        limit = service.settings.audit_values if self.url.path in _LONG_LISTS else MAX_VALUES
        if count_values(body, limit) > limit:
            raise ApiError(413, "too_many_values", f"the body may contain at most {limit:,} values")
