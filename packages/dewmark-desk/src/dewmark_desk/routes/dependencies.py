"""What the routes share: the service, the caller, the guard in front of a route, and descriptions of errors.

FastAPI reads, parses and validates a body before it runs a route or its dependencies, so a small body of many
values (``[0,0,0,…]``) could cost gigabytes whoever sent it. A `GuardedRoute` keeps this order: scope, rate
and budget of the token; the size of the body (`middleware`); its JSON values (`admission`); then parsing and
validation, which stops at the first error of a list. So a route that names scopes has a caller with one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from starlette._utils import AwaitableOrContextManager
from starlette.datastructures import FormData

from dewmark_desk.admission import bounds_of, parsed
from dewmark_desk.api_tokens import Caller, Scope
from dewmark_desk.fair_pool import Overloaded
from dewmark_desk.http_errors import ApiError, api_error
from dewmark_desk.schemas import ErrorResponse
from dewmark_desk.service import Service

_SCOPES = "x-scopes"
_LARGE = 1 << 18  # bytes; larger bodies take turns: many threads that parse keep the interpreter from others
_PARSING = 1e-8  # seconds for a byte
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
BODY = (404, 408, 413, 422, 429)
"""The error responses of routes that read a body and examine texts."""

# For the OpenAPI document only: the middleware has already checked the token.
_token = HTTPBearer(auto_error=False, description="An API token, created with: dewmark token new")


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def caller_id(request: Request) -> str:
    """The token of a request, "" where it has none."""
    caller: Caller | None = request.state.caller
    return caller.id if caller else ""


def _request_id(request: Request) -> str:
    return str(request.state.request_id)


Desk = Annotated[Service, Depends(_service)]
CallerOf = Annotated[Caller, Depends(_caller)]
RequestId = Annotated[str, Depends(_request_id)]


def guarded(
    summary: str, answer: type[BaseModel] | None, *scopes: Scope, errors: tuple[int, ...] = BODY
) -> dict[str, Any]:
    """Options of a route for tokens with one of these scopes: what it does, answers and fails with."""
    return {
        "summary": summary,
        "response_model": answer,
        "dependencies": [Depends(_token)],
        "openapi_extra": {_SCOPES: [str(scope) for scope in scopes]},
        "responses": error_responses(400, 401, 403, 503, *errors),
    }


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """A route's error responses for the OpenAPI document."""
    return {
        status: {"model": ErrorResponse, "description": _REASONS[status], "content": {"application/json": {}}}
        for status in sorted(set(statuses))
    }


class GuardedRoute(APIRoute):
    """See the module's docstring; `guarded` names the scopes."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler behind the checks."""
        handle = super().get_route_handler()
        allowed = [Scope(name) for name in (self.openapi_extra or {}).get(_SCOPES, ())]
        reads_body = self.body_field is not None

        async def guard(request: Request) -> Response:
            if allowed:
                caller: Caller | None = request.state.caller
                if caller is None or not caller.may(*allowed):
                    raise ApiError(403, "forbidden", f"the token needs the scope {' or '.join(allowed)}")
                if reads_body:
                    await _service(request).check_limits(caller)
            bounded = _BoundedRequest(request.scope, request.receive)
            if not reads_body or int(request.headers.get("content-length", _LARGE + 1)) <= _LARGE:
                return await handle(bounded)
            async with _service(request).large[caller_id(request)]:
                return await handle(bounded)

        return guard


class _BoundedRequest(Request):
    """A request whose body is parsed within bounds."""

    async def json(self) -> Any:  # noqa: ANN401 - any JSON value
        """The parsed body."""
        body, service = await self.body(), _service(self)
        values = bounds_of(self.url.path, service.settings).values
        if len(body) <= _LARGE:
            return parsed(body, values)
        owner, cost = caller_id(self), _PARSING * len(body)
        try:
            (found,) = await service.fast.run(
                lambda some: [parsed(each, values) for each in some], [body], owner=owner, cost=cost
            )
        except Overloaded as error:  # FastAPI would call it a body that is no JSON
            raise api_error(error) from None
        return found

    def form(self, **_: Any) -> AwaitableOrContextManager[FormData]:  # noqa: ANN401
        """The parsed form: one file, and a few fields that browsers may add."""
        return super().form(max_files=1, max_fields=8)
