"""How often a marked text of some length is found, as measured for a tenant's detector.

`dewmark power --out DETECTOR` measures a deployment's own texts and leaves ``power.json`` in the detector's
folder. Without it, the package's measurement of the default scheme is used, if the tenant has those settings;
its origin goes with every number, because another host may mark more weakly.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from dewmark.errors import ArtifactError
from dewmark.scheme import BoundScheme
from dewmark.stats.power import Strength


@dataclass(frozen=True, slots=True)
class MeasuredPower:
    """The strength of the mark in texts of ``host``; ``own`` if measured for this very detector.

    ``language`` is that of the measured texts, None if the measurement does not say.
    """

    strength: Strength
    host: str
    own: bool
    language: str | None = None

    def found_in_100(self, effective_length: float, *, level: float) -> dict[str, Any]:
        """The share found by a test of the whole text under one key at this level, as plain JSON values."""
        texts = self.strength.texts
        # a sample of n texts cannot show more than n in n + 1
        share = min(self.strength.found(effective_length, fpr=level), texts / (texts + 1))
        return {
            "found_in_100": min(math.floor(100.0 * share), 99),  # no sample shows that every text is found
            "host": self.host,
            "texts": texts,
            "own": self.own,
            "language": self.language,
        }


def read_power(bound: BoundScheme, folder: Path | None = None) -> MeasuredPower | None:
    """The measurement in a detector's folder, else the package's one if it is of this scheme, else None."""
    if folder is not None and (folder / "power.json").exists():
        return _parsed((folder / "power.json").read_text(encoding="utf-8"), bound, own=True)
    packaged = resources.files("dewmark_desk") / "data" / "power.json"
    return _parsed(packaged.read_text(encoding="utf-8"), bound, own=False)


def _parsed(text: str, bound: BoundScheme, *, own: bool) -> MeasuredPower | None:
    try:
        given = json.loads(text)
        same = given["scheme"] == bound.scheme.name and given["config"] == bound.scheme.to_dict()
        strength, language = Strength(**given["strength"]), given.get("language")
        measured = MeasuredPower(strength, str(given["host"]), own, language and str(language))
    except (ValueError, KeyError, TypeError):
        raise ArtifactError(
            "a detector's power.json is corrupt: write it again with dewmark power --out"
        ) from None
    if not same and own:
        raise ArtifactError(
            "a detector's power.json was measured with other settings: measure again with dewmark power --out"
        )
    return measured if same else None
