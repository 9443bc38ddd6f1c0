"""JSONL files of marked and unmarked texts as `ScoreRow`s: their scores are read, or computed now.

A file is given as ``FILE``, or as ``ATTACK=FILE`` if its texts went through an attack.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark import storage
from dewmark.batch.inputs import parse_text_row, warn_other_scheme
from dewmark.detect import detect_texts
from dewmark.errors import ConfigError, InputError
from dewmark.scheme import BoundScheme, check_test
from dewmark.workspace import Progress, silent
from dewmark_lab.evaluation.results import CLEAN, HUMAN, MARKED, UNMARKED, ScoreRow

_SCORE_FIELDS = ("z", "score")  # the first that a row has
_LENGTH_FIELDS = ("tokens_scored", "tokens")
_LARGEST = 1e6


@dataclass(frozen=True, slots=True)
class ScoreFile:
    """A file, the kind of its texts, and the attack that they went through."""

    kind: str
    attack: str
    file: Path

    @classmethod
    def parse(cls, kind: str, given: str) -> ScoreFile:
        """Parse ``FILE`` or ``ATTACK=FILE``."""
        attack, sign, file = given.partition("=")
        if not sign or Path(given).exists():
            return cls(kind, CLEAN, Path(given))
        if not attack or not file:
            raise ConfigError(f"expected FILE or ATTACK=FILE, got {given!r}")
        return cls(kind, attack, Path(file))


def parse_files(
    positives: Sequence[str], negatives: Sequence[str], human: Sequence[str]
) -> tuple[ScoreFile, ...]:
    """Parse lists of ``FILE`` or ``ATTACK=FILE``."""
    if not positives or not (negatives or human):
        raise ConfigError("give --positives FILE, and --negatives FILE or --human FILE to compare them with")
    kinds = ((MARKED, positives), (UNMARKED, negatives), (HUMAN, human))
    return tuple(ScoreFile.parse(kind, given) for kind, names in kinds for given in names)


def _rows(
    files: Sequence[ScoreFile], seeds: str | None
) -> Iterator[tuple[ScoreFile, str, int, dict[str, Any]]]:
    """(file, location, number of the run, row) of all rows.

    ``seeds`` is the field that tells runs apart; they are numbered in the order in which they occur.
    """
    runs: dict[str, int] = {}
    for each in files:
        empty = True
        for number, row in storage.read_jsonl(each.file):
            empty, where = False, f"{each.file}, line {number}"
            if seeds is not None and seeds not in row:
                raise InputError(f'{where} has no "{seeds}", which --seeds names')
            run = 0 if seeds is None else runs.setdefault(str(row[seeds]), len(runs))
            yield each, where, run, row
        if empty:
            raise InputError(f"{each.file} is empty: there is nothing to compare")


def read_score_files(
    files: Sequence[ScoreFile], *, field: str | None = None, seeds: str | None = None
) -> list[ScoreRow]:
    """Rows that already have a score and, optionally, a p-value and a length.

    ``field`` names the score (default: z, otherwise score), ``seeds`` the field that tells runs apart.
    """
    found: list[ScoreRow] = []
    label: str | None = None
    for source, where, run, row in _rows(files, seeds):
        name = next((each for each in ((field,) if field else _SCORE_FIELDS) if each in row), None)
        if name is None:
            remedy = (
                "add --key FILE to score its text" if "text" in row else "make it by dewmark detect --json"
            )
            raise InputError(f"{where} has no {field or 'z and no score'}: {remedy}")
        label = label or str(row.get("scheme", "scores"))
        score, p_value = _number(row, name, where), row.get("p_value")
        found.append(
            ScoreRow(
                scheme=label,
                attack=source.attack,
                seed=run,
                kind=source.kind,
                id=where,
                score=score,
                p_value=None if p_value is None else _number(row, "p_value", where),
                tokens=int(next((_number(row, each, where) for each in _LENGTH_FIELDS if each in row), 0)),
            )
        )
    return found


def score_files(
    bound: BoundScheme,
    files: Sequence[ScoreFile],
    *,
    seeds: str | None = None,
    test: str | None = None,
    batch_size: int = 32,
    progress: Progress = silent,
) -> list[ScoreRow]:
    """Score every row's text under one key, without its prompt, which a detector would not know."""
    check_test(test, bound.tests)
    places: list[tuple[ScoreFile, str, int]] = []
    texts: list[str] = []
    for source, where, run, row in _rows(files, seeds):
        parsed = parse_text_row(row, where, index=0)
        if source.kind == MARKED:
            warn_other_scheme([parsed], bound.scheme.name)
        texts.append(parsed.text)
        places.append((source, where, run))
    name = bound.scheme.name
    found: list[ScoreRow] = []
    for start in range(0, len(texts), batch_size):
        batch = texts[start : start + batch_size]
        for numbers in detection_numbers(bound, batch, test=test):
            source, where, seed = places[len(found)]
            found.append(
                ScoreRow(scheme=name, attack=source.attack, seed=seed, kind=source.kind, id=where, **numbers)
            )
        progress("scoring", len(found), len(texts))
    return found


def detection_numbers(
    bound: BoundScheme, texts: Sequence[str], *, test: str | None = None, score: str = "z"
) -> list[dict[str, Any]]:
    """Score, p-value and length of each text; a blank text has score 0 and p-value 1.

    The score is z or, with ``score="mean"``, the mean score of the text's tokens.
    """
    return [
        {
            "score": finite_score(one.z if score == "z" else one.score),
            "p_value": one.p_value,
            "tokens": one.tokens_scored,
        }
        for one in (each.judged for each in detect_texts(texts, bound, test=test, explain=False, blank=True))
    ]


def finite_score(z: float) -> float:
    """A z-score that JSON can hold: 0 for NaN, infinities clipped."""
    return 0.0 if math.isnan(z) else min(max(z, -_LARGEST), _LARGEST)


def _number(row: dict[str, Any], name: str, where: str) -> float:
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InputError(f"{where}: {name} must be a number, got {value!r}")
    return float(value)
