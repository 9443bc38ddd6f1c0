"""The signpost: a small public JSON file that says who detects which marks, and how to ask.

A service answers it under ``/.well-known/dewmark.json``; ``dewmark comply`` writes it as a file to publish.
It names no tenant and no key of a mark. ``docs/signpost.schema.json`` describes it, so that detectors of
others can follow it: to the service, or to the public detector that runs on the reader's machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dewmark.reports.detection_display import CAVEATS
from dewmark.scheme import Scheme
from dewmark.version import __version__
from dewmark_desk.signing import VerifyingKey

PUBLIC_FORMAT = "dewmark-public-detector/2"


def signpost(
    schemes: Sequence[Scheme],
    *,
    url: str = "",
    provider: str | None = None,
    contact: str | None = None,
    level: float,
    dossier: str | None = None,
    public_page: str | None = None,
    signers: Sequence[VerifyingKey] = (),
) -> dict[str, Any]:
    """The signpost of a detector at ``url``; paths are relative if that is unknown."""
    base = url.rstrip("/")
    techniques = {scheme.name: scheme.summary for scheme in schemes}
    return {
        "document": "signpost",
        "format": 1,
        "provider": provider,
        "contact": contact,
        "detector": {
            "page": f"{base}/",
            "api": f"{base}/v1/detect",
            "description": f"{base}/openapi.json",
            "level": level,
            "software": f"dewmark {__version__}",
        },
        "public_detector": None
        if public_page is None
        else {
            "page": public_page,
            "description": f"{public_page.rstrip('/').removesuffix('/index.html')}/detector.json",
            "format": PUBLIC_FORMAT,
        },
        "techniques": [{"scheme": name, "summary": summary} for name, summary in sorted(techniques.items())],
        "how_to_ask": {
            "people": "Open the page and paste the text.",
            "programs": 'POST {"text": "..."} as JSON to the api, with an Authorization: Bearer header.',
            "access": f"Tokens are given out by {contact}." if contact else "Ask the provider for a token.",
        },
        "reports": {"verify": f"{base}/v1/reports/verify", "keys": [key.to_jwk() for key in signers]},
        "dossier": dossier,
        "caveats": list(CAVEATS),
    }
