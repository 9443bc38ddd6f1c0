"""An audit as a file, and what it says about other texts under the same key.

``dewmark audit --out DIR`` writes ``audit.json``. A p-value counts keys: "1 in N keys would score this text
so high". How many *texts* of its kind this key scores so high, only an audit of the key knows; `AuditReport`
carries that over to a text that is detected later, by its language, its length and, if it is given, its
kind. The least favourable of these groups counts.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.special import ndtri

from dewmark.errors import ArtifactError, ConfigError
from dewmark.scheme import BoundScheme, for_languages
from dewmark.stats.audit import TOLERANCE, length_band
from dewmark.stats.one_key import KeyOnKind
from dewmark.storage import sha256_file
from dewmark.text.languages import language_name
from dewmark.types import Detection
from dewmark.verdict import DEFAULT_FPR

NOT_AUDITED = "this key was not audited on texts of this language and length"
"""What to say of a text about which an audit says nothing."""

_CONFIDENCE = 0.95
_IN_HUNDRED = 0.1  # from this share on, "40 in 100" reads better than "1 in 2.5"
_REMEDY = "make one with: dewmark audit --out DIR"


@dataclass(frozen=True, slots=True)
class AuditedGroup:
    """A group of audited texts and the law of their z under the key."""

    kind: str
    group: str
    texts: int
    verdict: str
    trusted_from: float | None
    law: KeyOnKind

    @property
    def name(self) -> str:
        """The group in words."""
        if self.kind == "language":
            return f"in {language_name(self.group)}"
        if self.kind == "length":
            return f"of {self.group} tokens"
        return f"of the kind “{self.group}”" if self.kind == "kind" else "like those audited"


@dataclass(frozen=True, slots=True)
class KeyLevel:
    """What an audit says about one detection: how many unmarked texts of its kind this key scores so high.

    ``share`` of the texts of ``group`` is expected to, and with 95% confidence not more than ``high``.
    ``trusted`` says whether alarms at the detection's level can be trusted there.
    """

    group: AuditedGroup
    share: float
    high: float
    trusted: bool

    @property
    def sentence(self) -> str:
        """The level in words."""
        trust = "" if self.trusted else "; this key's alarms on such texts cannot be trusted"
        verb = "score" if self.share >= _IN_HUNDRED else "scores"
        return (
            f"under this key, about {_one_in(self.share)} unmarked texts {self.group.name} {verb} so high, "
            f"at most {_one_in(self.high)} (audit of {self.group.texts:,} such texts){trust}"
        )

    @staticmethod
    def columns(level: KeyLevel | None) -> dict[str, Any]:
        """The columns of a row of results; None where the audit says nothing."""
        return {
            "this_key_share": None if level is None else level.share,
            "this_key_share_high": None if level is None else level.high,
            "this_key_group": None if level is None else level.group.group,
            "this_key_trusted": None if level is None else level.trusted,
        }


@dataclass(frozen=True)
class AuditReport:
    """The audit of one key, from the file that ``dewmark audit`` wrote."""

    path: Path
    key_fingerprint: str
    config_hash: str
    common: Mapping[str, str]
    groups: tuple[AuditedGroup, ...]

    @classmethod
    def load(cls, path: str | Path) -> AuditReport:
        """Read ``audit.json``, or the folder that holds it."""
        path = Path(path)
        file = path / "audit.json" if path.is_dir() else path
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            groups = tuple(_group(each) for each in data["groups"] if each["together"] is not None)
            return cls(file, data["key_fingerprint"], data["config_hash"], dict(data["common"]), groups)
        except OSError as error:
            raise ArtifactError(f"cannot read the audit {file}: {error.strerror}; {_REMEDY}") from None
        except (ValueError, KeyError, TypeError):
            raise ArtifactError(f"{file} is not an audit's report; {_REMEDY}") from None

    @property
    def identity(self) -> str:
        """The SHA-256 of the file."""
        return sha256_file(self.path)

    def check(self, bound: BoundScheme) -> None:
        """Raise `ConfigError` if the audit is of another key or configuration."""
        if self.key_fingerprint != bound.fingerprint:
            raise ConfigError(
                f"{self.path} is the audit of key {self.key_fingerprint}, but this key is "
                f"{bound.fingerprint}: audit this key"
            )
        if self.config_hash != bound.config_hash:
            raise ConfigError(
                f"{self.path} was made with another scheme, host or settings than this detector: "
                "audit it again"
            )
        if not self.groups:
            raise ConfigError(
                f"{self.path} does not say how this scheme's scores go together: "
                "use dewmark calibrate instead"
            )

    def applied(self, bound: BoundScheme, *, level: float = DEFAULT_FPR) -> BoundScheme:
        """The same detector, which also judges the languages in which its key is trusted at ``level``."""
        self.check(bound)
        audited = bound.languages.audited | self.languages(level=level)
        return for_languages(bound, dataclasses.replace(bound.languages, audited=audited))

    def languages(self, *, level: float) -> frozenset[str]:
        """The languages in which this key's alarms at ``level`` are trusted."""
        trusted = [each for each in self.groups if _trusted(each.law, level)]
        return frozenset(name for each in trusted if (name := self._label(each, "language")))

    def _label(self, group: AuditedGroup, kind: str) -> str | None:
        """The language, length or kind of a group's texts, if it is a group by that."""
        return self.common.get(kind) if group.kind == "all" else group.group if group.kind == kind else None

    def level_of(self, detection: Detection, *, kind: str | None = None) -> KeyLevel | None:
        """What the audit says about a detection; None if it had no texts of this language, length or kind.

        The audit knows nothing about a text in a language that it had no texts of.
        """
        wanted = {
            "length": length_band(detection.tokens_scored),
            "language": detection.language,
            "kind": kind,
        }
        found = {
            by: [each for each in self.groups if name and self._label(each, by) == name]
            for by, name in wanted.items()
        }
        if detection.language and not found["language"]:
            found = {"kind": found["kind"]}
        levels = [_level(each, detection) for groups in found.values() for each in groups]
        return max(levels, key=lambda each: each.high, default=None)


def _group(row: Mapping[str, Any]) -> AuditedGroup:
    together = row["together"]
    law = KeyOnKind(float(together["mean"]), float(together["sd"]), float(together["spread"]))
    return AuditedGroup(row["kind"], row["group"], row["texts"], row["verdict"], row["trusted_from"], law)


def _level(group: AuditedGroup, detection: Detection) -> KeyLevel:
    z = -float(ndtri(min(max(detection.p_value, 1e-300), 1.0 - 1e-16)))
    return KeyLevel(
        group,
        share=group.law.share_above(z),
        high=group.law.share_above(z, confidence=_CONFIDENCE),
        trusted=_trusted(group.law, detection.fpr),
    )


def _trusted(law: KeyOnKind, level: float) -> bool:
    return law.rate(level, confidence=_CONFIDENCE) <= TOLERANCE * level


def _one_in(share: float) -> str:
    if share >= _IN_HUNDRED:
        return f"{100 * share:.0f} in 100"
    return "fewer than 1 in a billion" if share < 1e-9 else f"1 in {float(f'{1 / share:.2g}'):,.0f}"
