"""Scored texts as rows: what the protocol is computed from, and the JSONL file that holds them.

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

__all__ = ["CLEAN", "HUMAN", "KINDS", "MARKED", "UNMARKED", "ScoreRow", "read_scores", "write_scores"]

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
