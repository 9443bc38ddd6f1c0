"""What a dossier says beyond its own measurements: quality report, policy, both layers, the Code's measures.

The figures come from files of other commands (``dewmark quality``, ``dewmark policy prove``) and from what
the provider states (certificate, public page); a part that was not given is said to be missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509

from dewmark.errors import ConfigError
from dewmark.scheme import BoundScheme

__all__ = ["Given", "code_measures", "read_given"]

SOURCE = (
    "As public summaries give the Code of Practice on marking and labelling; its own text was not available "
    "to the authors of this software. Check it against the Code before you rely on it."
)
READ_KINDS = (
    "dew, dew-open, vllm-gumbel, vllm-dual-key-gumbel, sglang-gumbel, transformers-kgw, transformers-synthid"
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


def read_given(
    bound: BoundScheme | None,
    *,
    quality: Path | None,
    proof: Path | None,
    certificate: Path | None,
    public_page: str | None,
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
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not found.keys() >= set(fields):
        raise ConfigError(f"{option} {path} has no {', '.join(fields)}: give the JSON that the command wrote")
    return found


def _subject(path: Path) -> str:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())[0].subject.rfc4514_string()
    except (OSError, ValueError):
        raise ConfigError(f"--certificate {path} is no certificate in PEM") from None


def code_measures(given: Given, *, access: Mapping[str, Any]) -> list[dict[str, str]]:
    """Each measure, where the dossier answers it, and what is left."""
    signed = "manifests are signed by " + given.signer if given.signer else "not stated: give --certificate"
    page = given.public_page or access["detector"]["page"]
    rows = (
        ("signed metadata", "Both layers", signed),
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
            "small samples: see the intervals",
        ),
        ("robustness", "Robust", "rewriting by a person or a large model removes the mark"),
        (
            "a detector free of charge",
            "Interoperable",
            page if page != "/" else "no address was given: --detector-url or --public-page",
        ),
        (
            "results name the technique they rest on",
            "Interoperable",
            "every result has scheme and test",
        ),
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
