"""``/v1/audit``, ``/v1/batches`` and ``/v1/jobs``: many texts in the background; progress and results."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import anyio
import sqlalchemy as sa
from fastapi import APIRouter, Header, Path
from fastapi import Query as Parameter
from fastapi.responses import JSONResponse, Response
from pydantic_core import to_json

from dewmark.errors import ConfigError, InputError
from dewmark.scheme import check_test, check_text
from dewmark.text.languages import guess_language
from dewmark_desk.admission import admitted
from dewmark_desk.api_tokens import Caller, Scope
from dewmark_desk.examining import Examination, Query, examination
from dewmark_desk.http_errors import ApiError, overloaded
from dewmark_desk.jobs import AUDIT, BATCH, STORING, Item, Job, named_id
from dewmark_desk.routes.dependencies import CallerOf, Desk, GuardedRoute, RequestId, guarded
from dewmark_desk.schemas import AuditRequest, BatchRequest, JobList, JobResponse, JobState, ResultList
from dewmark_desk.service import Service
from dewmark_desk.settings import Settings

router = APIRouter(prefix="/v1", tags=["jobs"], route_class=GuardedRoute)

_STORED_SECONDS = 20.0  # how long a request waits for its twin to store their texts
_ID = r"^j_[A-Za-z0-9_-]{10,40}$"
_FOUND = functools.partial(guarded, errors=(404, 422))
_JOB: dict[str, Any] = {"status_code": 202}
JobId = Annotated[str, Path(pattern=_ID)]
JobName = Annotated[
    str | None,
    Header(
        alias="idempotency-key",
        pattern=r"^[A-Za-z0-9._:-]{1,64}$",
        description="Your own name for this request: sent again with the same name, it returns the same job.",
    ),
]
Limit = Annotated[int, Parameter(ge=1, le=500, description="The most rows on a page.")]


@router.post("/audit", **guarded("Measure a key's false-positive rate", JobResponse, Scope.DETECT), **_JOB)
async def audit(
    body: AuditRequest, service: Desk, caller: CallerOf, request_id: RequestId, name: JobName = None
) -> JSONResponse:
    """Start an audit, which runs in the background and survives a restart.

    Blank and duplicate texts are left out.
    """
    tenants = service.may_use(caller) if body.tenant is None else [service.tenant(body.tenant, caller)]
    if len(tenants) != 1:
        raise ApiError(422, "invalid_request", "tenant: an audit covers one key, so name its tenant")
    check_test(body.test, tenants[0].bound.tests)
    how = Examination(tenants, keys=1, test=body.test)
    texts = await service.in_thread(_distinct, body, how, service.settings)
    left_out = len(body.texts) - len(texts)
    return await _submit(service, caller, request_id, AUDIT, how, body, texts, name=name, left_out=left_out)


@router.post("/batches", **guarded("Check many texts in the background", JobResponse, Scope.DETECT), **_JOB)
async def batch(
    body: BatchRequest, service: Desk, caller: CallerOf, request_id: RequestId, name: JobName = None
) -> JSONResponse:
    """Start a batch of detections, which survives a restart; results are read page by page.

    Each text is judged as by ``/v1/detect``. The summary also counts the texts that remain after
    Benjamini-Hochberg: of those, at most about a share of ``fpr`` is unmarked.
    """
    how = examination(service, caller, body.tenants, fpr=body.fpr, test=body.test, read=body.read)
    texts = await service.in_thread(_texts, body, how, service.settings)
    options = {
        "tenants": [tenant.id for tenant in how.tenants],
        "read": how.read,
        "keys": how.keys,  # the caller may submit the same texts for others
        "fpr": how.fpr,
    }
    return await _submit(service, caller, request_id, BATCH, how, body, texts, name=name, options=options)


@router.get("/jobs", **_FOUND("The caller's jobs", JobList, Scope.DETECT))
async def jobs(
    service: Desk,
    caller: CallerOf,
    limit: Limit = 50,
    after: Annotated[str | None, Parameter(pattern=_ID, description="The cursor of a page.")] = None,
) -> JSONResponse:
    """Jobs without their results, newest first; ``admin`` sees those of all callers."""
    owner = None if caller.may(Scope.ADMIN) else caller.id
    start = None if after is None else await _find(after, service, caller)
    found = await service.in_thread(lambda: service.jobs.of(owner, after=start, limit=limit + 1))
    more = len(found) > limit
    page = found[:limit]
    return JSONResponse(
        {"jobs": [job.to_dict(result=False) for job in page], "next": page[-1].id if more else None}
    )


@router.get("/jobs/{job}", **_FOUND("A job's progress, and its report or summary", JobState, Scope.DETECT))
async def job(job: JobId, service: Desk, caller: CallerOf) -> JSONResponse:
    """State, progress and, once the job is done, an audit's report or a batch's summary."""
    return JSONResponse((await _find(job, service, caller)).to_dict())


@router.get("/jobs/{job}/results", **_FOUND("The results of a batch, by page", ResultList, Scope.DETECT))
async def results(
    job: JobId,
    service: Desk,
    caller: CallerOf,
    limit: Limit = 100,
    after: Annotated[int, Parameter(ge=-1, le=10**9, description="The cursor of a page.")] = -1,
) -> JSONResponse:
    """The results so far, in the order of the texts; a running batch has more later."""
    found = await _find(job, service, caller)
    if found.kind != BATCH:
        raise ApiError(404, "not_found", "only batches have results; an audit's report is in the job")
    rows = await service.in_thread(lambda: service.jobs.results(found, after=after, limit=limit))
    last = rows[-1]["number"] if rows else after
    return JSONResponse({"results": rows, "next": last if last + 1 < found.total else None})


@router.delete("/jobs/{job}", status_code=204, **_FOUND("Stop and delete a job", None, Scope.DETECT))
async def delete(job: JobId, service: Desk, caller: CallerOf) -> Response:
    """Delete a job with its texts and results."""
    found = await _find(job, service, caller)
    await service.in_thread(service.jobs.delete, found.id)
    return Response(status_code=204)


async def _submit(
    service: Service,
    caller: Caller,
    request_id: str,
    kind: str,
    how: Examination,
    body: AuditRequest | BatchRequest,
    texts: Sequence[Item],
    *,
    name: str | None,
    left_out: int = 0,
    options: Mapping[str, Any] | None = None,
) -> JSONResponse:
    """Store a job and answer 202; a named request that came before costs nothing and gets the same job."""
    if service.settings.zero_retention:
        raise ApiError(403, "forbidden", "this service stores no texts, so it runs no jobs")
    id_ = None if name is None else named_id(caller.id, name)

    @functools.cache  # a body has up to 18 MB, and `stored` asks again and again
    def digest() -> str:
        """The request's, salted with its name, which is not stored: nobody can test a guess of the texts."""
        return hashlib.sha256(f"{name}/{kind}/".encode() + to_json(body)).hexdigest()

    def find() -> Job | None:
        found = None if id_ is None else service.jobs.get(id_)
        if found is not None and found.settings["request"] != digest():
            raise ConfigError("Idempotency-Key: another request had this key; use a new one")
        return found

    async def stored() -> Job | None:
        """The job that the same request made before, once its texts are stored."""
        until = anyio.current_time() + _STORED_SECONDS
        while (found := await service.in_thread(find)) is not None and found.state == STORING:
            if anyio.current_time() > until:
                raise overloaded(2.0, "the job is being stored")
            await anyio.sleep(0.05)
        return found

    def submit() -> Job:
        return service.jobs.submit(
            caller.id,
            named=id_,
            kind=kind,
            tenant=how.tenants[0].id if len(how.tenants) == 1 else "",
            test=how.test,
            texts=texts,
            left_out=left_out,
            options=options if id_ is None else {"request": digest(), **(options or {})},
            owner_limit=service.settings.jobs_per_token,
            limit=service.settings.max_jobs,
        )

    job = await stored()
    if job is None:
        try:
            async with service.charged(caller, len(texts), requests=1):
                job = await service.in_thread(submit)
            service.runner.wake()
        except sa.exc.IntegrityError:  # the same request came twice at the same moment
            if (job := await stored()) is None:
                raise
    content = {"request_id": request_id, "job": job.to_dict()}
    return JSONResponse(content, 202, {"Location": f"/v1/jobs/{job.id}"})


async def _find(id_: str, service: Service, caller: Caller) -> Job:
    found = await service.in_thread(service.jobs.get, id_)
    if found is None or not (found.owner == caller.id or caller.may(Scope.ADMIN)):
        raise ApiError(404, "not_found", "no such job, or this token may not see it")
    return found


def _texts(body: BatchRequest, how: Examination, settings: Settings) -> list[Item]:
    for i, entry in enumerate(body.texts):
        if entry.id and entry.id.strip():
            check_text(entry.id, f"the id of text {i}")
    queries = admitted([Query(each.text, each.prompt) for each in body.texts], how, settings, job=True)
    return [
        Item(i, query.text, query.prompt, name=entry.id)
        for i, (entry, query) in enumerate(zip(body.texts, queries, strict=True))
    ]


def _distinct(body: AuditRequest, how: Examination, settings: Settings) -> list[Item]:
    """The distinct texts; duplicates would invalidate the intervals."""
    found = {entry.text: entry for entry in reversed(body.texts) if entry.text.strip()}
    if not found:
        raise InputError("all texts are blank: there is nothing to audit")
    for entry in found.values():
        if entry.language and entry.language.strip():
            check_text(entry.language, "the language of a text")
    queries = [Query(entry.text, entry.prompt) for entry in reversed(found.values())]
    languages = [(found[query.text].language or "").strip() for query in queries]
    return [
        Item(i, query.text, query.prompt, language or guess_language(query.text))
        for i, (query, language) in enumerate(
            zip(admitted(queries, how, settings, job=True), languages, strict=True)
        )
    ]
