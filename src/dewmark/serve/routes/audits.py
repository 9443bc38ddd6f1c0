"""``/v1/audit`` and ``/v1/jobs``: measure a key's false-positive rate on the caller's own texts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from fastapi.responses import JSONResponse, Response

from dewmark.errors import InputError
from dewmark.scheme import check_test, check_text
from dewmark.serve.api_tokens import Caller, Scope
from dewmark.serve.audit_jobs import Job
from dewmark.serve.http_errors import ApiError
from dewmark.serve.routes.dependencies import (
    CallerOf,
    RequestId,
    ServiceOf,
    error_responses,
    require,
    token,
)
from dewmark.serve.schemas import AuditRequest, JobList, JobResponse, JobState
from dewmark.serve.service import Service
from dewmark.serve.settings import Settings
from dewmark.text.languages import guess_language

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["audit"], dependencies=[Depends(token)])

JobId = Annotated[str, Path(pattern=r"^j_[A-Za-z0-9_-]{10,40}$")]
Texts = list[tuple[str, str | None, str]]


@router.post(
    "/audit",
    status_code=202,
    response_model=JobResponse,
    responses=error_responses(404, 408, 413, 422, 429),
    summary="Measure a key's false-positive rate on unmarked texts",
)
async def audit(
    body: AuditRequest, service: ServiceOf, caller: CallerOf, request_id: RequestId
) -> JSONResponse:
    """Start an audit, which runs in the background and survives a restart.

    Blank and duplicate texts are left out.
    """
    caller = require(caller, Scope.DETECT)
    settings = service.settings
    if len(body.texts) > settings.audit_texts:
        raise ApiError(422, "invalid_request", f"texts: at most {settings.audit_texts:,} per audit")
    tenants = service.may_use(caller)
    if body.tenant is not None:
        tenants = [service.tenant(body.tenant, caller)]
    if len(tenants) != 1:
        raise ApiError(422, "invalid_request", "tenant: an audit covers one key, so name its tenant")
    check_test(body.test, tenants[0].bound.tests)
    texts = await service.in_thread(_distinct, body, settings)
    await service.spend(caller, len(texts), requests=1)

    def submit() -> Job:
        return service.jobs.submit(
            caller.id,
            tenant=tenants[0].id,
            test=body.test,
            texts=texts,
            left_out=len(body.texts) - len(texts),
            owner_limit=settings.jobs_per_token,
            limit=settings.max_jobs,
        )

    job = await service.in_thread(submit)
    service.wake_audits()
    content = {"request_id": request_id, "job": job.to_dict()}
    return JSONResponse(content, 202, {"Location": f"/v1/jobs/{job.id}"})


@router.get(
    "/jobs", response_model=JobList, responses=error_responses(), summary="The caller's latest audits"
)
async def jobs(service: ServiceOf, caller: CallerOf) -> JSONResponse:
    """The latest audits, without their reports; ``admin`` sees those of all callers."""
    caller = require(caller, Scope.DETECT)
    owner = None if caller.may(Scope.ADMIN) else caller.id
    found = await service.in_thread(service.jobs.of, owner)
    return JSONResponse({"jobs": [job.to_dict(result=False) for job in found]})


@router.get(
    "/jobs/{job}",
    response_model=JobState,
    responses=error_responses(404, 422),
    summary="An audit's progress and report",
)
async def job(job: JobId, service: ServiceOf, caller: CallerOf) -> JSONResponse:
    """State, progress and, once the audit is done, the report."""
    found = await _find(job, service, require(caller, Scope.DETECT))
    return JSONResponse(found.to_dict())


@router.delete(
    "/jobs/{job}", status_code=204, responses=error_responses(404, 422), summary="Stop and delete an audit"
)
async def delete(job: JobId, service: ServiceOf, caller: CallerOf) -> Response:
    """Delete an audit with its texts and report."""
    found = await _find(job, service, require(caller, Scope.DETECT))
    await service.in_thread(service.jobs.delete, found.id)
    return Response(status_code=204)


async def _find(id_: str, service: Service, caller: Caller) -> Job:
    found = await service.in_thread(service.jobs.get, id_)
    if found is None or not (found.owner == caller.id or caller.may(Scope.ADMIN)):
        raise ApiError(404, "not_found", "no such job, or this token may not see it")
    return found


def _distinct(body: AuditRequest, settings: Settings) -> Texts:
    """(text, prompt, language) of the distinct texts; duplicates would invalidate the intervals."""
    found: dict[str, tuple[str, str | None, str]] = {}
    for i, entry in enumerate(body.texts):
        if not entry.text.strip() or entry.text in found:
            continue
        check_text(entry.text, f"text {i}")
        for what, value in (("prompt", entry.prompt), ("language", entry.language)):
            if value and value.strip():
                check_text(value, f"the {what} of text {i}")
        if len(entry.text.encode()) > settings.text_bytes:
            raise ApiError(413, "text_too_large", f"text {i} has more than {settings.text_bytes:,} bytes")
        language = (entry.language or "").strip() or guess_language(entry.text)
        found[entry.text] = (entry.text, entry.prompt, language)
    if not found:
        raise InputError("all texts are blank: there is nothing to audit")
    return list(found.values())
