"""``/v1/reports``: signed detection reports, tables of them, and a check of signed documents for anyone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from dewmark.errors import SignatureError
from dewmark.scheme import check_text
from dewmark_desk.admission import RATE_SECONDS, SLICE
from dewmark_desk.api_tokens import Scope
from dewmark_desk.detection_report import (
    REPORT,
    TABLE,
    render_report,
    report_claims,
    table_claims,
    table_csv,
    text_digest,
)
from dewmark_desk.examining import Query, examination, examine
from dewmark_desk.http_errors import ApiError
from dewmark_desk.routes.dependencies import CallerOf, Desk, GuardedRoute, RequestId, error_responses, guarded
from dewmark_desk.schemas import (
    ReportRequest,
    ReportResponse,
    TableRequest,
    TableResponse,
    VerifyRequest,
    VerifyResponse,
)
from dewmark_desk.service import Service
from dewmark_desk.signing import SigningKey, verify

router = APIRouter(prefix="/v1", tags=["reports"], route_class=GuardedRoute)

_VERIFY_SECONDS, _READ_SECONDS = 1e-3, 5e-8  # that a document and each of its characters take


@router.post("/reports", **guarded("Check a text and sign the result", ReportResponse, Scope.DETECT))
async def report(body: ReportRequest, service: Desk, caller: CallerOf, request_id: RequestId) -> JSONResponse:
    """A report that others can verify: the text's hash, verdict, level, key, technique and time.

    The text itself is not part of the report and is not stored.
    """
    signer = _signer(service)
    how = examination(service, caller, body.tenants, fpr=body.fpr)
    if body.name:
        check_text(body.name, "the name")
    query = Query(body.text, body.prompt)
    (found,) = await examine(service, caller, request_id, "report", [query], how)

    def signed() -> JSONResponse:
        claims = report_claims(
            body.text,
            found.said,
            found.best.bound,
            said=found.said["sentence"],
            owner=found.best.owner,
            epoch=found.best.epoch,
            issuer=service.settings.provider,
            name=body.name,
        )
        document = signer.sign(claims, kind=REPORT)
        page = render_report(verify(document, service.trusted), document) if body.page else None
        return JSONResponse({"request_id": request_id, "document": document, "claims": claims, "page": page})

    return await service.in_thread(signed)


@router.post("/reports/table", **guarded("Put reports into one signed table", TableResponse, Scope.DETECT))
async def table(body: TableRequest, service: Desk, caller: CallerOf, request_id: RequestId) -> JSONResponse:
    """The verdicts of reports that this service signed, as a CSV file with a signed document beside it."""
    signer = _signer(service)
    cost = sum(_VERIFY_SECONDS + _READ_SECONDS * len(each) for each in body.documents)

    def verified(some: Sequence[str]) -> list[dict[str, Any]]:
        return [verify(each, service.trusted, kind=REPORT).payload for each in some]

    def signed(reports: Sequence[dict[str, Any]]) -> list[JSONResponse]:
        made = table_csv(reports)
        claims = table_claims(made, rows=len(reports), issuer=service.settings.provider)
        document = signer.sign(claims, kind=TABLE)
        content = {"request_id": request_id, "table": made, "document": document, "claims": claims}
        return [JSONResponse(content)]

    async with service.charged(caller, 0, requests=max(1, math.ceil(cost / RATE_SECONDS))):
        try:
            reports: list[dict[str, Any]] = []
            for some in _parts(body.documents, max(1, int(SLICE * len(body.documents) / cost))):
                share = cost * len(some) / len(body.documents)
                reports += await service.slow.run(verified, some, owner=caller.id, cost=share)
            answer: JSONResponse
            (answer,) = await service.slow.run(signed, reports, owner=caller.id, cost=SLICE)
        except (SignatureError, KeyError) as error:
            said = error if isinstance(error, SignatureError) else f"it has no {error}"
            raise ApiError(422, "invalid_request", f"a report is not valid: {said}") from None
    return answer


@router.post(
    "/reports/verify",
    response_model=VerifyResponse,
    responses=error_responses(400, 408, 413, 422, 503),
    summary="Check a document that this service signed",
)
async def check(body: VerifyRequest, service: Desk, request_id: RequestId) -> JSONResponse:
    """Whether a document carries this service's signature; anyone may ask, without a token."""
    found = {"request_id": request_id, "valid": False, "reason": None, "text_matches": None}
    try:
        signed = verify(body.document, service.trusted)
    except SignatureError as error:
        return JSONResponse({**found, "reason": str(error), "kind": None, "signer": None, "claims": None})
    claimed = signed.payload.get("text")
    if body.text is not None and isinstance(claimed, dict):
        check_text(body.text, "the text")
        found["text_matches"] = text_digest(body.text) == claimed.get("sha256")
    return JSONResponse(
        {**found, "valid": True, "kind": signed.kind, "signer": signed.signer, "claims": signed.payload}
    )


def _parts(documents: Sequence[str], size: int) -> list[Sequence[str]]:
    return [documents[start : start + size] for start in range(0, len(documents), size)]


def _signer(service: Service) -> SigningKey:
    if service.signer is None:
        raise ApiError(404, "not_found", "this service signs no reports: it has no signing key")
    return service.signer
