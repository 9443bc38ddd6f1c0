"""``/readyz``, the signpost under ``/.well-known/``, and the query log for administrators."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse

from dewmark.scheme import check_text
from dewmark.version import __version__
from dewmark_desk.api_tokens import Scope
from dewmark_desk.http_errors import ApiError
from dewmark_desk.query_log import Logged, QueryLog
from dewmark_desk.reports.detection_report import timestamp
from dewmark_desk.reports.signpost import signpost
from dewmark_desk.routes.dependencies import (
    CallerOf,
    ServiceOf,
    error_responses,
    require,
    token,
)
from dewmark_desk.routes.guarded_route import GuardedRoute, scopes
from dewmark_desk.schemas import QueryList, SearchRequest
from dewmark_desk.service import Service

router = APIRouter(tags=["operation"], route_class=GuardedRoute)


@router.get("/readyz", summary="Whether the service can answer requests now")
async def readyz(service: ServiceOf) -> JSONResponse:
    """200 if the store answers and the service is not stopping, else 503; for load balancers."""
    ready = await service.in_thread(service.ready)
    return JSONResponse({"ready": ready, "version": __version__}, 200 if ready else 503)


@router.get("/.well-known/dewmark.json", summary="Who detects which marks here, and how to ask")
async def well_known(service: ServiceOf) -> JSONResponse:
    """The signpost: detector, techniques, how to ask, and the public keys of signed reports."""
    settings = service.settings
    found = signpost(
        [tenant.bound.scheme for tenant in service.tenants.values()],
        url=settings.public_url or "",
        provider=settings.provider,
        contact=settings.contact,
        level=settings.fpr,
        dossier=settings.dossier_url,
        public_page=settings.public_page,
        signers=service.trusted,
    )
    return JSONResponse(found, headers={"Access-Control-Allow-Origin": "*"})


@router.get("/.well-known/jwks.json", summary="The public keys of signed reports")
async def keys(service: ServiceOf) -> JSONResponse:
    """A JWK set, for dewmark report verify --signer and any JOSE library."""
    content = {"keys": [key.to_jwk() for key in service.trusted]}
    return JSONResponse(content, headers={"Access-Control-Allow-Origin": "*"})


@router.get(
    "/v1/log",
    response_model=QueryList,
    dependencies=[Depends(token)],
    responses=error_responses(404, 422),
    summary="The query log, oldest first",
)
async def log(
    service: ServiceOf,
    caller: CallerOf,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="The cursor of a page.")] = 0,
) -> JSONResponse:
    """Who asked when, with texts as keyed hashes; needs the scope ``admin``."""
    require(caller, Scope.ADMIN)
    queries = _log(service)
    rows = await service.in_thread(lambda: queries.page(after=after, limit=limit + 1))
    return _rows(rows[:limit], more=len(rows) > limit)


@router.post(
    "/v1/log/search",
    response_model=QueryList,
    dependencies=[Depends(token)],
    responses=error_responses(404, 408, 413, 422),
    summary="Who asked about texts like this one, and when",
    openapi_extra=scopes(Scope.ADMIN),
)
async def search(body: SearchRequest, service: ServiceOf, caller: CallerOf) -> JSONResponse:
    """Logged queries about similar texts, the latest first; needs the scope ``admin``."""
    require(caller, Scope.ADMIN)
    queries = _log(service)
    check_text(body.text, "the text")
    rows = await service.in_thread(lambda: queries.like(body.text, least=body.similarity))
    return _rows(rows, more=False)


def _log(service: Service) -> QueryLog:
    if service.query_log is None:
        raise ApiError(404, "not_found", "this service logs no queries: start it with --log-queries")
    return service.query_log


def _rows(rows: Sequence[Logged], *, more: bool) -> JSONResponse:
    found: list[dict[str, Any]] = [{**dataclasses.asdict(row), "time": timestamp(row.time)} for row in rows]
    return JSONResponse({"queries": found, "next": rows[-1].number if more else None})
