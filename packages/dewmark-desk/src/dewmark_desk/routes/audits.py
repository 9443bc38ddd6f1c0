"""``/v1/audit``: measure a key's false-positive rate on the caller's own texts."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse

from dewmark.errors import InputError
from dewmark.scheme import check_test, check_text
from dewmark.text.languages import guess_language
from dewmark_desk.admission import admitted
from dewmark_desk.api_tokens import Scope
from dewmark_desk.http_errors import ApiError
from dewmark_desk.jobs import JobText
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
from dewmark_desk.schemas import AuditRequest, JobResponse
from dewmark_desk.settings import Settings
from dewmark_desk.verdicts import Examination, Query

router = APIRouter(prefix="/v1", tags=["audit"], dependencies=[Depends(token)], route_class=GuardedRoute)


@router.post(
    "/audit",
    status_code=202,
    response_model=JobResponse,
    responses=error_responses(404, 408, 413, 422, 429),
    summary="Measure a key's false-positive rate on unmarked texts",
    openapi_extra=scopes(Scope.DETECT),
)
async def audit(
    body: AuditRequest,
    service: ServiceOf,
    caller: CallerOf,
    request_id: RequestId,
    idempotency_key: IdempotencyKey = None,
) -> JSONResponse:
    """Start an audit, which runs in the background and survives a restart.

    Blank and duplicate texts are left out.
    """
    caller = require(caller, Scope.DETECT)
    settings = service.settings
    tenants = service.may_use(caller)
    if body.tenant is not None:
        tenants = [service.tenant(body.tenant, caller)]
    if len(tenants) != 1:
        raise ApiError(422, "invalid_request", "tenant: an audit covers one key, so name its tenant")
    check_test(body.test, tenants[0].bound.tests)
    how = Examination(tenants, keys=1)
    texts = await service.in_thread(_distinct, body, how, settings)
    return await submit_job(
        service,
        caller,
        request_id,
        body,
        idempotency=idempotency_key,
        tenant=tenants[0].id,
        test=body.test,
        texts=texts,
        left_out=len(body.texts) - len(texts),
    )


def _distinct(body: AuditRequest, how: Examination, settings: Settings) -> list[JobText]:
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
        JobText(query.text, query.prompt, language or guess_language(query.text))
        for query, language in zip(admitted(queries, how, settings, job=True), languages, strict=True)
    ]
