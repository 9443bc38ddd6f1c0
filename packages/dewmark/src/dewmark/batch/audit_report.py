"""The report of an audit, from which a detector learns in which languages its key can be trusted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from dewmark.errors import ArtifactError, ConfigError
from dewmark.scheme import BoundScheme, for_languages
from dewmark.stats.audit import TOLERANCE
from dewmark.stats.one_key import KeyOnKind
from dewmark.verdict import DEFAULT_FPR

_CONFIDENCE = 0.95
_REMEDY = "make one with: dewmark audit --out AUDIT.json"


def with_audit(bound: BoundScheme, file: str | Path) -> BoundScheme:
    """The same detector, which also judges the languages in which its key passed the audit in ``file``.

    Raises `ConfigError` if the audit is of another key or configuration.
    """
    try:
        data = json.loads(Path(file).read_text(encoding="utf-8"))
        made = {name: data[name] for name in ("key_fingerprint", "config_hash")}
        found = [each for each in data["groups"] if each["together"] is not None]
        trusted = [each for each in found if _trusted(each["together"])]
        named = [each["group"] if each["kind"] == "language" else None for each in trusted]
        if any(each["kind"] == "all" for each in trusted):  # which stands for a language that all texts share
            named.append(data["common"].get("language"))
    except OSError as error:
        raise ArtifactError(f"cannot read the audit {file}: {error.strerror}; {_REMEDY}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ArtifactError(f"{file} is not an audit's report; {_REMEDY}") from None
    if made["key_fingerprint"] != bound.fingerprint:
        raise ConfigError(
            f"{file} is the audit of key {made['key_fingerprint']}, but this key is {bound.fingerprint}: "
            "audit this key"
        )
    if made["config_hash"] != bound.config_hash:
        raise ConfigError(
            f"{file} was made with another scheme, host or settings than this detector: audit it again"
        )
    if not found:
        raise ConfigError(
            f"{file} does not say how this scheme's scores go together: use dewmark calibrate instead"
        )
    audited = bound.languages.audited | {each for each in named if each}
    return for_languages(bound, dataclasses.replace(bound.languages, audited=audited))


def _trusted(together: dict[str, float]) -> bool:
    """Whether the rate of a group of texts at the default level is bounded as an audit demands."""
    law = KeyOnKind(float(together["mean"]), float(together["sd"]), float(together["spread"]))
    return law.rate(DEFAULT_FPR, confidence=_CONFIDENCE) <= TOLERANCE * DEFAULT_FPR
