"""The dossier: a deployment, its figures, what they do not cover, and how to reach the detector.

What it says beyond its own measurements comes from files of other commands (``dewmark quality``, ``dewmark
policy prove``) and from what the provider states (certificate, public page); a part that was not given is
said to be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.hosts.base import ChatFormat
from dewmark.scheme import BoundScheme, Scheme
from dewmark.storage import read_json, read_small
from dewmark.version import __version__
from dewmark_desk.compliance.findings import findings
from dewmark_desk.compliance.measuring import DossierPlan, Measured

_FORMAT = 1

NOT_COVERED = (
    "Code, JSON and other output with one right form: the host has little choice, which leaves little mark.",
    "Labels, titles and other texts below about 16 independent words: the detector gives no verdict.",
    "Greedy decoding (temperature 0): a mark in the choice between words needs a choice.",
    "Text that a person or another model has rewritten; the attacks above show how much it takes.",
    "Whether a text was written by a machine at all: the detector finds this key's mark and nothing else.",
)

READ_KINDS = (
    "dew, vllm-gumbel, vllm-dual-key-gumbel, vllm-sbw, sglang-gumbel, transformers-kgw, transformers-synthid"
)

CODE_SOURCE = (
    "As public summaries give the Code of Practice on marking and labelling; its own text was not available "
    "to the authors of this software. Check it against the Code before you rely on it."
)


@dataclass(frozen=True)
class Given:
    """What the provider hands in beside the measurements."""

    quality: Mapping[str, Any] | None = None
    proof: Mapping[str, Any] | None = None
    signer: str | None = None
    public_page: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The parts as JSON values, None where nothing was given."""
        quality = self.quality
        return {
            "quality_report": None
            if quality is None
            else {name: quality[name] for name in ("outcome", "texts", "scheme", "host", "measures")},
            "policy_proof": self.proof,
            "layers": {
                "mark": True,
                "manifest_signer": self.signer,
                "reads": READ_KINDS,
                "public_page": self.public_page,
            },
        }


File = Path | None


def read_given(
    bound: BoundScheme | None, *, quality: File, proof: File, certificate: File, public_page: str | None
) -> Given:
    """The files that were given, checked to be what they should be and, once bound, of this deployment."""
    report = _read(quality, "--quality", ("outcome", "texts", "scheme", "host", "measures"))
    proved = _read(proof, "--policy-proof", ("policy", "parsed", "spans", "host", "key_fingerprint"))
    if bound is not None:
        for name, found in (("--quality", report), ("--policy-proof", proved)):
            if found is not None and found["host"] != bound.host.name:
                raise ConfigError(f"{name} is about {found['host']}, the dossier about {bound.host.name}")
    return Given(report, proved, None if certificate is None else _subject(certificate), public_page)


def _read(path: Path | None, option: str, fields: Sequence[str]) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        found = read_json(path, most=1 << 26)
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not found.keys() >= set(fields):
        raise ConfigError(f"{option} {path} has no {', '.join(fields)}: give the JSON that the command wrote")
    return found


def _subject(path: Path) -> str:
    try:
        return x509.load_pem_x509_certificates(read_small(path))[0].subject.rfc4514_string()
    except (OSError, ValueError):
        raise ConfigError(f"--certificate {path} is no certificate in PEM") from None


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
        "code": {"source": CODE_SOURCE, "measures": code_measures(given, access=access)},
        "method": _method(plan, bound, chat=chat is not None, judge=judge),
    }


def code_measures(given: Given, *, access: Mapping[str, Any]) -> list[dict[str, str]]:
    """Each measure of the Code, where the dossier answers it, and what is left."""
    page = given.public_page or access["detector"]["page"]
    rows = (
        (
            "signed metadata",
            "Both layers",
            f"manifests are signed by {given.signer}" if given.signer else "not stated: give --certificate",
        ),
        (
            "an imperceptible mark in free text over 200 tokens",
            "Effective",
            "the shares found at 200 tokens are those of the table, not all texts",
        ),
        (
            "code, JSON and short labels are out of scope",
            "Policy, Not covered",
            "which parts are left out is decided by rule and logged"
            if given.proof
            else "no proof of the policy was given: dewmark policy prove",
        ),
        (
            "low error rates across lengths and entropies",
            "Effective, Reliable",
            "small samples: see intervals",
        ),
        ("robustness", "Robust", "rewriting by a person or a large model removes the mark"),
        (
            "a detector free of charge",
            "Interoperable",
            page if page != "/" else "no address was given: --detector-url or --public-page",
        ),
        ("results name the technique they rest on", "Interoperable", "every result has scheme and test"),
        (
            "interoperable detection (by 2 February 2027) and a public signpost",
            "Interoperable, Both layers",
            "the marks listed there; other providers' need their keys or public detectors",
        ),
        (
            "quality of the text is kept",
            "Quality",
            "the quality report is attached" if given.quality else "only the small comparison here",
        ),
        ("languages", "Effective, by language", "languages that are not in the table were not measured"),
    )
    return [{"measure": measure, "answered": where, "left": left} for measure, where, left in rows]


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
