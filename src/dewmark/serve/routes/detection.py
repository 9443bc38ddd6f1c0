"""``/v1/detect`` and ``/v1/locate``: is a text marked, by whose key, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse

from dewmark.scheme import check_test
from dewmark.serve import verdicts as scoring
from dewmark.serve.api_tokens import Caller, Scope
from dewmark.serve.http_errors import ApiError
from dewmark.serve.routes.dependencies import CallerOf, RequestId, ServiceOf, refusals, token
from dewmark.serve.schemas import DetectRequest, DetectResponse, LocateRequest, LocateResponse
from dewmark.serve.service import Service, require
from dewmark.serve.tenants import Tenant
from dewmark.serve.verdicts import Query

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["detection"], dependencies=[Depends(token)])

_SHARED = 8_192  # bytes; a longer text is worth a batch of its own


@router.post(
    "/detect",
    response_model=DetectResponse,
    responses=refusals(404, 408, 413, 422, 429),
    summary="Say of each text whether it is marked",
)
async def detect(
    body: DetectRequest, service: ServiceOf, caller: CallerOf, request_id: RequestId
) -> JSONResponse:
    """Verdict, p-value, z, effective length and language of each text; token scores if asked for.

    Against several tenants' keys the p-value is corrected for their number: 1 − (1 − p)^K.
    """
    caller = require(caller, Scope.DETECT, Scope.DETECT_PUBLIC)
    texts, prompts = _texts(body, most=service.settings.texts)
    if not caller.sees_all and (body.fpr is not None or body.test is not None or body.tokens):
        raise ApiError(403, "forbidden", "this token may not choose fpr or test, nor see token scores")
    tenants = _tenants(service, caller, body.tenants)
    for tenant in tenants:
        check_test(body.test, tenant.bound.tests)
    queries = [
        Query(text, prompt, body.fpr or service.settings.fpr, body.tokens, not caller.sees_all)
        for text, prompt in zip(texts, prompts, strict=True)
    ]
    _check(queries, service)
    await service.spend(caller, len(queries))
    answers = await _detect(service, queries, tenants, body.test)
    for answer in answers:
        service.metrics.texts.labels("detect", answer["verdict"]).inc()
    await _log_queries(service, caller, request_id, "detect", texts, answers)
    return JSONResponse({"request_id": request_id, "results": answers})


@router.post(
    "/locate",
    response_model=LocateResponse,
    responses=refusals(404, 408, 413, 422, 429),
    summary="Find the marked passages of a text",
)
async def locate(
    body: LocateRequest, service: ServiceOf, caller: CallerOf, request_id: RequestId
) -> JSONResponse:
    """Which passages of a text are marked; their p-values count all the passages that were tried."""
    caller = require(caller, Scope.DETECT)
    tenants = _tenants(service, caller, None if body.tenant is None else [body.tenant])
    query = Query(body.text, body.prompt, body.fpr, body.tokens)
    _check([query], service)
    await service.spend(caller, 1)
    settings = service.settings

    def find(queries: list[Query]) -> list[dict[str, Any]]:
        return [
            scoring.find_passages(each, tenants, limit=settings.located_bytes, text_fpr=settings.fpr)
            for each in queries
        ]

    (found,) = await service.pool.run(find, [query])
    service.metrics.texts.labels("locate", found["detection"]["verdict"]).inc()
    await _log_queries(service, caller, request_id, "locate", [body.text], [found["detection"]])
    return JSONResponse({"request_id": request_id, **found})


def _texts(body: DetectRequest, *, most: int) -> tuple[list[str], Sequence[str | None]]:
    if (body.text is None) == (body.texts is None):
        raise ApiError(422, "invalid_request", "give text or texts, one of the two")
    if body.text is not None:
        if body.prompts is not None:
            raise ApiError(422, "invalid_request", "prompts go with texts: give prompt with text")
        return [body.text], [body.prompt]
    texts = body.texts or []
    if body.prompt is not None:
        raise ApiError(422, "invalid_request", "prompt goes with text: give prompts with texts")
    if len(texts) > most:
        raise ApiError(422, "invalid_request", f"at most {most} texts at a time, got {len(texts)}")
    if body.prompts is not None and len(body.prompts) != len(texts):
        raise ApiError(422, "invalid_request", "give one prompt per text, or no prompts")
    return texts, body.prompts or [None] * len(texts)


def _tenants(service: Service, caller: Caller, ids: Sequence[str] | None) -> list[Tenant]:
    if ids is None:
        tenants = service.may_use(caller)
        if not tenants:
            raise ApiError(404, "not_found", "there is no tenant that this token may ask for")
        return tenants
    return [service.tenant(id_, caller) for id_ in dict.fromkeys(ids)]


def _check(queries: Sequence[Query], service: Service) -> None:
    limit = service.settings.text_bytes
    for i, query in enumerate(queries):
        what = f"text {i}" if len(queries) > 1 else "the text"
        query.check(what)
        if len(query.text.encode()) > limit or len((query.prompt or "").encode()) > limit:
            raise ApiError(413, "text_too_large", f"{what} or its prompt has more than {limit:,} bytes")


async def _detect(
    service: Service, queries: list[Query], tenants: list[Tenant], test: str | None
) -> list[dict[str, Any]]:
    limit = service.settings.scored_bytes

    def handle(some: list[Query]) -> list[dict[str, Any]]:
        return scoring.detect(some, tenants, test=test, limit=limit)

    size = sum(len(query.text) for query in queries)
    group = ("detect", tuple(tenant.id for tenant in tenants), test) if size <= _SHARED else None
    return await service.pool.run(handle, queries, group=group)


async def _log_queries(
    service: Service,
    caller: Caller,
    request_id: str,
    endpoint: str,
    texts: Sequence[str],
    answers: Sequence[dict[str, Any]],
) -> None:
    if (log := service.query_log) is not None:
        await service.in_thread(
            lambda: log.write(
                request=request_id, token=caller.id, endpoint=endpoint, texts=texts, answers=answers
            )
        )
