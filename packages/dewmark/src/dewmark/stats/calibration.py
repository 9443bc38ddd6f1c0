"""Empirical calibration: a text's rank among texts that are known to be unmarked.

Score N negatives and a text with the same key, scheme and test. If the text is unmarked and drawn like the
negatives, all N + 1 statistics are exchangeable, so its rank is uniform and

    p = (1 + #{negatives ≥ z}) / (N + 1),    P(p ≤ α) ≤ α

exactly, for every N and every distribution, even with ties. The smallest p that N negatives can give is
1/(N + 1): a lower level needs more negatives. Nothing is smoothed or extrapolated.

Groups (such as languages) are ranked separately; without a group a text is ranked among all negatives, which
is valid for texts that mix the groups as the negatives do. Texts too short for a verdict are left out:
whether a text is too short does not depend on its score, so the rest remain exchangeable.

Boundary: numbers only. A calibration stores statistics and their provenance, never a key or a text.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dewmark import storage
from dewmark.arrays import F64
from dewmark.errors import ArtifactError, ConfigError, InputError, NumericalError
from dewmark.registry import unknown_name
from dewmark.types import Detection, Verdict
from dewmark.version import __version__

EMPIRICAL = "empirical"
UNGROUPED = "all"
_FORMAT = "dewmark-calibration-v1"
_REMEDY = "make one with: dewmark calibrate"


def negatives_needed(fpr: float) -> int:
    """The smallest N with 1/(N + 1) ≤ fpr; fewer negatives cannot reach the level."""
    if not 0.0 < fpr < 1.0:
        raise ConfigError(f"fpr must lie in (0, 1), got {fpr}")
    return math.ceil(1 / Fraction(str(float(fpr)))) - 1  # the decimal as written: 0.01 needs 99


@dataclass(frozen=True, eq=False)
class Calibration:
    """The statistics of negatives under one key and configuration, by group.

    ``test`` is the test whose z is ranked. ``groups`` maps a group's name to its statistics (N,), ascending,
    and ``by`` names the kind of group, or is None if there is only one. ``too_short`` counts the texts left
    out. ``version`` is the version of dewmark that scored them; another one may score differently.
    """

    scheme: str
    test: str
    config_hash: str
    key_fingerprint: str
    groups: Mapping[str, F64] = dataclasses.field(repr=False)
    by: str | None = None
    too_short: int = 0
    version: str = __version__

    @classmethod
    def from_detections(
        cls, detections: Iterable[tuple[Detection, str | None]], *, config_hash: str, by: str | None = None
    ) -> Calibration:
        """Calibrate on negatives: (detection, group) pairs, all made with one key, scheme and test."""
        groups: dict[str, list[float]] = {}
        made: set[tuple[str, str, str]] = set()
        too_short = 0
        for detection, group in detections:
            made.add((detection.scheme, detection.test, detection.key_fingerprint))
            if detection.verdict is Verdict.TOO_SHORT:
                too_short += 1
            else:
                groups.setdefault(UNGROUPED if group is None else group, []).append(detection.z)
        if not groups:
            raise InputError(
                f"no negatives to calibrate on: all {too_short} texts are too short for a verdict"
            )
        if len(made) > 1:
            raise ConfigError(
                f"negatives must share scheme, test and key, got {', '.join(map(str, sorted(made)))}"
            )
        ((scheme, test, fingerprint),) = made
        values = {name: np.sort(np.array(groups[name], dtype=np.float64)) for name in sorted(groups)}
        for name, z in values.items():
            if not np.isfinite(z).all():
                raise NumericalError(f"a negative of group {name!r} has a statistic that is not finite")
        return cls(scheme, test, config_hash, fingerprint, values, by, too_short)

    @functools.cached_property
    def pooled(self) -> F64:
        """All negatives' statistics (N,), ascending."""
        return np.sort(np.concatenate(list(self.groups.values())))

    def negatives(self, group: str | None = None) -> F64:
        """The statistics (N,) of one group, or of all, ascending."""
        if group is None:
            return self.pooled
        if group not in self.groups:
            raise unknown_name(self.by or "group", group, self.groups)
        return self.groups[group]

    def p_value(self, z: float, *, group: str | None = None) -> float:
        """(1 + #{negatives ≥ z}) / (N + 1)."""
        if math.isnan(z):
            raise NumericalError("the statistic of a text is NaN, which has no rank among the negatives")
        negatives = self.negatives(group)
        return (1 + len(negatives) - int(np.searchsorted(negatives, z, side="left"))) / (len(negatives) + 1)

    def threshold(self, fpr: float, *, group: str | None = None) -> float:
        """The τ for which p ≤ fpr if and only if z > τ: the ⌊fpr (N + 1)⌋-th largest negative.

        Infinite if there are fewer negatives than `negatives_needed`.
        """
        negatives = self.negatives(group)
        ranks = np.arange(1, len(negatives) + 1) / (len(negatives) + 1)  # all possible p-values but 1
        allowed = int(np.count_nonzero(ranks <= fpr))
        return float(negatives[-allowed]) if allowed else math.inf

    def shortage(self, fpr: float, *, group: str | None = None) -> str | None:
        """The reason why no text can be called marked at this level, or None if one can."""
        have, needed = len(self.negatives(group)), negatives_needed(fpr)
        if have >= needed:
            return None
        of = "" if group is None else f" of {self.by or 'group'} {group}"
        return (
            f"{have} negatives{of} cannot reach the level {fpr:g}: the smallest p-value is 1/{have + 1}; "
            f"calibrate on at least {needed:,}"
        )

    def check(self, *, scheme: str, config_hash: str, key_fingerprint: str) -> None:
        """Raise unless key, scheme, configuration and version are those of the calibration."""
        remedy = "calibrate again"
        if self.version != __version__:
            raise ConfigError(
                f"the calibration was made with dewmark {self.version}, which may score differently from "
                f"{__version__}: {remedy}"
            )
        if self.key_fingerprint != key_fingerprint:
            raise ConfigError(
                f"the calibration was made with key {self.key_fingerprint}, not {key_fingerprint}: {remedy}"
            )
        if self.scheme != scheme:
            raise ConfigError(f"the calibration was made with scheme {self.scheme}, not {scheme}: {remedy}")
        if self.config_hash != config_hash:
            raise ConfigError(
                f"the calibration was made with other settings or another host (config {self.config_hash}, "
                f"not {config_hash}): {remedy}"
            )

    def apply(self, detection: Detection, *, group: str | None = None) -> Detection:
        """The detection with its rank among the negatives as p-value, and the resulting verdict.

        A text too short for a verdict gets p = 1: the negatives say nothing about such texts.
        """
        made = (detection.scheme, detection.test, detection.key_fingerprint)
        if made != (self.scheme, self.test, self.key_fingerprint):
            raise ConfigError(
                f"the calibration ranks z of ({self.scheme}, {self.test} test, key {self.key_fingerprint}), "
                f"the detection has ({made[0]}, {made[1]} test, key {made[2]})"
            )
        if not detection.verdict.conclusive:
            return dataclasses.replace(detection, p_value=1.0, test=EMPIRICAL)
        p = self.p_value(detection.z, group=group)
        verdict = Verdict.MARKED if p <= detection.fpr else Verdict.NOT_MARKED
        return dataclasses.replace(detection, p_value=p, verdict=verdict, test=EMPIRICAL)

    def save(self, path: str | Path) -> None:
        """Write the calibration as JSON; the file appears complete or not at all."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["groups"] = {name: z.tolist() for name, z in self.groups.items()}
        with storage.atomic_write(Path(path)) as stream:
            stream.write(json.dumps({"format": _FORMAT, **fields}).encode() + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a file that `save` wrote."""
        try:
            content = json.loads(Path(path).read_bytes())
        except OSError as error:
            raise InputError(f"cannot read calibration {path}: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise ArtifactError(f"{path} is not a calibration, or is damaged: {_REMEDY}") from None
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ArtifactError(f"{path} is not a calibration that this version can read: {_REMEDY}")
        try:
            return cls(groups=_parse_groups(content.pop("groups")), **_parse_names(content))
        except KeyError as missing:
            raise ArtifactError(f"{path} is damaged ({missing} is missing): {_REMEDY}") from None
        except (ValueError, OverflowError) as error:
            raise ArtifactError(f"{path} is damaged ({error}): {_REMEDY}") from None


def _parse_groups(groups: Any) -> dict[str, F64]:  # noqa: ANN401 - any content of a file
    if not isinstance(groups, dict) or not groups:
        raise ValueError("it has no groups")
    values = {}
    for name, z in groups.items():
        if not isinstance(z, list) or not z or not all(type(x) in (int, float) for x in z):
            raise ValueError(f"group {name!r} is not a list of numbers")
        values[name] = np.array(z, dtype=np.float64)
        if not np.isfinite(values[name]).all() or (np.diff(values[name]) < 0).any():
            raise ValueError(f"group {name!r} is not finite and ascending")
    return values


def _parse_names(content: dict[str, Any]) -> dict[str, Any]:
    names = {name: content[name] for name in ("scheme", "test", "config_hash", "key_fingerprint", "version")}
    if not all(isinstance(value, str) for value in names.values()):
        raise ValueError("a name is not text")
    by, too_short = content["by"], content["too_short"]
    if not (by is None or isinstance(by, str)) or type(too_short) is not int:
        raise ValueError("by or too_short has the wrong type")
    return {**names, "by": by, "too_short": too_short}
