"""What the routes share: the service, the caller, and the refusals that any of them may give."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from dewmark.serve.api_tokens import Caller
from dewmark.serve.schemas import ErrorResponse
from dewmark.serve.service import Service

__all__ = ["CallerOf", "RequestId", "ServiceOf", "refusals", "token"]

# For the OpenAPI document only: the gate has looked at the token before a route is reached.
token = HTTPBearer(auto_error=False, description="An API token, made by: dewmark token new")


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

_WHY = {
    400: "Not JSON, or the service does not go by the name in the Host header.",
    401: "No valid token.",
    403: "The token lacks the scope, or its budget is spent.",
    404: "No such tenant or job.",
    408: "The body did not arrive in time.",
    413: "A text or the body is too large.",
    415: "A kind of file that is not read.",
    422: "A field is missing, of the wrong type or out of range; or a text is blank or no text.",
    429: "The token's rate limit is reached; Retry-After says for how long.",
    503: "Too much is waiting, or the service is stopping; Retry-After says for how long.",
}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route for the OpenAPI document."""
    return {
        status: {"model": ErrorResponse, "description": _WHY[status]}
        for status in sorted({400, 401, 403, 503, *statuses})
    }
