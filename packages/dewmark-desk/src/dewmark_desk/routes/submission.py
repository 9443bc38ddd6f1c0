"""How jobs are submitted: named requests, budget, limits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Header
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from pydantic_core import to_json

from dewmark_desk.api_tokens import Caller
from dewmark_desk.http_errors import ApiError
from dewmark_desk.jobs import AUDIT, Job, JobText
from dewmark_desk.service import Service

IdempotencyKey = Annotated[
    str | None,
    Header(
        pattern=r"^[A-Za-z0-9._:-]{1,64}$",
        description="Your own name for this request: sent again with the same name, it returns the same job.",
    ),
]


async def submit_job(
    service: Service,
    caller: Caller,
    request_id: str,
    body: BaseModel,
    *,
    idempotency: str | None,
    kind: str = AUDIT,
    tenant: str,
    test: str | None,
    texts: Sequence[JobText],
    left_out: int = 0,
    options: Mapping[str, Any] | None = None,
) -> JSONResponse:
    """Store a job and answer 202; a repeated request costs nothing and gets the first one's job."""
    if service.settings.zero_retention:
        raise ApiError(403, "forbidden", "this service stores no texts, so it runs no jobs")
    # as bytes: one astral letter makes a string of all texts four times as large
    digest = hashlib.sha256(kind.encode() + b"\n" + to_json(body)).hexdigest()

    def find() -> Job | None:
        return service.jobs.repeated(caller.id, idempotency, digest) if idempotency is not None else None

    def submit() -> Job:
        try:
            return service.jobs.submit(
                caller.id,
                kind=kind,
                tenant=tenant,
                test=test,
                texts=texts,
                left_out=left_out,
                options=options,
                idempotency=idempotency,
                request=digest,
                owner_limit=service.settings.jobs_per_token,
                limit=service.settings.max_jobs,
            )
        except sa.exc.IntegrityError:  # the same request came twice at the same moment
            if (found := find()) is None:
                raise
            return found

    job = await service.in_thread(find)
    if job is None:
        async with service.charged(caller, len(texts), requests=1):
            job = await service.in_thread(submit)
        service.wake_jobs()
    content = {"request_id": request_id, "job": job.to_dict()}
    return JSONResponse(content, 202, {"Location": f"/v1/jobs/{job.id}"})
