"""Empirical calibration: a text's rank among texts that are known to be unmarked.

Score N negatives and a text with the same key, scheme and test. If the text is unmarked and drawn like the
negatives, all N + 1 statistics are exchangeable, so its rank is uniform and

    p = (1 + #{negatives ≥ z}) / (N + 1),    P(p ≤ α) ≤ α

exactly, for every N and every distribution, even with ties. The smallest p that N negatives can give is
1/(N + 1): a lower level needs more negatives. Nothing is smoothed or extrapolated.

Texts too short for a verdict are left out: whether a text is too short does not depend on its score, so the
rest remain exchangeable.

Boundary: numbers only. A calibration stores statistics and their provenance, never a key or a text.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from dewmark import storage
from dewmark.arrays import F64
from dewmark.errors import ArtifactError, ConfigError, InputError, NumericalError
from dewmark.types import EMPIRICAL, Detection, Verdict
from dewmark.version import __version__

__all__ = ["Calibration", "negatives_needed"]

_FORMAT = "dewmark-calibration-v2"
_REMEDY = "make one with: dewmark calibrate"


def negatives_needed(fpr: float) -> int:
    """The smallest N with 1/(N + 1) ≤ fpr; fewer negatives cannot reach the level."""
    if not 0.0 < fpr < 1.0:
        raise ConfigError(f"fpr must lie in (0, 1), got {fpr}")
    return math.ceil(1 / Fraction(str(float(fpr)))) - 1  # the decimal as written: 0.01 needs 99


@dataclass(frozen=True, eq=False)
class Calibration:
    """The statistics of negatives under one key and configuration.

    ``test`` is the test whose ``z`` (N,), ascending, is ranked. ``too_short`` counts the texts left out.
    ``version`` is the version of dewmark that scored them; another one may score differently.
    """

    scheme: str
    test: str
    config_hash: str
    key_fingerprint: str
    z: F64 = dataclasses.field(repr=False)
    too_short: int = 0
    version: str = __version__

    @classmethod
    def from_detections(cls, detections: Iterable[Detection], *, config_hash: str) -> Calibration:
        """Calibrate on the detections of negatives, all made with one key, scheme and test."""
        z: list[float] = []
        made: set[tuple[str, str, str]] = set()
        too_short = 0
        for detection in detections:
            made.add((detection.scheme, detection.test, detection.key_fingerprint))
            if detection.verdict is Verdict.TOO_SHORT:
                too_short += 1
            else:
                z.append(detection.z)
        if not z:
            raise InputError(f"no negatives to calibrate on: all {too_short} texts are too short")
        if len(made) > 1:
            raise ConfigError(
                f"negatives need one scheme, test and key, not {', '.join(map(str, sorted(made)))}"
            )
        if not np.isfinite(z).all():
            raise NumericalError("a negative has a statistic that is not finite")
        ((scheme, test, fingerprint),) = made
        return cls(scheme, test, config_hash, fingerprint, np.sort(np.array(z)), too_short)

    def p_value(self, z: float) -> float:
        """(1 + #{negatives ≥ z}) / (N + 1)."""
        if math.isnan(z):
            raise NumericalError("the statistic of a text is NaN, which has no rank among the negatives")
        return (1 + len(self.z) - int(np.searchsorted(self.z, z, side="left"))) / (len(self.z) + 1)

    def threshold(self, fpr: float) -> float:
        """The τ for which p ≤ fpr if and only if z > τ: the ⌊fpr (N + 1)⌋-th largest negative.

        Infinite if there are fewer negatives than `negatives_needed`.
        """
        ranks = np.arange(1, len(self.z) + 1) / (len(self.z) + 1)  # all possible p-values but 1
        allowed = int(np.count_nonzero(ranks <= fpr))
        return float(self.z[-allowed]) if allowed else math.inf

    def shortage(self, fpr: float) -> str | None:
        """The reason why no text can be called marked at this level, or None if one can."""
        have, needed = len(self.z), negatives_needed(fpr)
        if have >= needed:
            return None
        return (
            f"{have} negatives cannot reach the level {fpr:g}: the smallest p-value is 1/{have + 1}; "
            f"calibrate on at least {needed:,}"
        )

    def check(self, *, scheme: str, config_hash: str, key_fingerprint: str) -> None:
        """Raise unless version, key, scheme and configuration are those of the calibration."""
        mine = {"dewmark": self.version, "key": self.key_fingerprint, "scheme": self.scheme}
        given = {"dewmark": __version__, "key": key_fingerprint, "scheme": scheme, "config": config_hash}
        for name, value in {**mine, "config": self.config_hash}.items():
            if value != given[name]:
                raise ConfigError(
                    f"the calibration was made with {name} {value}, not {given[name]}: calibrate again"
                )

    def apply(self, detection: Detection) -> Detection:
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
        p = self.p_value(detection.z)
        verdict = Verdict.MARKED if p <= detection.fpr else Verdict.NOT_MARKED
        return dataclasses.replace(detection, p_value=p, verdict=verdict, test=EMPIRICAL)

    def save(self, path: str | Path) -> None:
        """Write the calibration as JSON; the file appears complete or not at all."""
        with storage.atomic_write(Path(path)) as stream:
            stream.write(self.to_json())

    def to_json(self) -> bytes:
        """The contents of the file that `save` writes."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.dumps({"format": _FORMAT, **fields, "z": self.z.tolist()}).encode() + b"\n"

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a file that `save` wrote."""
        try:
            content = storage.read_json(path, most=1 << 26)
        except OSError as error:
            raise InputError(f"cannot read calibration {path}: {error.strerror}") from None
        except ValueError:
            raise ArtifactError(f"{path} is not a calibration, or is damaged: {_REMEDY}") from None
        if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
            raise ArtifactError(f"{path} is not a calibration that this version can read: {_REMEDY}")
        try:
            z = np.array(content.pop("z"), dtype=np.float64)
            made = cls(z=z, too_short=int(content.pop("too_short")), **content)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ArtifactError(f"{path} is damaged ({error}): {_REMEDY}") from None
        names = (made.scheme, made.test, made.config_hash, made.key_fingerprint, made.version)
        ascending = z.ndim == 1 and len(z) > 0 and np.isfinite(z).all() and not (np.diff(z) < 0).any()
        if not (ascending and all(isinstance(name, str) for name in names)):
            raise ArtifactError(f"{path} is damaged (names must be text, z finite and ascending): {_REMEDY}")
        return made
