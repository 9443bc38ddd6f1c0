"""The web page and its files, health, metrics, ``/v1/whoami``, an example, and the signpost."""

from __future__ import annotations

from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response

from dewmark.verdict import MIN_EFFECTIVE_LENGTH, least_length
from dewmark.version import __version__
from dewmark_desk.api_tokens import Caller, Scope
from dewmark_desk.http_errors import ApiError
from dewmark_desk.monitoring import CONTENT_TYPE
from dewmark_desk.rewriting import installed
from dewmark_desk.routes.dependencies import Desk, GuardedRoute, guarded
from dewmark_desk.schemas import ExampleResponse, Whoami
from dewmark_desk.settings import DEMONSTRATION
from dewmark_desk.signpost import signpost
from dewmark_desk.tenants import Tenant, example_text, unmarked_text

router = APIRouter(tags=["operation"], route_class=GuardedRoute)

_ANYBODY = {"Access-Control-Allow-Origin": "*"}
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
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


@router.get("/healthz", summary="Whether the service accepts requests")
async def healthz(service: Desk) -> JSONResponse:
    """200 while the service accepts requests, 503 while it is stopping."""
    state = "draining" if service.draining else "ok"
    return JSONResponse({"status": state, "version": __version__}, 503 if service.draining else 200)


@router.get("/readyz", summary="Whether the service can answer requests now")
async def readyz(service: Desk) -> JSONResponse:
    """200 if the store answers and the service is not stopping, else 503; for load balancers."""
    ready = await service.in_thread(service.ready)
    return JSONResponse({"ready": ready, "version": __version__}, 200 if ready else 503)


@router.get("/.well-known/dewmark.json", summary="Who detects which marks here, and how to ask")
async def well_known(service: Desk) -> JSONResponse:
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
    return JSONResponse(found, headers=_ANYBODY)


@router.get("/.well-known/jwks.json", summary="The public keys of signed reports")
async def keys(service: Desk) -> JSONResponse:
    """A JWK set, for dewmark report verify --signer and any JOSE library."""
    return JSONResponse({"keys": [key.to_jwk() for key in service.trusted]}, headers=_ANYBODY)


_METRICS = guarded("Metrics for Prometheus", None, Scope.METRICS, errors=())


@router.get("/metrics", response_class=PlainTextResponse, **_METRICS)
async def metrics(service: Desk) -> Response:
    """Metrics in Prometheus's text format; this needs the scope ``metrics``, unless no token is needed."""
    return Response(await service.in_thread(service.metrics.render), media_type=CONTENT_TYPE)


@router.get("/v1/whoami", response_model=Whoami, summary="The caller's permissions")
async def whoami(service: Desk, request: Request) -> JSONResponse:
    """Scopes, tenants and limits; works without a token, too."""
    settings, known = service.settings, request.state.caller
    caller: Caller = known or Caller("", "", frozenset())
    # the public learns whose mark was found, and nothing about whose might be
    tenants = service.may_use(caller) if caller.sees_all else []
    languages = {tenant.languages for tenant in tenants}
    lengths = [least_length(tenant.bound.expectations) for tenant in tenants]
    return JSONResponse(
        {
            "authenticated": known is not None,
            "open": known is not None and not caller.id,
            "token": caller.id or None,
            "scopes": sorted(caller.scopes),
            "budget_left": await service.in_thread(service.tokens.left, caller),
            "tenants": [_tenant(tenant) for tenant in tenants],
            "languages": languages.pop() if len(languages) == 1 else None,
            "limits": {
                **{
                    name: getattr(settings, name)
                    for name in ("text_bytes", "texts", "audit_texts", "audit_bytes", "extract_bytes")
                },
                "min_effective_length": min(lengths, default=MIN_EFFECTIVE_LENGTH),
            },
            "defaults": {"fpr": settings.fpr, "max_fpr": max(settings.fpr, settings.max_fpr)},
            "signs": service.signer is not None,
            "public_page": settings.public_page,
            "generate": None if service.generator is None else {"models": [service.generator.name]},
            "rewrites": installed() and Scope.GENERATE in caller.scopes,
            "version": __version__,
        }
    )


@router.get(
    "/v1/example",
    tags=["detection"],
    **guarded("A text to try the service with", ExampleResponse, Scope.DETECT, errors=()),
)
async def example() -> JSONResponse:
    """A text in which two of six paragraphs carry the mark of the demonstration key, and one without a mark.

    ``/v1/detect`` looks for that key if ``tenants`` names it alone. It is nobody's key.
    """
    return JSONResponse({"tenant": DEMONSTRATION, "marked": example_text(), "unmarked": unmarked_text()})


def _file(name: str) -> Response:
    """A file from the folder ``static``; directories in the name are ignored."""
    kind = _TYPES.get(PurePosixPath(name).suffix)
    path = Path(str(resources.files("dewmark_desk") / "static" / PurePosixPath(name).name))
    if kind is None or not path.is_file():
        raise ApiError(404, "not_found", "no such file")
    return FileResponse(path, media_type=kind)


def _tenant(tenant: Tenant) -> dict[str, Any]:
    bound = tenant.bound
    return {
        "id": tenant.id,
        "scheme": bound.scheme.name,
        "key_fingerprint": bound.fingerprint,
        "host": bound.host.name,
        "tests": list(bound.tests),
    }
