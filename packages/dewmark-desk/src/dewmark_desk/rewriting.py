"""Changes that would mark a text, found in a process of their own.

Rewriting loads a language model and reads a text with it for up to two minutes. Each text has a
`limited_child` that opens the tenant's key itself, so the worker stays small, and the operating system runs
texts of several tokens side by side, below everything else.

Boundary: settings, tenant and text in, changes out; no HTTP.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from dewmark.detector import Detector
from dewmark.errors import InputError
from dewmark.registry import Registry
from dewmark_desk.limited_child import Bounds, OutOfMemory, run
from dewmark_desk.settings import Settings
from dewmark_desk.tenants import open_tenants

rewriters = Registry("way to mark existing texts", {}, group="dewmark.rewriters", companion="dewmark-rewrite")

BOUNDS = Bounds(seconds=400.0, memory=6 << 30, patience=600.0, writes=True, threads=2)  # may fetch its model
_CHANGE = ("start", "end", "old", "new")


def installed() -> bool:
    """Whether texts can be rewritten here."""
    return "rewrite" in rewriters


def changes(settings: Settings, tenant: str, text: str, budget: float) -> list[dict[str, Any]]:
    """The changes that would give a text the mark of a tenant's key. It blocks: call it in a thread."""
    own = dataclasses.replace(
        settings,
        detectors=tuple(each for each in settings.detectors if each[0] == tenant),
        keys=tuple(each for each in settings.keys if each[0] == tenant),
    )
    told = {"settings": own.to_json(), "text": text, "budget": budget}
    try:
        made = run(f"{__name__}:rewrite", data=json.dumps(told).encode(), bounds=BOUNDS)
    except (TimeoutError, OutOfMemory):
        raise InputError("rewriting the text takes too long or too much memory: send less of it") from None
    found: list[dict[str, Any]] = json.loads(made)
    return found


def rewrite(data: bytes) -> bytes:
    """The changes as JSON. For the child process."""
    told = json.loads(data)
    (tenant,) = open_tenants(Settings.from_json(told["settings"]), verify=False).values()
    made = rewriters["rewrite"](told["text"], Detector(tenant.bound), budget=told["budget"])
    rows = [{name: getattr(step.change, name) for name in _CHANGE} for step in made.steps]
    return json.dumps(rows).encode()
