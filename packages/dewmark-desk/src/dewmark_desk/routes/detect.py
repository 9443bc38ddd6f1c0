"""``/v1/detect`` and ``/v1/extract``: find marks and their passages in texts, and read documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Annotated

import anyio
from fastapi import APIRouter, File, UploadFile
from fastapi.responses import JSONResponse

from dewmark.errors import InputError, UnknownNameError
from dewmark_desk.api_tokens import Scope
from dewmark_desk.documents import extract_text
from dewmark_desk.examining import Query, examination, examine
from dewmark_desk.http_errors import ApiError
from dewmark_desk.routes.dependencies import CallerOf, Desk, GuardedRoute, RequestId, guarded
from dewmark_desk.schemas import DetectRequest, DetectResponse, ExtractResponse

router = APIRouter(prefix="/v1", tags=["detection"], route_class=GuardedRoute)

_SCOPES, _FILE = (Scope.DETECT, Scope.DETECT_PUBLIC), (408, 413, 415, 422, 429)
_EXTRACT_SECONDS = 20.0
_FILE_SECONDS = 2.0  # that a file takes, as estimated: nobody knows before it is read


@router.post("/detect", **guarded("Check whether texts are marked", DetectResponse, *_SCOPES))
async def detect(body: DetectRequest, service: Desk, caller: CallerOf, request_id: RequestId) -> JSONResponse:
    """Verdict, p-value, z-score, effective length and language of each text, and token scores on request.

    The verdict and its p-value account for everything that is examined: the whole text, the passages of a
    long one, and the keys of all tenants that the caller may use.
    """
    texts, prompts = _texts(body)
    choices = (body.fpr, body.test, body.tenants, body.tokens or None)
    if not caller.sees_all and (not body.read or any(choice is not None for choice in choices)):
        said = "this token may not set fpr, test, tenants or read, nor see token scores"
        raise ApiError(403, "forbidden", said)
    asked = body.model_dump(include={"fpr", "test", "read"})
    how = examination(service, caller, body.tenants, **asked, demonstration=True)
    how_told = body.tokens, not caller.sees_all
    queries = [Query(*each, *how_told) for each in zip(texts, prompts, strict=True)]
    answers = await examine(service, caller, request_id, "detect", queries, how)
    content = {"request_id": request_id, "results": [answer.said for answer in answers]}
    # token scores are megabytes
    return await service.in_thread(JSONResponse, content) if body.tokens else JSONResponse(content)


@router.post("/extract", **guarded("Extract the text of a document", ExtractResponse, *_SCOPES, errors=_FILE))
async def extract(
    file: Annotated[UploadFile, File()], service: Desk, caller: CallerOf, request_id: RequestId
) -> JSONResponse:
    """Extract the text of a .pdf, .docx, .odt, .txt or .md file, which is not stored."""
    data = await file.read()
    if len(data) > service.settings.extract_bytes:
        limit = service.settings.extract_bytes
        raise ApiError(413, "body_too_large", f"a file may have at most {limit:,} bytes")
    name = PurePosixPath((file.filename or "").replace("\\", "/")).name
    try:
        # it counts against the rate only: reading a file reveals nothing about a key
        async with service.charged(caller, 0, requests=1):
            with anyio.fail_after(_EXTRACT_SECONDS):
                (text,) = await service.uploads.run(
                    lambda files: [extract_text(name, each) for each in files],
                    [data],
                    owner=caller.id,
                    cost=_FILE_SECONDS,
                )
    except UnknownNameError as error:
        raise ApiError(415, "unsupported_media_type", str(error)) from None
    except TimeoutError:
        raise InputError("reading the file takes too long: paste its text") from None
    shown = name.encode("utf-8", "replace").decode()[:200]
    return JSONResponse({"request_id": request_id, "name": shown, "text": text, "characters": len(text)})


def _texts(body: DetectRequest) -> tuple[list[str], Sequence[str | None]]:
    if (body.text is None) == (body.texts is None):
        raise ApiError(422, "invalid_request", "give either text or texts")
    if body.text is not None:
        if body.prompts is not None:
            raise ApiError(422, "invalid_request", "prompts goes with texts: use prompt with text")
        return [body.text], [body.prompt]
    texts = body.texts or []
    if body.prompt is not None:
        raise ApiError(422, "invalid_request", "prompt goes with text: use prompts with texts")
    if body.prompts is not None and len(body.prompts) != len(texts):
        raise ApiError(422, "invalid_request", "give one prompt per text, or no prompts")
    return texts, body.prompts or [None] * len(texts)
