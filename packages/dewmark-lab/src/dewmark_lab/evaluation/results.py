"""Scored texts and the results that the protocol computes from them, as frozen, JSON-serializable values.

A `ScoreRow` is one text under one key: the scheme whose detector scored it, the attack it went through, the
seed of the run (each has its own texts, and either its own key or that of all), and whether it is marked,
unmarked text of the host, or human-written. Larger scores mean more marked, whatever the scheme.

    Evaluation
    └── Cell                     one scheme under one attack
        ├── Comparison           … against one kind of negatives: AUROC, and at each nominal rate
        │   └── OperatingPoint   the true-positive rate, and the threshold's actual false-positive rate
        └── PValueShare          … by p-values alone: true and false positives

Kinds of negatives: ``clean`` are the host's unmarked texts as written (the paper's thresholds), ``matched``
the same texts after the same attack; ``human`` and ``human-matched`` likewise. An attack that shifts the
scores of all texts, marked or not, looks like robustness against ``clean`` but not against ``matched``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark import storage
from dewmark.errors import InputError
from dewmark.types import Plain
from dewmark_audit.intervals import Interval
from dewmark_audit.rates import Rate
from dewmark_lab.metrics import Spread

MARKED, UNMARKED, HUMAN = "marked", "unmarked", "human"
KINDS = (MARKED, UNMARKED, HUMAN)
CLEAN = "none"  # the label of unattacked texts
NEGATIVES = ("clean", "matched", "human", "human-matched")


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One text's score under one key; ``kept`` is the share of its words that the attack kept, if known."""

    scheme: str
    attack: str
    seed: int
    kind: str
    id: str
    score: float
    p_value: float | None
    tokens: int
    kept: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"the kind of a text must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if math.isnan(self.score):
            raise InputError(f"the score of text {self.id} is NaN: leave out texts that were not scored")
        if self.p_value is not None and not 0.0 <= self.p_value <= 1.0:
            raise InputError(f"the p-value of text {self.id} must lie in [0, 1], got {self.p_value}")

    @property
    def place(self) -> tuple[str, str, int, str, str]:
        """The fields that identify a row within a run."""
        return self.scheme, self.attack, self.seed, self.kind, self.id

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        values = dataclasses.asdict(self)
        if self.kept is None:
            del values["kept"]
        return values

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> ScoreRow:
        """The inverse of `to_dict`; unknown fields are ignored."""
        types: dict[str, type] = {"scheme": str, "attack": str, "kind": str, "id": str}
        types |= {"seed": int, "score": float, "tokens": int}
        if missing := types.keys() - row.keys():
            raise InputError(f"a scored text needs the field {min(missing)!r}")
        try:
            found: dict[str, Any] = {name: kind(row[name]) for name, kind in types.items()}
            for name in ("p_value", "kept"):
                found[name] = None if row.get(name) is None else float(row[name])
        except (TypeError, ValueError) as error:
            raise InputError(f"a scored text has a field of the wrong type: {error}") from None
        return cls(**found)


def scores_in(path: Path) -> list[ScoreRow]:
    """Read a JSONL file of scores; errors name the line."""
    rows = []
    for number, row in storage.read_jsonl(path):
        try:
            rows.append(ScoreRow.from_dict(row))
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from None
    if not rows:
        raise InputError(f"{path} is empty: it must have one scored text per line")
    return rows


def write_scores(path: Path, rows: Iterable[ScoreRow]) -> None:
    """Write a JSONL file of scores atomically."""
    with storage.atomic_write(path) as stream:
        stream.write(storage.encode_jsonl(row.to_dict() for row in rows))


@dataclass(frozen=True, slots=True)
class OperatingPoint(Plain):
    """Detection at the threshold that a share ``rate`` of the calibrating negatives exceeds.

    ``tpr`` and ``fpr`` are over seeds, each with the threshold from the other seeds; ``found`` and ``passed``
    count the same marked and negative texts of all seeds together, with exact intervals. ``attacked`` counts
    negatives of the same origin that went through the cell's attack: their rate is the threshold's actual
    false-positive rate under attack. ``shift_p`` is Fisher's one-sided exact p-value of the hypothesis that
    this rate is no higher than that of ``passed``. ``few`` means fewer than 1/rate calibrating negatives: the
    threshold is their largest score.
    """

    rate: float
    tpr: Spread
    fpr: Spread
    found: Rate
    passed: Rate
    attacked: Rate | None
    shift_p: float | None
    thresholds: tuple[float, ...]
    few: bool


@dataclass(frozen=True, slots=True)
class Comparison(Plain):
    """A cell's marked texts against one kind of negatives.

    ``auroc`` is over seeds and ``interval`` the 95% interval of its mean. ``held_out`` is False for a single
    seed, whose threshold comes from its own negatives.
    """

    negatives: str
    texts: int
    auroc: Spread
    interval: Interval
    held_out: bool
    at: tuple[OperatingPoint, ...]


@dataclass(frozen=True, slots=True)
class PValueShare(Plain):
    """Texts with a p-value below ``rate``: marked ones, and unmarked and human ones after the same attack."""

    rate: float
    found: Rate
    unmarked: Rate | None
    human: Rate | None


@dataclass(frozen=True, slots=True)
class ResultCell(Plain):
    """One scheme under one attack.

    ``tokens`` is the median length of the marked texts, ``score`` their mean score. ``shift`` is how far the
    attack moves the mean score of the host's unmarked texts, in standard deviations of the unattacked ones.
    ``kept`` is the mean share of words that the attack kept in marked texts, if known.
    """

    scheme: str
    attack: str
    seeds: tuple[int, ...]
    texts: int
    tokens: float
    against: tuple[Comparison, ...]
    shares: tuple[PValueShare, ...]
    shift: float | None
    score: float
    kept: float | None = None

    def comparison(self, negatives: str) -> Comparison | None:
        """The comparison with one kind of negatives, or None if the run has none."""
        return next((each for each in self.against if each.negatives == negatives), None)

    def at(self, negatives: str, rate: float) -> OperatingPoint | None:
        """The operating point at a nominal rate of one kind of negatives, or None if the run has none."""
        found = self.comparison(negatives)
        return next((each for each in found.at if each.rate == rate), None) if found else None

    def share(self, rate: float) -> PValueShare | None:
        """The shares of texts with a p-value below ``rate``, or None if the detector has no p-values."""
        return next((each for each in self.shares if each.rate == rate), None)


@dataclass(frozen=True, slots=True)
class Evaluation(Plain):
    """All cells of a run, in the order in which schemes and attacks first occur, and caveats."""

    rates: tuple[float, ...]
    cells: tuple[ResultCell, ...]
    notes: tuple[str, ...] = ()

    @property
    def schemes(self) -> list[str]:
        """The distinct schemes."""
        return list(dict.fromkeys(cell.scheme for cell in self.cells))

    @property
    def attacks(self) -> list[str]:
        """The distinct attacks."""
        return list(dict.fromkeys(cell.attack for cell in self.cells))

    def cell(self, scheme: str, attack: str) -> ResultCell | None:
        """The cell of a scheme under an attack, or None if there is none."""
        return next((each for each in self.cells if (each.scheme, each.attack) == (scheme, attack)), None)
