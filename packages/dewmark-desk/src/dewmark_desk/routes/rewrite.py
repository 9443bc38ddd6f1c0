"""``/v1/rewrite``: changes that would give a text the mark, for a person to accept or reject.

Needs the package dewmark-rewrite, and the scope ``generate``, since the result carries the tenant's mark. No
p-value is answered: the page asks ``/v1/detect`` for one, which counts and logs it like any other. Texts are
rewritten in processes of their own (`rewriting`), for two tokens at a time.
"""

from __future__ import annotations

import math

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from dewmark.scheme import check_text
from dewmark_desk import rewriting
from dewmark_desk.admission import RATE_SECONDS
from dewmark_desk.api_tokens import Scope
from dewmark_desk.http_errors import ApiError
from dewmark_desk.routes.dependencies import CallerOf, Desk, GuardedRoute, RequestId, guarded
from dewmark_desk.schemas import RewriteRequest, RewriteResponse

router = APIRouter(prefix="/v1", tags=["generation"], route_class=GuardedRoute)

_MOST = 4_000  # characters of a text: some 600 words
_SECONDS = 0.025  # of work for a character


@router.post("/rewrite", **guarded("Propose changes that mark a text", RewriteResponse, Scope.GENERATE))
async def rewrite(
    body: RewriteRequest, service: Desk, caller: CallerOf, request_id: RequestId
) -> JSONResponse:
    """Synonyms and small words that give an English text the tenant's mark and leave its meaning."""
    check_text(body.text, "the text")
    if len(body.text) > _MOST:
        raise ApiError(413, "text_too_large", f"a text to rewrite may have {_MOST:,} characters")
    current = [each for each in service.may_use(caller) if each.epoch is None]
    if body.tenant is None and len(current) != 1:
        raise ApiError(422, "invalid_request", "tenant: this token has several tenants, name one")
    tenant = current[0] if body.tenant is None else service.tenant(body.tenant, caller)
    if tenant.epoch is not None:
        raise ApiError(422, "invalid_request", "tenant: a retired key marks nothing")
    seconds = _SECONDS * len(body.text)
    async with service.charged(
        caller, 1, requests=math.ceil(seconds / RATE_SECONDS), size=len(body.text.encode())
    ):
        (changes,) = await service.rewriting.run(
            lambda texts: [
                rewriting.changes(service.settings, tenant.id, each, body.budget) for each in texts
            ],
            [body.text],
            owner=caller.id,
            cost=seconds,
        )
    return JSONResponse({"request_id": request_id, "tenant": tenant.id, "changes": changes})
