"""The dossier: a deployment, its figures, what they do not cover, and how to reach the detector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dewmark.decoding import Decoding
from dewmark.hosts.base import ChatFormat
from dewmark.scheme import BoundScheme, Scheme
from dewmark.version import __version__
from dewmark_desk.compliance.findings import findings
from dewmark_desk.compliance.layers import SOURCE, Given, code_measures
from dewmark_desk.compliance.measuring import Measured
from dewmark_desk.compliance.plan import DossierPlan

_FORMAT = 1

NOT_COVERED = (
    "Code, JSON and other output with one right form: the host has little choice, which leaves little mark.",
    "Labels, titles and other texts below about 16 independent words: the detector gives no verdict.",
    "Greedy decoding (temperature 0): a mark in the choice between words needs a choice.",
    "Text that a person or another model has rewritten; the attacks above show how much it takes.",
    "Whether a text was written by a machine at all: the detector finds this key's mark and nothing else.",
)


def build_dossier(
    measured: Measured,
    plan: DossierPlan,
    bound: BoundScheme,
    *,
    issued: str,
    provider: str | None,
    contact: str | None,
    chat: ChatFormat | None,
    judge: str,
    access: Mapping[str, Any],
    given: Given,
) -> dict[str, Any]:
    """The dossier as JSON values."""
    scheme = bound.scheme
    return {
        "document": "dossier",
        "format": _FORMAT,
        "issued": issued,
        "provider": provider,
        "contact": contact,
        "software": f"dewmark {__version__}",
        "deployment": {
            "host": bound.host.name,
            "host_identity": bound.host.identity,
            "scheme": scheme.name,
            "summary": scheme.summary,
            "settings": _in_force(scheme),
            "key_fingerprint": bound.fingerprint,
            "config_hash": bound.config_hash,
            "decoding": _sampling(plan.decoding),
            "chat_decoding": None if chat is None else _sampling(chat.decoding),
            "detection_needs": _detection_needs(bound),
        },
        "findings": findings(measured, plan),
        "not_covered": list(NOT_COVERED),
        "access": dict(access),
        "given": given.to_dict(),
        "code": {"source": SOURCE, "measures": code_measures(given, access=access)},
        "method": _method(plan, bound, chat=chat is not None, judge=judge),
    }


def _method(plan: DossierPlan, bound: BoundScheme, *, chat: bool, judge: str) -> list[str]:
    chats, per_format = (plan.chats, plan.per_format) if chat else (0, 0)
    sizes = (
        f"{plan.openings} openings and {chats} chat requests, each with and without the mark, up to "
        f"{max(plan.lengths)} tokens, seeds from {plan.seed} on. Prompts in each of {len(plan.languages)} "
        f"other languages: {plan.per_language}. Requests for each format: {per_format}."
    )
    tests = (
        f"The {bound.tests[0]} test; intervals are exact (Clopper-Pearson); the audit corrects for all its "
        "cells (Holm)."
    )
    quality = (
        f"Perplexity is judged by {judge}; entropy is the host's own along the text, at its temperature."
    )
    caution = (
        "The package's prompts and unmarked texts are small samples. Give your own unmarked texts with "
        "--negatives, and more --texts, before you decide anything on these figures."
    )
    return [sizes, tests, quality, caution]


def _sampling(decoding: Decoding) -> dict[str, float]:
    """The options that change what the host writes, without the lengths, which the plan sets."""
    names = ("temperature", "top_p", "top_k", "min_p", "no_repeat_ngram")
    return {name: value for name, value in decoding.to_dict().items() if name in names}


def _in_force(scheme: Scheme) -> dict[str, Any]:
    """A scheme's settings, with the strength that it chooses itself: a default may change, a dossier not."""
    values = dict(scheme.to_dict())
    for name, chosen in (("lambda", "strength"), ("alpha", "keyed_share")):
        if name in values and values[name] is None:
            values[name] = getattr(scheme, chosen)
    return values


def _detection_needs(bound: BoundScheme) -> str:
    if bound.needs.host_at_detection:
        return "the key and the host model itself"
    return "the key and no host" if bound.scheme.host_free else "the key and the host's tokenizer"
