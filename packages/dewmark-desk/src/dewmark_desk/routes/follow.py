"""``/v1/follow``: watch a text while its body arrives, and answer as soon as it is found to be marked.

The body is the text itself, in pieces of any size; the answer is one JSON line after every few words.
P-values are valid whenever either side stops (`dewmark.dew.sequential`). With several keys they pay for
all that the caller may use.

Only callers with the scope ``detect`` may follow: whoever sees a p-value after every few words can choose the
next ones by it.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from dewmark.streams import Stream
from dewmark_desk import decisions
from dewmark_desk.admission import SLICE
from dewmark_desk.api_tokens import Scope
from dewmark_desk.examining import log_queries
from dewmark_desk.fair_pool import Overloaded
from dewmark_desk.http_errors import ApiError, error_body, overloaded
from dewmark_desk.routes.dependencies import CallerOf, RequestId, ServiceOf, error_responses, require, token
from dewmark_desk.routes.guarded_route import GuardedRoute, scopes
from dewmark_desk.schemas import FollowedLine, Share, TenantId
from dewmark_desk.service import Service

router = APIRouter(prefix="/v1", tags=["detection"], dependencies=[Depends(token)], route_class=GuardedRoute)

_LEAST, _MOST = 24, 240  # characters that are read at once
_SECONDS = 8e-5  # of work for a character under one key
_WORK = 20.0  # seconds of work for one stream, which then holds about 100 MB
_ALL_WORK = 80.0  # the same for all streams of a process
_STREAMS = 4  # that one token may have followed at a time
_DRAIN_SECONDS = 1.0
_LINES = "application/x-ndjson"


@router.post(
    "/follow",
    response_class=Response,
    responses={
        200: {"content": {_LINES: {"schema": FollowedLine.model_json_schema()}}, "description": "Lines."},
        **error_responses(404, 408, 413, 422, 429),
    },
    summary="Watch a text while it arrives",
    openapi_extra={
        **scopes(Scope.DETECT),
        "requestBody": {"required": True, "content": {"text/plain": {"schema": {"type": "string"}}}},
    },
)
async def follow(
    service: ServiceOf,
    caller: CallerOf,
    request_id: RequestId,
    tenant: Annotated[TenantId | None, Query()] = None,
    fpr: Annotated[Share | None, Query()] = None,
) -> Response:
    """The words so far, the p-value and, as soon as it reaches ``fpr``, ``marked`` and whose mark it is.

    The answer ends there, or with the text.
    """
    caller = require(caller, Scope.DETECT)
    ids = None if tenant is None else [tenant]
    how = decisions.examination(service, caller, ids, fpr=fpr, read=False)
    if service.following[caller.id] >= _STREAMS:
        raise ApiError(429, "too_many_requests", f"this token follows {_STREAMS} streams", wait=10.0)
    stream = Stream([how.bound(i) for i in range(len(how.tenants))], fpr=how.fpr, keys=how.keys)
    async with service.charged(caller, 1):
        line = functools.partial(_line, stream, [each.id for each in how.tenants])

    async def finished() -> None:
        answer = line(end=True)
        service.metrics.texts.labels("follow", answer["verdict"] or "broken_off").inc()
        await log_queries(service, caller, request_id, "follow", [stream.text], [answer])

    seconds = _SECONDS * len(how.tenants)  # per character
    return _Following(
        service, caller.id, stream, line, request_id, seconds, background=BackgroundTask(finished)
    )


def _line(stream: Stream, tenants: Sequence[str], *, end: bool) -> dict[str, Any]:
    """What is known so far."""
    verdict = stream.verdict
    return {
        "words": stream.best.words,
        "characters": len(stream.text),
        "p_value": stream.p_value,
        "fpr": stream.fpr,
        "verdict": verdict and verdict.value,
        "tenant": tenants[stream.index] if stream.is_marked else None,
        **stream.origin,
        "end": end,
    }


class _Following(Response):
    """Reads the body and answers at the same time."""

    media_type = _LINES

    def __init__(
        self,
        service: Service,
        owner: str,
        stream: Stream,
        line: Callable[..., dict[str, Any]],
        request_id: str,
        seconds: float,
        *,
        background: BackgroundTask,
    ) -> None:
        super().__init__(background=background)
        del self.headers["content-length"]
        self._service, self._stream, self._line, self._request_id = service, stream, line, request_id
        self._owner, self._seconds, self._done = owner, seconds, 0.0

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer until the text has ended or is found to be marked, or its client has gone."""
        headers = [(b"connection", b"close"), *self.raw_headers]
        self._service.following[self._owner] += 1
        try:
            await self._follow(headers, receive, send)
        finally:
            self._service.following[self._owner] -= 1
            self._service.followed -= self._done

    async def _follow(self, headers: list[tuple[bytes, bytes]], receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        last = b""
        try:
            async for line in self._lines(receive):
                await send({"type": "http.response.body", "body": _encoded(line), "more_body": True})
        except ApiError as error:
            last = _encoded(error_body(error.status_code, error.code, error.detail, self._request_id))
        except Overloaded:
            busy = overloaded(10.0)
            last = _encoded(error_body(busy.status_code, busy.code, busy.detail, self._request_id))
        except UnicodeDecodeError:
            last = _encoded(error_body(422, "invalid_request", "the body is not UTF-8", self._request_id))
        await send({"type": "http.response.body", "body": last, "more_body": True})
        with contextlib.suppress(TimeoutError, ApiError):  # a client that still sends might not see the end
            await asyncio.wait_for(_drain(receive), _DRAIN_SECONDS)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        if self.background is not None:
            await self.background()

    async def _lines(self, receive: Receive) -> AsyncIterator[dict[str, Any]]:
        decoder, unread, more, marked = codecs.getincrementaldecoder("utf-8")(), "", True, False
        stream = self._stream
        pool = self._service.fast if self._seconds * _MOST < SLICE else self._service.slow
        limit = min(self._service.settings.text_bytes, int(_WORK / self._seconds))
        most = max(_LEAST, min(_MOST, int(SLICE / self._seconds)))
        while more and not marked:
            message = await receive()
            if message["type"] != "http.request":
                return
            more = message.get("more_body", False)
            unread += decoder.decode(message.get("body", b""), final=not more)
            while not marked and unread and (len(unread) >= _LEAST or not more):
                if len(stream.text) >= limit:
                    few = ": name fewer tenants" if self._seconds > _SECONDS else ""
                    raise ApiError(
                        413, "text_too_large", f"this stream may have at most {limit:,} characters{few}"
                    )
                cost = self._seconds * len(unread[:most])
                share = _ALL_WORK / max(1, self._service.following.total())
                if self._service.followed + cost > _ALL_WORK and self._done + cost > share:
                    raise overloaded(10.0, "too many streams are followed")
                self._done, self._service.followed = self._done + cost, self._service.followed + cost
                await pool.run(
                    lambda pieces: [stream.update(piece) for piece in pieces],
                    [unread[:most]],
                    owner=self._owner,
                    cost=cost,
                )
                unread, marked = unread[most:], stream.is_marked
                if not marked:
                    yield self._line(end=False)
        if not marked:
            await pool.run(
                lambda _: [stream.finish()], [None], owner=self._owner, cost=self._seconds * _LEAST
            )
        yield self._line(end=True)


async def _drain(receive: Receive) -> None:
    """Discard the rest of a body."""
    while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
        pass


def _encoded(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line).encode() + b"\n"
