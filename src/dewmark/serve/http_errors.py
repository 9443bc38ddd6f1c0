"""Every answer that is a refusal: one shape, one plain sentence, and never a piece of what was sent.

The shape is that of OpenAI's errors with the request's id added, so that both kinds of client understand it.
"""

from __future__ import annotations

import logging
import math
from http import HTTPStatus

import sqlalchemy as sa
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from dewmark.errors import DewmarkError
from dewmark.serve.audit_jobs import TooManyJobs
from dewmark.serve.thread_pool import Overloaded

__all__ = ["ApiError", "add_handlers", "error_body", "overloaded"]

_log = logging.getLogger("dewmark.serve")

_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    415: "unsupported_media_type",
}
_SENTENCES = {404: "there is nothing at this address", 405: "this address does not know that method"}
_LONGEST_WAIT = 3600.0


class ApiError(HTTPException):
    """A refusal with its status and code; ``wait`` becomes Retry-After."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        wait: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        every = dict(headers or {})
        if wait is not None:
            every["Retry-After"] = str(max(1, math.ceil(min(wait, _LONGEST_WAIT))))
        super().__init__(status, message, every)
        self.code = code


def overloaded(wait: float, why: str = "too much is waiting") -> ApiError:
    """503: come back later."""
    return ApiError(503, "overloaded", f"{why}; try again later", wait=wait)


def error_body(status: int, code: str, message: str, request_id: str) -> dict[str, object]:
    """The JSON of a refusal."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {
        "error": {"code": code, "type": kind, "message": message, "param": None, "request_id": request_id}
    }


def add_handlers(app: FastAPI) -> None:
    """Turn every exception that a route may raise into a refusal."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(DewmarkError, _refused)
    app.add_exception_handler(Overloaded, _busy)
    app.add_exception_handler(TooManyJobs, _too_many)
    app.add_exception_handler(sa.exc.SQLAlchemyError, _store)


def _response(request: Request, error: ApiError) -> Response:
    body = error_body(error.status_code, error.code, error.detail, request.state.request_id)
    return JSONResponse(body, error.status_code, error.headers)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if not isinstance(error, ApiError):
        status = error.status_code
        sentence = _SENTENCES.get(status, HTTPStatus(status).phrase.lower())
        headers = dict(error.headers or {})
        error = ApiError(status, _CODES.get(status, "bad_request"), sentence, headers=headers)
    return _response(request, error)


async def _invalid(request: Request, error: Exception) -> Response:
    """The first fault in words; what was sent is not repeated."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _response(request, ApiError(400, "bad_request", "the body is not JSON"))
    where = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
    message = str(first["msg"]).removeprefix("Value error, ")
    printable = where.encode("ascii", "replace").decode()[:80]  # a field's name is the sender's
    return _response(request, ApiError(422, "invalid_request", f"{printable}: {message}"))


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, ValueError):  # what was asked for is at fault: `InputError`, `ConfigError`
        return _response(request, ApiError(422, "invalid_request", str(error)))
    _log.error("refused by the library", exc_info=error)
    return _response(request, ApiError(500, "internal", "the service failed; its log says more"))


async def _busy(request: Request, error: Exception) -> Response:
    assert isinstance(error, Overloaded)
    return _response(request, overloaded(error.wait))


async def _too_many(request: Request, error: Exception) -> Response:
    assert isinstance(error, TooManyJobs)
    if error.own:
        message = "you have as many open audits as you may: wait for one to end, or delete it"
        return _response(request, ApiError(429, "too_many_requests", message, wait=30.0))
    return _response(request, overloaded(30.0, "too many audits are waiting"))


async def _store(request: Request, error: Exception) -> Response:
    _log.error("the store does not answer", exc_info=error)
    return _response(request, overloaded(2.0, "the store does not answer"))
