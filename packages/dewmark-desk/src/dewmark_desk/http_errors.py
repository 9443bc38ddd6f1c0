"""Error responses: one JSON shape and one plain sentence, which never quotes the request.

The shape is that of OpenAI's errors plus the request's id, so that OpenAI's clients understand it, too.
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

from dewmark.errors import DewmarkError, StorageError
from dewmark_desk.api_tokens import Rejected
from dewmark_desk.fair_pool import Overloaded
from dewmark_desk.jobs import TooManyJobs

INTERNAL = "the service failed; see its log"

_log = logging.getLogger("dewmark_desk")

_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    415: "unsupported_media_type",
}
_SENTENCES = {404: "there is nothing at this URL", 405: "this URL does not support that method"}
_MAX_WAIT = 3600.0
Headers = dict[str, str] | None


class ApiError(HTTPException):
    """An error response; ``wait`` becomes its Retry-After header."""

    def __init__(
        self, status: int, code: str, message: str, *, wait: float | None = None, headers: Headers = None
    ) -> None:
        all_headers = dict(headers or {})
        if wait is not None:
            all_headers["Retry-After"] = str(max(1, math.ceil(min(wait, _MAX_WAIT))))
        super().__init__(status, message, all_headers)
        self.code = code


def overloaded(wait: float, why: str = "too many requests are waiting") -> ApiError:
    """A 503 response."""
    return ApiError(503, "overloaded", f"{why}; try again later", wait=wait)


def error_body(status: int, code: str, message: str, request_id: str) -> dict[str, object]:
    """The JSON body of an error response."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    said = {"code": code, "type": kind, "message": message, "param": None}
    return {"error": {**said, "request_id": request_id}}


def add_handlers(app: FastAPI) -> None:
    """Turn every exception that a route may raise into an error response."""
    ours = (DewmarkError, Overloaded, Rejected, TooManyJobs)
    for kind in (HTTPException, RequestValidationError, sa.exc.SQLAlchemyError, *ours):
        app.add_exception_handler(kind, _handle)


async def _handle(request: Request, error: Exception) -> Response:
    made = api_error(error)
    body = error_body(made.status_code, made.code, made.detail, request.state.request_id)
    return JSONResponse(body, made.status_code, made.headers)


def api_error(error: Exception) -> ApiError:
    """The response to an exception; what is not the request's fault is logged."""
    match error:
        case ApiError():
            return error
        case HTTPException():
            status = error.status_code
            sentence = _SENTENCES.get(status, HTTPStatus(status).phrase.lower())
            code = _CODES.get(status, "bad_request")
            return ApiError(status, code, sentence, headers=dict(error.headers or {}))
        case RequestValidationError():
            return _invalid_request(error)
        case Overloaded():
            return overloaded(error.wait)
        case Rejected() if error.texts:
            more = "1 more text" if error.texts == 1 else f"{error.texts} more texts"
            return ApiError(403, "budget_spent", f"the token's budget does not cover {more}")
        case Rejected():
            message = "the token's rate limit is reached; try again later"
            return ApiError(429, "too_many_requests", message, wait=error.wait)
        case TooManyJobs() if error.own:
            message = "this token has too many open jobs: wait for one to finish, or delete one"
            return ApiError(429, "too_many_requests", message, wait=30.0)
        case TooManyJobs():
            return overloaded(30.0, "too many jobs are waiting")
        case StorageError() | sa.exc.SQLAlchemyError():
            _log.error("the store is unavailable", exc_info=error)
            return overloaded(2.0, "the store is unavailable")
        case ValueError():  # the request is at fault: `InputError`, `ConfigError`
            return ApiError(422, "invalid_request", str(error))
    _log.error("a request failed", exc_info=error)
    return ApiError(500, "internal", INTERNAL)


def _invalid_request(error: RequestValidationError) -> ApiError:
    """The first error, without quoting the request."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return ApiError(400, "bad_request", "the body is not valid JSON")
    where = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
    message = str(first["msg"]).removeprefix("Value error, ")
    printable = where.encode("ascii", "replace").decode()[:80]  # the sender chose the field's name
    return ApiError(422, "invalid_request", f"{printable}: {message}")
