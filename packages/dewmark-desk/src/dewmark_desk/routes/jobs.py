"""``/v1/batches`` and ``/v1/jobs``: check many texts in the background; progress and results of all jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from fastapi import Query as Parameter
from fastapi.responses import JSONResponse, Response

from dewmark.scheme import check_text
from dewmark_desk import decisions
from dewmark_desk.admission import admitted
from dewmark_desk.api_tokens import Caller, Scope
from dewmark_desk.http_errors import ApiError
from dewmark_desk.jobs import BATCH, Job, JobText
from dewmark_desk.routes.dependencies import (
    CallerOf,
    RequestId,
    ServiceOf,
    error_responses,
    require,
    token,
)
from dewmark_desk.routes.guarded_route import GuardedRoute, scopes
from dewmark_desk.routes.submission import IdempotencyKey, submit_job
from dewmark_desk.schemas import BatchRequest, JobList, JobResponse, JobState, ResultList
from dewmark_desk.service import Service
from dewmark_desk.settings import Settings
from dewmark_desk.verdicts import Examination, Query

router = APIRouter(prefix="/v1", tags=["jobs"], dependencies=[Depends(token)], route_class=GuardedRoute)

_ID = r"^j_[A-Za-z0-9_-]{10,40}$"
JobId = Annotated[str, Path(pattern=_ID)]
Limit = Annotated[int, Parameter(ge=1, le=500, description="The most rows on a page.")]


@router.post(
    "/batches",
    status_code=202,
    response_model=JobResponse,
    responses=error_responses(404, 408, 413, 422, 429),
    summary="Check many texts in the background",
    openapi_extra=scopes(Scope.DETECT),
)
async def batch(
    body: BatchRequest,
    service: ServiceOf,
    caller: CallerOf,
    request_id: RequestId,
    idempotency_key: IdempotencyKey = None,
) -> JSONResponse:
    """Start a batch of detections, which survives a restart; results are read page by page.

    Each text is judged as by ``/v1/detect``; with ``translate_back`` also in English, and the better verdict
    pays for both. The summary also counts the texts that remain after
    Benjamini-Hochberg: of those, at most about a share of ``fpr`` is unmarked.
    """
    caller = require(caller, Scope.DETECT)
    settings = service.settings
    how = decisions.examination(
        service, caller, body.tenants, fpr=body.fpr, test=body.test, passages=body.passages, read=body.read
    )
    if body.translate_back and not settings.translate_back:
        raise ApiError(
            422, "invalid_request", "translate_back: this service does not translate (--translate-back)"
        )
    texts = await service.in_thread(_texts, body, how, settings)
    return await submit_job(
        service,
        caller,
        request_id,
        body,
        idempotency=idempotency_key,
        kind=BATCH,
        tenant=how.tenants[0].id if len(how.tenants) == 1 else "",
        test=body.test,
        texts=texts,
        options={
            "tenants": [tenant.id for tenant in how.tenants],
            "read": how.read,
            "translate_back": body.translate_back,
            "keys": how.keys,  # the caller may submit the same texts for others
            "fpr": how.fpr,
            "passages": how.passages,
        },
    )


@router.get("/jobs", response_model=JobList, responses=error_responses(404, 422), summary="The caller's jobs")
async def jobs(
    service: ServiceOf,
    caller: CallerOf,
    limit: Limit = 50,
    after: Annotated[str | None, Parameter(pattern=_ID, description="The cursor of a page.")] = None,
) -> JSONResponse:
    """Jobs without their results, newest first; ``admin`` sees those of all callers."""
    caller = require(caller, Scope.DETECT)
    owner = None if caller.may(Scope.ADMIN) else caller.id
    start = None if after is None else await _find(after, service, caller)
    found = await service.in_thread(lambda: service.jobs.of(owner, after=start, limit=limit + 1))
    more = len(found) > limit
    page = found[:limit]
    return JSONResponse(
        {"jobs": [job.to_dict(result=False) for job in page], "next": page[-1].id if more else None}
    )


@router.get(
    "/jobs/{job}",
    response_model=JobState,
    responses=error_responses(404, 422),
    summary="A job's progress, and its report or summary",
)
async def job(job: JobId, service: ServiceOf, caller: CallerOf) -> JSONResponse:
    """State, progress and, once the job is done, an audit's report or a batch's summary."""
    found = await _find(job, service, require(caller, Scope.DETECT))
    return JSONResponse(found.to_dict())


@router.get(
    "/jobs/{job}/results",
    response_model=ResultList,
    responses=error_responses(404, 422),
    summary="The results of a batch, page by page",
)
async def results(
    job: JobId,
    service: ServiceOf,
    caller: CallerOf,
    limit: Limit = 100,
    after: Annotated[int, Parameter(ge=-1, le=10**9, description="The cursor of a page.")] = -1,
) -> JSONResponse:
    """The results so far, in the order of the texts; a running batch has more later."""
    found = await _find(job, service, require(caller, Scope.DETECT))
    if found.kind != BATCH:
        raise ApiError(404, "not_found", "only batches have results; an audit's report is in the job")
    rows = await service.in_thread(lambda: service.jobs.results(found, after=after, limit=limit))
    last = rows[-1].number if rows else after
    more = last + 1 < found.total
    return JSONResponse({"results": [row.to_dict() for row in rows], "next": last if more else None})


@router.delete(
    "/jobs/{job}", status_code=204, responses=error_responses(404, 422), summary="Stop and delete a job"
)
async def delete(job: JobId, service: ServiceOf, caller: CallerOf) -> Response:
    """Delete a job with its texts and results."""
    found = await _find(job, service, require(caller, Scope.DETECT))
    await service.in_thread(service.jobs.delete, found.id)
    return Response(status_code=204)


async def _find(id_: str, service: Service, caller: Caller) -> Job:
    found = await service.in_thread(service.jobs.get, id_)
    if found is None or not (found.owner == caller.id or caller.may(Scope.ADMIN)):
        raise ApiError(404, "not_found", "no such job, or this token may not see it")
    return found


def _texts(body: BatchRequest, how: Examination, settings: Settings) -> list[JobText]:
    for i, entry in enumerate(body.texts):
        if entry.id and entry.id.strip():
            check_text(entry.id, f"the id of text {i}")
    queries = [Query(entry.text, entry.prompt) for entry in body.texts]
    made = zip(body.texts, admitted(queries, how, settings, job=True), strict=True)
    return [JobText(query.text, query.prompt, name=entry.id) for entry, query in made]
