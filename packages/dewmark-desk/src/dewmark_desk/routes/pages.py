"""The web page and its files, the API documentation, an example, health, metrics and ``/v1/whoami``."""

from __future__ import annotations

from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response

from dewmark.verdict import MIN_EFFECTIVE_LENGTH, least_length
from dewmark.version import __version__
from dewmark_desk.api_tokens import Caller, Scope
from dewmark_desk.examples import example_text, unmarked_text
from dewmark_desk.http_errors import ApiError
from dewmark_desk.monitoring import CONTENT_TYPE
from dewmark_desk.routes.dependencies import (
    CallerOf,
    ServiceOf,
    error_responses,
    require,
    token,
)
from dewmark_desk.routes.rewrite import installed
from dewmark_desk.schemas import ExampleResponse, Whoami
from dewmark_desk.settings import DEMONSTRATION
from dewmark_desk.tenants import Tenant

router = APIRouter()

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """The web page."""
    return _file("index.html")


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    """The API documentation."""
    return _file("docs.html")


@router.get("/static/{name}", include_in_schema=False)
async def static(name: str) -> Response:
    """A file of the web page."""
    return _file(name)


@router.get("/healthz", tags=["operation"], summary="Whether the service accepts requests")
async def healthz(service: ServiceOf) -> JSONResponse:
    """200 while the service accepts requests, 503 while it is stopping."""
    state = "draining" if service.draining else "ok"
    return JSONResponse({"status": state, "version": __version__}, 503 if service.draining else 200)


@router.get(
    "/metrics",
    tags=["operation"],
    summary="Metrics for Prometheus",
    response_class=PlainTextResponse,
    responses={status: error_responses()[status] for status in (401, 403)},
)
async def metrics(service: ServiceOf, caller: CallerOf) -> Response:
    """Metrics in Prometheus's text format; this needs the scope ``metrics``, unless no token is needed."""
    require(caller, Scope.METRICS)
    return Response(await service.in_thread(service.metrics.render), media_type=CONTENT_TYPE)


@router.get(
    "/v1/whoami",
    tags=["operation"],
    response_model=Whoami,
    summary="The caller's permissions",
)
async def whoami(service: ServiceOf, caller: CallerOf) -> JSONResponse:
    """Scopes, tenants and limits; works without a token, too."""
    settings = service.settings
    known_caller = caller or Caller("", "", frozenset())
    # the public learns whose mark was found, and nothing about whose might be
    tenants = service.may_use(known_caller) if known_caller.sees_all else []
    languages = [tenant.languages for tenant in tenants]
    return JSONResponse(
        {
            "authenticated": caller is not None,
            "open": caller is not None and not caller.id,
            "token": known_caller.id or None,
            "scopes": sorted(known_caller.scopes),
            "budget_left": await service.in_thread(service.tokens.left, known_caller),
            "tenants": [_tenant(tenant, full=known_caller.sees_all) for tenant in tenants],
            "languages": languages[0] if len(set(languages)) == 1 else None,
            "limits": {
                "text_bytes": settings.text_bytes,
                "texts": settings.texts,
                "audit_texts": settings.audit_texts,
                "audit_bytes": settings.audit_bytes,
                "min_effective_length": min(
                    (least_length(tenant.bound.expectations) for tenant in tenants),
                    default=MIN_EFFECTIVE_LENGTH,
                ),
                "extract_bytes": settings.extract_bytes,
            },
            "defaults": {"fpr": settings.fpr, "max_fpr": max(settings.fpr, settings.max_fpr)},
            "signs": service.signer is not None,
            "public_page": settings.public_page,
            "generate": None if service.generator is None else {"models": [service.generator.name]},
            "rewrites": installed() and Scope.GENERATE in known_caller.scopes,
            "version": __version__,
        }
    )


@router.get(
    "/v1/example",
    tags=["detection"],
    response_model=ExampleResponse,
    dependencies=[Depends(token)],
    responses=error_responses(),
    summary="A text to try the service with",
)
async def example(caller: CallerOf) -> JSONResponse:
    """A text in which two of six paragraphs carry the mark of the demonstration key, and one without a mark.

    ``/v1/detect`` and ``/v1/locate`` look for that key if ``tenant`` names it. It is nobody's key.
    """
    require(caller, Scope.DETECT)
    return JSONResponse({"tenant": DEMONSTRATION, "marked": example_text(), "unmarked": unmarked_text()})


def _file(name: str) -> Response:
    """A file from the folder ``static``; directories in the name are ignored."""
    kind = _TYPES.get(PurePosixPath(name).suffix)
    path = Path(str(resources.files("dewmark_desk") / "static" / PurePosixPath(name).name))
    if kind is None or not path.is_file():
        raise ApiError(404, "not_found", "no such file")
    return FileResponse(path, media_type=kind)


def _tenant(tenant: Tenant, *, full: bool) -> dict[str, Any]:
    bound = tenant.bound
    return {
        "id": tenant.id,
        "scheme": bound.scheme.name,
        "key_fingerprint": bound.fingerprint if full else None,
        "host": bound.host.name,
        "tests": list(bound.tests),
    }
