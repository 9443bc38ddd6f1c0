"""JSONL files of marked and unmarked texts as `ScoreRow`s: their scores are read, or computed now.

A file is given as ``FILE``, or as ``ATTACK=FILE`` if its texts went through an attack.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark import storage, translation
from dewmark.batch.inputs import parse_text_row, warn_other_scheme
from dewmark.detector import detect_texts
from dewmark.errors import ConfigError, InputError
from dewmark.scheme import BoundScheme, check_test
from dewmark.types import Detection
from dewmark.workspace import Progress, silent
from dewmark_lab.evaluation.quality import TextPair
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


@dataclass(frozen=True, slots=True)
class ScoreFiles:
    """All files of one evaluation."""

    files: tuple[ScoreFile, ...]

    @classmethod
    def parse(cls, positives: Sequence[str], negatives: Sequence[str], human: Sequence[str]) -> ScoreFiles:
        """Parse lists of ``FILE`` or ``ATTACK=FILE``."""
        kinds = ((MARKED, positives), (UNMARKED, negatives), (HUMAN, human))
        return cls(tuple(ScoreFile.parse(kind, given) for kind, names in kinds for given in names))

    def check(self) -> None:
        """Raise `ConfigError` unless there are marked texts and others to compare them with."""
        kinds = {each.kind for each in self.files}
        if MARKED not in kinds or len(kinds) < 2:
            raise ConfigError(
                "give --positives FILE, and --negatives FILE or --human FILE to compare them with"
            )

    def rows(self) -> Iterator[tuple[ScoreFile, str, dict[str, Any]]]:
        """(file, location, row) of all rows."""
        for each in self.files:
            empty = True
            for number, row in storage.read_jsonl(each.file):
                empty = False
                yield each, f"{each.file}, line {number}", row
            if empty:
                raise InputError(f"{each.file} is empty: there is nothing to compare")

    def to_dict(self) -> list[dict[str, str]]:
        """Plain JSON values; files by name."""
        return [{"kind": each.kind, "attack": each.attack, "file": each.file.name} for each in self.files]


def paired_texts(files: ScoreFiles) -> list[TextPair]:
    """The unattacked marked texts beside the unmarked ones of the same prompt and seed, if rows say so."""
    texts: dict[str, dict[tuple[str, str], str]] = {MARKED: {}, UNMARKED: {}}
    for source, _, row in files.rows():
        if source.attack == CLEAN and source.kind in texts and {"text", "prompt", "seed"} <= row.keys():
            texts[source.kind][str(row["prompt"]), str(row["seed"])] = str(row["text"])
    return [
        TextPair(place[0], text, texts[UNMARKED][place])
        for place, text in texts[MARKED].items()
        if place in texts[UNMARKED]
    ]


class _RunNumbers:
    """Numbers runs, which a field of the rows tells apart, in the order in which they occur."""

    def __init__(self, field: str | None) -> None:
        self._field = field
        self._numbers: dict[str, int] = {}

    def of(self, row: dict[str, Any], where: str) -> int:
        if self._field is None:
            return 0
        if self._field not in row:
            raise InputError(f'{where} has no "{self._field}", which --seeds names')
        return self._numbers.setdefault(str(row[self._field]), len(self._numbers))


def read_score_files(
    files: ScoreFiles, *, field: str | None = None, seeds: str | None = None
) -> list[ScoreRow]:
    """Rows that already have a score and, optionally, a p-value and a length.

    ``field`` names the score (default: z, otherwise score), ``seeds`` the field that tells runs apart.
    """
    runs, found = _RunNumbers(seeds), []
    label: str | None = None
    for source, where, row in files.rows():
        name = next((each for each in ((field,) if field else _SCORE_FIELDS) if each in row), None)
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
                seed=runs.of(row, where),
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
    files: ScoreFiles,
    *,
    seeds: str | None = None,
    test: str | None = None,
    translate_back: bool = False,
    batch_size: int = 32,
    progress: Progress = silent,
) -> list[ScoreRow]:
    """Score every row's text under one key, without its prompt, which a detector would not know.

    With ``translate_back`` a text in another language is also scored in English, and both attempts count.
    """
    check_test(test, bound.tests)
    runs = _RunNumbers(seeds)
    places: list[tuple[ScoreFile, str, int]] = []
    texts: list[str] = []
    for source, where, row in files.rows():
        parsed = parse_text_row(row, where, index=0)
        if source.kind == MARKED:
            warn_other_scheme([parsed], bound.scheme.name)
        texts.append(parsed.text)
        places.append((source, where, runs.of(row, where)))
    found: list[ScoreRow] = []
    for start in range(0, len(texts), batch_size):
        batch = texts[start : start + batch_size]
        english = translation.translate_back(batch, progress=progress) if translate_back else None
        for numbers in detection_numbers(bound, batch, english, test=test):
            source, where, seed = places[len(found)]
            found.append(
                ScoreRow(
                    scheme=bound.scheme.name,
                    attack=source.attack,
                    seed=seed,
                    kind=source.kind,
                    id=where,
                    **numbers,
                )
            )
        progress("scoring", len(found), len(texts))
    return found


def detection_numbers(
    bound: BoundScheme,
    texts: Sequence[str],
    english: Sequence[str | None] | None = None,
    *,
    test: str | None = None,
    score: str = "z",
) -> list[dict[str, Any]]:
    """Score, p-value and length of each text; a blank text has score 0 and p-value 1.

    The score is z or, with ``score="mean"``, the mean score of the text's tokens.

    ``english`` are the same texts translated back into English, None where there is no translation. A text
    with one is scored twice and has the larger score and p = 2 min(p₁, p₂), at most 1.
    """
    found = [_numbers(one, score) for one in detect_texts(bound, texts, test=test)]
    again = [(i, text) for i, text in enumerate(english or ()) if text is not None]
    if again:
        second = detect_texts(bound, [text for _, text in again], test=test)
        for (i, _), one in zip(again, second, strict=True):
            found[i] = _better(found[i], _numbers(one, score))
    return found


def _numbers(one: Detection, score: str) -> dict[str, Any]:
    value = one.z if score == "z" else one.score
    return {"score": finite_score(value), "p_value": one.p_value, "tokens": one.tokens_scored}


def _better(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The better of two attempts, both counted."""
    best = min(first, second, key=lambda each: float(each["p_value"]))
    return {
        **best,
        "score": max(first["score"], second["score"]),
        "p_value": min(1.0, 2.0 * best["p_value"]),
    }


def finite_score(z: float) -> float:
    """A z-score that JSON can hold: 0 for NaN, infinities clipped."""
    return 0.0 if math.isnan(z) else min(max(z, -_LARGEST), _LARGEST)


def _number(row: dict[str, Any], name: str, where: str) -> float:
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InputError(f"{where}: {name} must be a number, got {value!r}")
    return float(value)
