"""A route that checks its caller before it reads a body, and a body's structure before it parses it.

FastAPI reads, parses and validates a body before it runs a route or its dependencies, so a small body of many
values (``[0,0,0,…]``) could cost gigabytes whoever sent it. Here the order is: scope, rate and budget of the
token; the size of the body (`middleware`); its JSON values (`admission`); then parsing and validation, which
stops at the first error of a list.

A route names its scopes with ``openapi_extra=scopes(…)``, which also puts them into the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette._utils import AwaitableOrContextManager
from starlette.datastructures import FormData

from dewmark_desk.admission import bounds_of, parsed
from dewmark_desk.api_tokens import Scope
from dewmark_desk.routes.dependencies import require
from dewmark_desk.service import Service

_SCOPES = "x-scopes"
_LARGE = 1 << 18  # bytes; larger bodies are parsed in a thread, so that other requests go on


def scopes(*allowed: Scope) -> dict[str, Any]:
    """A route's ``openapi_extra``: tokens need one of these scopes."""
    return {_SCOPES: [str(scope) for scope in allowed]}


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
    """A request whose body is parsed within bounds."""

    async def json(self) -> Any:  # noqa: ANN401 - any JSON value
        """The parsed body."""
        body = await self.body()
        service: Service = self.app.state.service
        values = bounds_of(self.url.path, service.settings).values
        if len(body) > _LARGE:
            return await service.in_thread(parsed, body, values)
        return parsed(body, values)

    def form(self, **_: Any) -> AwaitableOrContextManager[FormData]:  # noqa: ANN401
        """The parsed form: one file, and a few fields that browsers may add."""
        return super().form(max_files=1, max_fields=8)
