"""What the routes share: the service, the caller, scope checks, and descriptions of error responses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from dewmark_desk.api_tokens import Caller, Scope
from dewmark_desk.http_errors import ApiError
from dewmark_desk.schemas import ErrorResponse
from dewmark_desk.service import Service

CLIENT_GONE = 499  # nobody sees it; the log does
T = TypeVar("T")

# For the OpenAPI document only: the middleware has already checked the token.
token = HTTPBearer(auto_error=False, description="An API token, created with: dewmark token new")


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _caller(request: Request) -> Caller | None:
    caller: Caller | None = request.state.caller
    return caller


def _request_id(request: Request) -> str:
    return str(request.state.request_id)


ServiceOf = Annotated[Service, Depends(_service)]
CallerOf = Annotated[Caller | None, Depends(_caller)]
RequestId = Annotated[str, Depends(_request_id)]

_REASONS = {
    400: "The body is not JSON, or the Host header has an unknown name.",
    401: "No valid token.",
    403: "The token lacks the scope, or its budget is spent.",
    404: "No such tenant or job.",
    408: "The body did not arrive in time.",
    413: "A text or the body is too large.",
    415: "Unsupported file type.",
    422: "A field is missing or invalid, or a text is blank or not valid Unicode.",
    429: "The token's rate limit is reached; see Retry-After.",
    503: "Too many requests are waiting, or the service is stopping; see Retry-After.",
}


async def while_connected(request: Request, answer: Awaitable[T]) -> T | None:
    """Await an answer, or cancel it and return None when the client goes. The body must have been read."""
    working = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def require(caller: Caller | None, *scopes: Scope) -> Caller:
    """The caller, if it has one of the scopes; else raises a 403 error."""
    if caller is None or not caller.may(*scopes):
        raise ApiError(403, "forbidden", f"the token needs the scope {' or '.join(scopes)}")
    return caller


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """A route's error responses for the OpenAPI document."""
    return {
        status: {"model": ErrorResponse, "description": _REASONS[status]}
        for status in sorted({400, 401, 403, 503, *statuses})
    }
