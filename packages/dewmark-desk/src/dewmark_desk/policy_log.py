"""What the service keeps of its policy: which parts of each text were marked, and why others were not.

A row holds the policy's version, the key's fingerprint, the member of its ring, the request, and spans of
characters; no text. Whoever has the text and the prompt can compute the same spans (``dewmark policy
explain``), so the log can be checked.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dewmark_desk.generation import TextGenerator, TextStream


def log_row(stream: TextStream, generator: TextGenerator, *, request_id: str) -> dict[str, Any]:
    """The row of one text."""
    request, policy, text = stream.request, generator.policy, stream.text
    bound = generator.writers[request.tenant]
    member_of = getattr(bound, "member_of", None)
    spans = policy.spans(text, request.prompt) if policy is not None and request.marked else []
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "request": request_id,
        "tenant": request.tenant,
        "policy": None if policy is None else policy.version,
        "key_fingerprint": bound.fingerprint,
        "scheme": bound.scheme.name,
        "member": member_of(request.seed) if member_of is not None and request.marked else None,
        "payload": request.payload,
        "marked": request.marked,
        "exempt": request.exempt,
        "tokens": stream.tokens,
        "characters": len(text),
        "spans": [[each.start, each.end, each.reason] for each in spans],
    }
