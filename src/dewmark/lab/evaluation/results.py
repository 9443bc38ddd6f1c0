"""What the protocol finds, as frozen values that go to JSON and come back equal.

    Evaluation
    └── Cell                one scheme under one attack
        ├── Against         … judged by one kind of negatives: AUROC, and for each nominal rate
        │   └── Operating   the share of marked texts found, and what the threshold really lets through
        └── Share           … judged by p-values alone: found, and falsely called marked

Kinds of negatives: ``clean``, the host's own unmarked texts as they were written (the paper's thresholds);
``matched``, the same texts after the same attack; ``human`` and ``human-matched`` likewise. Against ``clean``
an attack that shifts the scores of every text, marked or not, looks like robustness; against ``matched`` it
does not.

Scored texts as rows: what the protocol is computed from, and the JSONL file that holds them.

One row is one text under one key: which scheme's detector scored it, which attack it went through, the seed
of the run (each seed has its own key and texts), and whether it is marked, the host's own unmarked text, or
written by people. Larger scores mean more marked, whatever the scheme.

Boundary: plain values in and out; nothing here scores a text.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark import storage
from dewmark.errors import InputError
from dewmark.stats.metrics import Interval, Rate, Spread

__all__ = [
    "CLEAN",
    "HUMAN",
    "KINDS",
    "MARKED",
    "NEGATIVES",
    "UNMARKED",
    "Against",
    "Cell",
    "Evaluation",
    "Operating",
    "ScoreRow",
    "Share",
    "read_scores",
    "write_scores",
]

MARKED, UNMARKED, HUMAN = "marked", "unmarked", "human"

KINDS = (MARKED, UNMARKED, HUMAN)

CLEAN = "none"  # the attack that changes nothing


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One text's score under one key; ``p_value`` is None where the detector gives none.

    ``kept`` is the share of its words that an attack left, where that is known.
    """

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
            raise InputError(f"the kind of a scored text is one of {', '.join(KINDS)}, got {self.kind!r}")
        if math.isnan(self.score):
            raise InputError(f"text {self.id} has no score (NaN): leave out what was not scored")
        if self.p_value is not None and not 0.0 <= self.p_value <= 1.0:
            raise InputError(f"the p-value of text {self.id} must lie in [0, 1], got {self.p_value}")

    @property
    def place(self) -> tuple[str, str, int, str, str]:
        """What no other row of a run shares."""
        return self.scheme, self.attack, self.seed, self.kind, self.id

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        found = dataclasses.asdict(self)
        if self.kept is None:
            del found["kept"]
        return found

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> ScoreRow:
        """Read `to_dict`'s fields; others are ignored."""
        try:
            p_value, kept = row.get("p_value"), row.get("kept")
            return cls(
                scheme=str(row["scheme"]),
                attack=str(row["attack"]),
                seed=int(row["seed"]),
                kind=str(row["kind"]),
                id=str(row["id"]),
                score=float(row["score"]),
                p_value=None if p_value is None else float(p_value),
                tokens=int(row["tokens"]),
                kept=None if kept is None else float(kept),
            )
        except KeyError as error:
            raise InputError(f"a scored text needs the field {error}") from None
        except (TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"a scored text has a field of the wrong kind: {error}") from None


def read_scores(path: Path) -> list[ScoreRow]:
    """All rows of a JSONL file; a broken one is told with its line."""
    rows = []
    for number, row in storage.read_jsonl(path):
        try:
            rows.append(ScoreRow.from_dict(row))
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from None
    if not rows:
        raise InputError(f"{path} is empty: it needs one scored text per line")
    return rows


def write_scores(path: Path, rows: Iterable[ScoreRow]) -> None:
    """Write rows as JSONL; the file appears whole or not at all."""
    with storage.atomic_write(path) as stream:
        for row in rows:
            stream.write((json.dumps(row.to_dict(), ensure_ascii=False) + "\n").encode("utf-8"))


NEGATIVES = ("clean", "matched", "human", "human-matched")


@dataclass(frozen=True, slots=True)
class Operating:
    """Marked texts above the threshold that ``rate`` of the calibrating negatives may pass.

    ``tpr`` and ``fpr`` are over seeds, each judged by the other seeds' threshold; ``found`` and ``passed``
    are the same texts counted together, with exact intervals. ``attacked`` counts the negatives of the same
    origin that went through the cell's attack: their rate is the real false-positive rate of this threshold
    there. ``shift_p`` is Fisher's one-sided exact p-value that it is no higher than ``passed``. ``few``:
    there were fewer than 1/rate calibrating negatives, so that the threshold is merely their largest score.
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
class Against:
    """A cell's marked texts beside one kind of negatives.

    ``auroc`` is over seeds, ``interval`` the 95% interval of its mean. ``held_out`` is False where there is
    one seed only, whose threshold is then its own.
    """

    negatives: str
    texts: int
    auroc: Spread
    interval: Interval
    held_out: bool
    at: tuple[Operating, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """Texts with a p-value below ``rate``: marked ones, and unmarked and human ones of the same attack."""

    rate: float
    found: Rate
    unmarked: Rate | None
    human: Rate | None


@dataclass(frozen=True, slots=True)
class Cell:
    """One scheme under one attack.

    ``tokens`` is the median length of the marked texts. ``shift`` is how far the attack moves the mean score
    of the host's unmarked texts, in standard deviations of the unattacked ones. ``kept`` is the mean share of
    the words of marked texts that the attack left, where that is known.
    """

    scheme: str
    attack: str
    seeds: tuple[int, ...]
    texts: int
    tokens: float
    against: tuple[Against, ...]
    shares: tuple[Share, ...]
    shift: float | None
    kept: float | None = None

    def beside(self, negatives: str) -> Against | None:
        """The comparison with one kind of negatives, if the run had them."""
        return next((each for each in self.against if each.negatives == negatives), None)

    def at(self, negatives: str, rate: float) -> Operating | None:
        """The operating point at a nominal rate of one kind of negatives, if the run had them."""
        beside = self.beside(negatives)
        return next((each for each in beside.at if each.rate == rate), None) if beside else None

    def share(self, rate: float) -> Share | None:
        """The share of texts with a p-value below ``rate``, if the detector gave p-values."""
        return next((each for each in self.shares if each.rate == rate), None)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All cells of a run, in the order in which schemes and attacks first occur, and what to keep in mind."""

    rates: tuple[float, ...]
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()

    @property
    def schemes(self) -> list[str]:
        """The schemes, each once."""
        return list(dict.fromkeys(cell.scheme for cell in self.cells))

    @property
    def attacks(self) -> list[str]:
        """The attacks, each once."""
        return list(dict.fromkeys(cell.attack for cell in self.cells))

    def cell(self, scheme: str, attack: str) -> Cell | None:
        """One cell, if it was run."""
        return next((each for each in self.cells if (each.scheme, each.attack) == (scheme, attack)), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Evaluation:
        """Read `to_dict`'s values."""
        try:
            return cls(
                rates=tuple(data["rates"]),
                cells=tuple(_cell(each) for each in data["cells"]),
                notes=tuple(data["notes"]),
            )
        except (KeyError, TypeError) as error:
            raise InputError(f"this is no evaluation of this version ({error}): evaluate again") from None

    def save(self, path: Path) -> None:
        """Write JSON; the file appears whole or not at all."""
        with storage.atomic_write(path) as stream:
            stream.write((json.dumps(self.to_dict(), ensure_ascii=False, indent=1) + "\n").encode("utf-8"))

    @classmethod
    def load(cls, path: Path) -> Evaluation:
        """Read what `save` wrote."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from None
        except ValueError:
            raise InputError(f"{path} is not JSON: evaluate again") from None
        return cls.from_dict(data)


def _cell(data: Mapping[str, Any]) -> Cell:
    return Cell(
        **{
            **data,
            "seeds": tuple(data["seeds"]),
            "against": tuple(_against(each) for each in data["against"]),
            "shares": tuple(_share(each) for each in data["shares"]),
        }
    )


def _against(data: Mapping[str, Any]) -> Against:
    return Against(
        **{
            **data,
            "auroc": _spread(data["auroc"]),
            "interval": Interval(**data["interval"]),
            "at": tuple(_operating(each) for each in data["at"]),
        }
    )


def _operating(data: Mapping[str, Any]) -> Operating:
    return Operating(
        **{
            **data,
            "tpr": _spread(data["tpr"]),
            "fpr": _spread(data["fpr"]),
            "found": Rate(**data["found"]),
            "passed": Rate(**data["passed"]),
            "attacked": _rate(data["attacked"]),
            "thresholds": tuple(data["thresholds"]),
        }
    )


def _share(data: Mapping[str, Any]) -> Share:
    return Share(data["rate"], Rate(**data["found"]), _rate(data["unmarked"]), _rate(data["human"]))


def _rate(data: Mapping[str, Any] | None) -> Rate | None:
    return None if data is None else Rate(**data)


def _spread(data: Mapping[str, Any]) -> Spread:
    return Spread(data["mean"], data["half_range"], tuple(data["values"]))
