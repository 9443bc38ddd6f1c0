"""Verdicts on texts under one or several tenants' keys, as plain JSON values.

Callers with the scope ``detect-public`` see rounded values only: the verdict, the p-value rounded up to a
power of ten and the z-score rounded to an integer. So an answer tells an attacker little about how far an
edit moved a text's score.

Boundary: validated texts in, JSON out; no HTTP.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dewmark.errors import InputError
from dewmark.passages import locate
from dewmark.reports.detection_display import located_sentence, one_in, sentence
from dewmark.scheme import check_text, decide
from dewmark.serve.tenants import Tenant
from dewmark.text.languages import UNDETERMINED, guess_language, language_name
from dewmark.types import Attribution, Detection, Verdict
from dewmark.watermark import attribute

__all__ = ["Query", "detect", "find_passages", "truncate_bytes"]

LEAST_PUBLIC_P = 1e-6
MOST_PUBLIC_Z = 5
_PUBLIC_LENGTH = 10.0


@dataclass(frozen=True, slots=True)
class Query:
    """A text and how to judge it; ``public`` asks for rounded values."""

    text: str = dataclasses.field(repr=False)
    prompt: str | None = dataclasses.field(default=None, repr=False)
    fpr: float = 0.01
    tokens: bool = False
    public: bool = False

    def check(self, what: str) -> None:
        """Raise `InputError` unless text and prompt are valid; ``what`` names the text in the message."""
        check_text(self.text, what)
        if self.prompt and self.prompt.strip():
            check_text(self.prompt, f"the prompt of {what}")


def truncate_bytes(text: str, limit: int) -> str:
    """The longest prefix of a text that fits into ``limit`` bytes."""
    if len(text) * 4 <= limit:
        return text
    data = text.encode()
    return text if len(data) <= limit else data[:limit].decode(errors="ignore")


def detect(
    queries: Sequence[Query], tenants: Sequence[Tenant], *, test: str | None, limit: int
) -> list[dict[str, Any]]:
    """One answer per text, which scores its first ``limit`` bytes; one batch per tenant."""
    texts = [truncate_bytes(query.text, limit) for query in queries]
    for text in texts:
        if not text.strip():
            raise InputError(f"the first {limit} bytes of the text are blank: remove the leading white space")
    prompts = [query.prompt for query in queries]
    columns = [tenant.bound.detect_batch(texts, prompts=prompts, test=test) for tenant in tenants]
    return [
        _answer(query, text, tenants, row)
        for query, text, row in zip(queries, texts, zip(*columns, strict=True), strict=True)
    ]


def find_passages(query: Query, tenants: Sequence[Tenant], *, limit: int, text_fpr: float) -> dict[str, Any]:
    """The marked passages of a text, under the tenant whose key fits best."""
    text = truncate_bytes(query.text, limit)
    (whole,) = detect([dataclasses.replace(query, fpr=text_fpr)], tenants, test=None, limit=limit)
    tenant = next(tenant for tenant in tenants if tenant.id == whole["tenant"])
    found = locate(text, tenant.bound, prompt=query.prompt, fpr=query.fpr)
    return {
        "tenant": tenant.id,
        "passages": [passage.to_dict() for passage in found.passages],
        "share": found.share,
        "fpr": query.fpr,
        "sentence": located_sentence(found),
        "detection": whole,
    }


def _answer(
    query: Query, text: str, tenants: Sequence[Tenant], detections: Sequence[Detection]
) -> dict[str, Any]:
    judged = [
        dataclasses.replace(each, fpr=query.fpr, verdict=_verdict(each, query.fpr)) for each in detections
    ]
    found = attribute(judged, fpr=query.fpr)
    tenant = tenants[found.index]
    answer = _public(found) if query.public else _full(found, tokens=query.tokens)
    del answer["language_known"]  # part of "language"
    known = not query.public or found.is_marked  # do not reveal whose key came close
    return {
        **answer,
        "tenant": tenant.id if known else None,
        "language": _language(text, found.best),
        "characters": len(query.text),
        "scored_characters": len(text),
        "truncated": len(text) < len(query.text),
        "rounded": query.public,
        "per_tenant": None
        if query.public or len(tenants) == 1
        else [
            {"tenant": t.id, "p_value": each["p_value"], "z": each["z"], "verdict": each["verdict"]}
            for t, each in ((t, d.to_dict()) for t, d in zip(tenants, judged, strict=True))
        ],
    }


def _full(found: Attribution, *, tokens: bool) -> dict[str, Any]:
    shown = dataclasses.replace(found.best, verdict=found.verdict, p_value=found.p_value)
    return {"tokens": None, **found.to_dict(tokens=tokens), **_in_words(shown)}


def _public(found: Attribution) -> dict[str, Any]:
    best = found.best
    shown = dataclasses.replace(
        best,
        verdict=found.verdict,
        p_value=_rounded_up(found.p_value),
        z=float(max(-MOST_PUBLIC_Z, min(MOST_PUBLIC_Z, round(best.z)))) if math.isfinite(best.z) else best.z,
        effective_length=_PUBLIC_LENGTH * round(best.effective_length / _PUBLIC_LENGTH),
        tokens=(),
    )
    return {
        **shown.to_dict(),
        "score": None,
        "key_fingerprint": None,
        "p_value_of_key": None,
        "keys": found.keys,
        "tokens": None,
        **_in_words(shown),
    }


def _in_words(shown: Detection) -> dict[str, str]:
    return {"one_in": one_in(shown.p_value), "sentence": sentence(shown)}


def _rounded_up(p_value: float) -> float:
    """The next power of ten, and at least `LEAST_PUBLIC_P`."""
    if not p_value > LEAST_PUBLIC_P:
        return LEAST_PUBLIC_P
    return min(1.0, float(f"1e{math.ceil(math.log10(p_value) - 1e-9)}"))


def _verdict(detection: Detection, fpr: float) -> Verdict:
    """The verdict at another level."""
    if not detection.verdict.conclusive:
        return detection.verdict
    return decide(detection.p_value, detection.effective_length, fpr)


def _language(text: str, detection: Detection) -> dict[str, Any]:
    code = detection.language
    if code is None and detection.language_known is None:  # the scheme did not ask
        code = guess_language(text)
        code = None if code == UNDETERMINED else code
    name = None if code is None else language_name(code)
    return {"code": code, "name": name, "supported": detection.language_known}
