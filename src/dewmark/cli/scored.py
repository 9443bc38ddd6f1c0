"""Files of marked and unmarked texts for ``dewmark evaluate``, as rows of scores: read, or scored now."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dewmark import storage
from dewmark.errors import ConfigError, InputError
from dewmark.evaluation.scores import CLEAN, HUMAN, MARKED, UNMARKED, ScoreRow

if TYPE_CHECKING:
    from dewmark.cli.progress import Progress
    from dewmark.scheme import BoundScheme

__all__ = ["Source", "Sources", "read_numbers", "score_texts"]

_SCORES = ("z", "score")  # where a row may hold its score, the first that is there
_LENGTHS = ("tokens_scored", "tokens")
_LARGEST = 1e6  # a score beyond it says no more


@dataclass(frozen=True, slots=True)
class Source:
    """One file: what its texts are, and which attack they went through."""

    kind: str
    attack: str
    file: Path

    @classmethod
    def parse(cls, kind: str, given: str) -> Source:
        """Read ``FILE`` or ``ATTACK=FILE``."""
        attack, sign, file = given.partition("=")
        if not sign or Path(given).exists():
            return cls(kind, CLEAN, Path(given))
        if not attack or not file:
            raise ConfigError(f"expected FILE or ATTACK=FILE, got {given!r}")
        return cls(kind, attack, Path(file))


@dataclass(frozen=True, slots=True)
class Sources:
    """All files of a command."""

    files: tuple[Source, ...]

    @classmethod
    def named(cls, positives: Sequence[str], negatives: Sequence[str], human: Sequence[str]) -> Sources:
        """The files that the options name."""
        kinds = ((MARKED, positives), (UNMARKED, negatives), (HUMAN, human))
        return cls(tuple(Source.parse(kind, given) for kind, names in kinds for given in names))

    def check(self) -> None:
        """Refuse what cannot be compared."""
        kinds = {source.kind for source in self.files}
        if MARKED not in kinds or len(kinds) < 2:
            raise ConfigError(
                "give --positives FILE, and --negatives FILE or --human FILE to compare them with"
            )

    def rows(self) -> Iterator[tuple[Source, str, dict[str, Any]]]:
        """(file, where the row stands, row) of all rows."""
        for source in self.files:
            empty = True
            for number, row in storage.read_jsonl(source.file):
                empty = False
                yield source, f"{source.file}, line {number}", row
            if empty:
                raise InputError(f"{source.file} is empty: there is nothing to compare")

    def to_dict(self) -> list[dict[str, str]]:
        """Plain JSON values; a file by its name."""
        return [{"kind": each.kind, "attack": each.attack, "file": each.file.name} for each in self.files]


class _Runs:
    """Numbers the runs that a field tells apart, in the order in which they occur."""

    def __init__(self, field: str | None) -> None:
        self._field = field
        self._numbers: dict[str, int] = {}

    def number(self, row: dict[str, Any], where: str) -> int:
        if self._field is None:
            return 0
        if self._field not in row:
            raise InputError(f'{where} has no "{self._field}", which --seeds names')
        return self._numbers.setdefault(str(row[self._field]), len(self._numbers))


def read_numbers(sources: Sources, *, field: str | None, seeds: str | None) -> list[ScoreRow]:
    """Rows that hold a score already, and a p-value and a length where they do."""
    runs, found = _Runs(seeds), []
    label: str | None = None
    for source, where, row in sources.rows():
        name = next((each for each in ((field,) if field else _SCORES) if each in row), None)
        if name is None:
            remedy = (
                "add --key FILE to score its text" if "text" in row else "write it by: dewmark detect --json"
            )
            raise InputError(f"{where} has no {field or 'z and no score'}: {remedy}")
        label = label or str(row.get("scheme", "scores"))
        score, p_value = _number(row, name, where), row.get("p_value")
        found.append(
            ScoreRow(
                scheme=label,
                attack=source.attack,
                seed=runs.number(row, where),
                kind=source.kind,
                id=where,
                score=score,
                p_value=None if p_value is None else _number(row, "p_value", where),
                tokens=int(next((_number(row, each, where) for each in _LENGTHS if each in row), 0)),
            )
        )
    return found


def _number(row: dict[str, Any], name: str, where: str) -> float:
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InputError(f"{where}: {name} must be a number, got {value!r}")
    return float(value)


def score_texts(
    bound: BoundScheme,
    sources: Sources,
    *,
    seeds: str | None,
    test: str | None,
    batch_size: int,
    progress: Progress,
) -> list[ScoreRow]:
    """Score every row's text under one key; prompts are not used, as a detector would not know them."""
    from dewmark.cli.inputs import Item, batched
    from dewmark.cli.scoring import detect_items
    from dewmark.scheme import check_test, check_text

    check_test(test, bound.tests)
    runs = _Runs(seeds)
    places: list[tuple[Source, str, int]] = []
    items: list[Item] = []
    for source, where, row in sources.rows():
        if "text" not in row:
            raise InputError(f'{where} has no "text" to score')
        text = row["text"]
        if not isinstance(text, str) or text.strip():
            check_text(text, f"{where}: text")
        places.append((source, where, runs.number(row, where)))
        items.append(Item(where, text, None))
    found: list[ScoreRow] = []
    for batch in batched(items, batch_size):
        detections = detect_items(bound, batch, fpr=0.01, test=test)
        for detection in detections:
            source, where, seed = places[len(found)]
            z = 0.0 if math.isnan(detection.z) else min(max(detection.z, -_LARGEST), _LARGEST)
            found.append(
                ScoreRow(
                    scheme=bound.scheme.name,
                    attack=source.attack,
                    seed=seed,
                    kind=source.kind,
                    id=where,
                    score=z,
                    p_value=detection.p_value,
                    tokens=detection.tokens_scored,
                )
            )
        progress("scoring", len(found), len(items))
    return found
