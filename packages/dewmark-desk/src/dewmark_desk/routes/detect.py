"""``/v1/detect``, ``/v1/locate`` and ``/v1/extract``: find marks and their passages in texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, File, UploadFile
from fastapi.responses import JSONResponse

from dewmark.errors import InputError, UnknownNameError
from dewmark.scheme import check_test
from dewmark_desk import verdicts
from dewmark_desk.api_tokens import Caller, Scope
from dewmark_desk.http_errors import ApiError, overloaded
from dewmark_desk.routes.dependencies import (
    CallerOf,
    RequestId,
    ServiceOf,
    error_responses,
    require,
    token,
)
from dewmark_desk.routes.guarded_route import GuardedRoute, scopes
from dewmark_desk.schemas import (
    DetectRequest,
    DetectResponse,
    ExtractResponse,
    LocateRequest,
    LocateResponse,
)
from dewmark_desk.service import Service
from dewmark_desk.tenants import Tenant
from dewmark_desk.uploads import extract_text
from dewmark_desk.verdicts import Examination, Query

router = APIRouter(prefix="/v1", tags=["detection"], dependencies=[Depends(token)], route_class=GuardedRoute)

_BATCHED_CHARACTERS = 8_192  # longer requests are not batched with others
_PART_CHARACTERS = 32_768  # of a request that are scored before others have their turn
_READ_CHARACTERS = 4_096  # the same where a reader reads them, which takes a second for a page on a CPU
_EXTRACT_SECONDS = 20.0


@router.post(
    "/detect",
    response_model=DetectResponse,
    responses=error_responses(404, 408, 413, 422, 429),
    summary="Check whether texts are marked",
    openapi_extra=scopes(Scope.DETECT, Scope.DETECT_PUBLIC),
)
async def detect(
    body: DetectRequest, service: ServiceOf, caller: CallerOf, request_id: RequestId
) -> JSONResponse:
    """Verdict, p-value, z-score, effective length and language of each text, and token scores on request.

    The verdict and its p-value account for everything that is examined: the whole text, its passages if
    ``passages`` asks for them, and the keys of all tenants that the caller may use.
    """
    caller = require(caller, Scope.DETECT, Scope.DETECT_PUBLIC)
    texts, prompts = _texts(body, limit=service.settings.texts)
    choices = (body.fpr, body.test, body.tenants, body.tokens or None, body.passages or None)
    if not caller.sees_all and (not body.read or any(choice is not None for choice in choices)):
        raise ApiError(
            403,
            "forbidden",
            "this token may not set fpr, test, tenants, passages or read, nor see token scores",
        )
    how = examination(service, caller, body.tenants, fpr=body.fpr, passages=body.passages)
    how = dataclasses.replace(how, test=body.test, read=body.read)
    for tenant in how.tenants:
        check_test(body.test, tenant.bound.tests)
    if not caller.sees_all:
        how = dataclasses.replace(how, fpr=min(how.fpr, service.settings.public_fpr))
    queries = [
        Query(text, prompt, body.tokens, not caller.sees_all)
        for text, prompt in zip(texts, prompts, strict=True)
    ]
    check_queries(queries, service)
    if caller.sees_all:
        async with service.charged(caller, len(queries)):
            answers = await judge(service, queries, how)
    else:
        answers = await _judge_for_public(service, caller, queries, how)
    for answer in answers:
        service.metrics.texts.labels("detect", answer["verdict"]).inc()
    await log_queries(service, caller, request_id, "detect", texts, answers)
    return JSONResponse({"request_id": request_id, "results": answers})


@router.post(
    "/locate",
    response_model=LocateResponse,
    responses=error_responses(404, 408, 413, 422, 429),
    summary="Find the marked passages of a text",
    openapi_extra=scopes(Scope.DETECT),
)
async def locate(
    body: LocateRequest, service: ServiceOf, caller: CallerOf, request_id: RequestId
) -> JSONResponse:
    """The marked passages of a text, and the verdict of ``/v1/detect`` with ``passages``.

    P-values are corrected for all passages tried and for the keys of all tenants that the caller may use.
    """
    caller = require(caller, Scope.DETECT)
    how = examination(service, caller, None if body.tenant is None else [body.tenant], fpr=body.fpr)
    query = Query(body.text, body.prompt, body.tokens)
    check_queries([query], service)

    def find(queries: list[Query]) -> list[dict[str, Any]]:
        return [verdicts.find_passages(each, how) for each in queries]

    async with service.charged(caller, 1):
        (found,) = await service.pool.run(find, [query])
    service.metrics.texts.labels("locate", found["detection"]["verdict"]).inc()
    await log_queries(service, caller, request_id, "locate", [body.text], [found["detection"]])
    return JSONResponse({"request_id": request_id, **found})


@router.post(
    "/extract",
    response_model=ExtractResponse,
    responses=error_responses(408, 413, 415, 422, 429),
    summary="Extract the text of a document",
    openapi_extra=scopes(Scope.DETECT, Scope.DETECT_PUBLIC),
)
async def extract(
    file: Annotated[UploadFile, File()], service: ServiceOf, caller: CallerOf, request_id: RequestId
) -> JSONResponse:
    """Extract the text of a .pdf, .docx, .odt, .rtf, .txt or .md file, which is not stored."""
    caller = require(caller, Scope.DETECT, Scope.DETECT_PUBLIC)
    data = await file.read()
    if len(data) > service.settings.extract_bytes:
        limit = service.settings.extract_bytes
        raise ApiError(413, "body_too_large", f"a file may have at most {limit:,} bytes")
    if service.extractions.available_tokens < 1:
        raise overloaded(5.0, "too many files are being read")
    name = PurePosixPath((file.filename or "").replace("\\", "/")).name
    try:
        # it counts against the rate only: reading a file reveals nothing about a key
        async with service.charged(caller, 0, requests=1):
            with anyio.fail_after(_EXTRACT_SECONDS):
                text = await anyio.to_thread.run_sync(
                    extract_text, name, data, limiter=service.extractions, abandon_on_cancel=True
                )
    except UnknownNameError as error:
        raise ApiError(415, "unsupported_media_type", str(error)) from None
    except TimeoutError:
        raise InputError("reading the file takes too long: paste its text") from None
    shown = name.encode("utf-8", "replace").decode()[:200]
    return JSONResponse({"request_id": request_id, "name": shown, "text": text, "characters": len(text)})


def _texts(body: DetectRequest, *, limit: int) -> tuple[list[str], Sequence[str | None]]:
    if (body.text is None) == (body.texts is None):
        raise ApiError(422, "invalid_request", "give either text or texts")
    if body.text is not None:
        if body.prompts is not None:
            raise ApiError(422, "invalid_request", "prompts goes with texts: use prompt with text")
        return [body.text], [body.prompt]
    texts = body.texts or []
    if body.prompt is not None:
        raise ApiError(422, "invalid_request", "prompt goes with text: use prompts with texts")
    if len(texts) > limit:
        raise ApiError(422, "invalid_request", f"texts: at most {limit} per request, got {len(texts)}")
    if body.prompts is not None and len(body.prompts) != len(texts):
        raise ApiError(422, "invalid_request", "give one prompt per text, or no prompts")
    return texts, body.prompts or [None] * len(texts)


def choose_tenants(service: Service, caller: Caller, ids: Sequence[str] | None) -> list[Tenant]:
    """The tenants that a request names, or all that the caller may use."""
    if ids is None:
        tenants = service.may_use(caller)
        if not tenants:
            raise ApiError(404, "not_found", "this token may not use any tenant")
        return tenants
    chosen = {key.id: key for id_ in ids for key in service.keys_of(id_, caller)}
    return list(chosen.values())


def examination(
    service: Service,
    caller: Caller,
    ids: Sequence[str] | None,
    *,
    fpr: float | None,
    passages: bool = False,
) -> Examination:
    """How the caller's texts are examined: under these tenants' keys, paying for all that it may use."""
    return Examination(
        choose_tenants(service, caller, ids),
        keys=len(service.may_use(caller)),
        fpr=fpr or service.settings.fpr,
        passages=passages,
    )


def check_queries(queries: Sequence[Query], service: Service) -> None:
    """Raise an error unless all texts and prompts are valid and small enough."""
    limit = service.settings.text_bytes
    for i, query in enumerate(queries):
        what = f"text {i}" if len(queries) > 1 else "the text"
        query.check(what)
        if len(query.text.encode()) > limit or len((query.prompt or "").encode()) > limit:
            raise ApiError(413, "text_too_large", f"{what} or its prompt has more than {limit:,} bytes")
    most = service.settings.request_bytes
    if sum(len(query.text.encode()) for query in queries) > most:
        raise ApiError(
            413,
            "texts_too_large",
            f"the texts have more than {most:,} bytes together: send fewer, or a batch",
        )


async def _judge_for_public(
    service: Service, caller: Caller, queries: list[Query], how: Examination
) -> list[dict[str, Any]]:
    """Answers for a public token: nearly identical texts get one answer and are paid for once."""
    shared, texts = service.public_answers, [query.text for query in queries]
    sketches = await service.in_thread(shared.sketches, texts)
    answers = await service.in_thread(shared.find, caller.id, sketches)
    fresh: list[int] = []  # texts that are unlike all earlier ones, also within this request
    for i, answer in enumerate(answers):
        if answer is None and not any(shared.alike(sketches[i], sketches[j]) for j in fresh):
            fresh.append(i)
    size = sum(len(texts[i].encode()) for i in fresh)
    async with service.charged(caller, len(fresh), requests=len(queries), size=size):
        judged = await judge(service, [queries[i] for i in fresh], how) if fresh else []
        for i, answer in zip(fresh, judged, strict=True):
            answers[i] = await service.in_thread(shared.keep, caller.id, sketches[i], answer)
    again = await service.in_thread(shared.find, caller.id, sketches)
    return [
        {
            **(answers[i] or again[i] or {}),
            "characters": len(query.text),
            "shared": i not in fresh,
        }
        for i, query in enumerate(queries)
    ]


async def judge(service: Service, queries: list[Query], how: Examination) -> list[dict[str, Any]]:
    """The answers to queries, which share a batch with others if they are short."""

    def handle(some: list[Query]) -> list[dict[str, Any]]:
        return verdicts.detect(some, how)

    group = (
        "detect",
        *(tenant.id for tenant in how.tenants),
        how.keys,
        how.fpr,
        how.test,
        how.read,
        how.passages,
    )
    if sum(len(query.text) for query in queries) <= _BATCHED_CHARACTERS:
        return await service.pool.run(handle, queries, group=group)
    answers: list[dict[str, Any]] = []
    for part in _parts(queries, how):  # others have their turn after each part
        answers += await service.pool.run(handle, part)
    return answers


def _parts(queries: Sequence[Query], how: Examination) -> Iterator[list[Query]]:
    """The queries in parts of at most `_PART_CHARACTERS` (with a reader `_READ_CHARACTERS`), or one text."""
    limit = _READ_CHARACTERS if how.has_reader else _PART_CHARACTERS
    part: list[Query] = []
    for query in queries:
        if part and sum(len(each.text) for each in (*part, query)) > limit:
            yield part
            part = []
        part.append(query)
    yield part


async def log_queries(
    service: Service,
    caller: Caller,
    request_id: str,
    endpoint: str,
    texts: Sequence[str],
    answers: Sequence[dict[str, Any]],
) -> None:
    """Log queries, if the service does."""
    if (log := service.query_log) is not None:
        await service.in_thread(
            lambda: log.write(
                request=request_id, token=caller.id, endpoint=endpoint, texts=texts, answers=answers
            )
        )
