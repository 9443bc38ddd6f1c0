"""The page and its files, the documentation, and what machines ask: health, metrics, who am I."""

from __future__ import annotations

from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, File, UploadFile
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response

from dewmark.errors import InputError, UnknownNameError
from dewmark.passages import DEFAULT_FPR as LOCATE_FPR
from dewmark.reports import detection_page as words
from dewmark.scheme import MIN_EFFECTIVE_LENGTH
from dewmark.serve.api_tokens import Caller, Scope
from dewmark.serve.http_errors import ApiError, overloaded
from dewmark.serve.monitoring import CONTENT_TYPE
from dewmark.serve.routes.dependencies import CallerOf, RequestId, ServiceOf, refusals, token
from dewmark.serve.schemas import ExtractResponse, Whoami
from dewmark.serve.service import require
from dewmark.serve.tenants import Tenant
from dewmark.version import __version__

__all__ = ["router"]

router = APIRouter()

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}
_EXTRACT_SECONDS = 20.0


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """The page."""
    return _file("index.html")


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    """The OpenAPI document for people."""
    return _file("docs.html")


@router.get("/static/{name}", include_in_schema=False)
async def static(name: str) -> Response:
    """A file of the page."""
    return _file(name)


@router.get("/healthz", tags=["operation"], summary="Whether the service works")
async def healthz(service: ServiceOf) -> JSONResponse:
    """200 while requests are taken, 503 when the service is stopping."""
    state = "draining" if service.draining else "ok"
    return JSONResponse({"status": state, "version": __version__}, 503 if service.draining else 200)


@router.get(
    "/metrics",
    tags=["operation"],
    summary="Numbers for Prometheus",
    response_class=PlainTextResponse,
    responses={status: refusals()[status] for status in (401, 403)},
)
async def metrics(service: ServiceOf, caller: CallerOf) -> Response:
    """Prometheus text. Beyond loopback a token of scope ``admin`` is needed."""
    if not service.settings.loopback:
        require(caller, Scope.ADMIN)
    return Response(await service.in_thread(service.metrics.render), media_type=CONTENT_TYPE)


@router.get(
    "/v1/whoami",
    tags=["operation"],
    response_model=Whoami,
    summary="What the caller may do",
)
async def whoami(service: ServiceOf, caller: CallerOf) -> JSONResponse:
    """Scopes, tenants and limits; nobody is refused."""
    settings = service.settings
    asking = caller or Caller("", "", frozenset())
    tenants = service.may_use(asking) if caller else []
    known = [tenant.languages for tenant in tenants]
    return JSONResponse(
        {
            "authenticated": caller is not None,
            "open": caller is not None and not caller.id,
            "token": asking.id or None,
            "scopes": sorted(asking.scopes),
            "budget_left": await service.in_thread(service.tokens.left, asking),
            "tenants": [_tenant(tenant, full=asking.sees_all) for tenant in tenants],
            "languages": known[0] if known and all(each == known[0] for each in known) else None,
            "limits": {
                "text_bytes": settings.text_bytes,
                "texts": settings.texts,
                "audit_texts": settings.audit_texts,
                "audit_bytes": settings.audit_bytes,
                "scored_bytes": settings.scored_bytes,
                "located_bytes": settings.located_bytes,
                "min_effective_length": MIN_EFFECTIVE_LENGTH,
                "extract_bytes": settings.extract_bytes,
            },
            "defaults": {"fpr": settings.fpr, "locate_fpr": LOCATE_FPR},
            "generate": None if service.writer is None else {"models": [service.writer.name]},
            "caveats": list(words.CAVEATS),
            "passage_caveats": list(words.PASSAGE_CAVEATS),
            "version": __version__,
        }
    )


@router.post(
    "/v1/extract",
    tags=["detection"],
    response_model=ExtractResponse,
    dependencies=[Depends(token)],
    responses=refusals(408, 413, 415, 422, 429),
    summary="The text of a document",
)
async def extract(
    file: Annotated[UploadFile, File()], service: ServiceOf, caller: CallerOf, request_id: RequestId
) -> JSONResponse:
    """Read a .pdf, .docx, .txt or .md file; nothing is kept."""
    from dewmark.serve.uploads import extract_text

    caller = require(caller, Scope.DETECT, Scope.DETECT_PUBLIC)
    data = await file.read()
    if len(data) > service.settings.extract_bytes:
        limit = service.settings.extract_bytes
        raise ApiError(413, "body_too_large", f"a file may have {limit:,} bytes")
    if service.extractions.available_tokens < 1:
        raise overloaded(5.0, "other files are being read")
    await service.spend(caller, 1)
    name = PurePosixPath((file.filename or "").replace("\\", "/")).name
    try:
        with anyio.fail_after(_EXTRACT_SECONDS):
            text = await anyio.to_thread.run_sync(
                extract_text, name, data, limiter=service.extractions, abandon_on_cancel=True
            )
    except UnknownNameError as error:
        raise ApiError(415, "unsupported_media_type", str(error)) from None
    except TimeoutError:
        raise InputError("the file takes too long to read: paste its text") from None
    shown = name.encode("utf-8", "replace").decode()[:200]
    return JSONResponse({"request_id": request_id, "name": shown, "text": text, "characters": len(text)})


def _file(name: str) -> Response:
    """A file of the page's folder; only names, so nothing outside of it can be asked for."""
    kind = _TYPES.get(PurePosixPath(name).suffix)
    path = Path(str(resources.files("dewmark") / "serve" / "static" / PurePosixPath(name).name))
    if kind is None or not path.is_file():
        raise ApiError(404, "not_found", "there is no such file")
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
