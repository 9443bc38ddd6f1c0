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
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark import storage
from dewmark.errors import InputError
from dewmark.stats.metrics import Interval, Rate, Spread

__all__ = ["NEGATIVES", "Against", "Cell", "Evaluation", "Operating", "Share"]

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
