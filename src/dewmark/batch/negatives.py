"""Unmarked texts under a key: audit its false-positive rate, calibrate on them, draw a key that passes.

Keys differ by chance in how often they call unmarked texts marked. An audit measures the rate for one key,
by language and length; a calibration ranks a text's z among those of unmarked texts under the same key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark.batch.inputs import Document, batched, count_lines, read_corpus, read_rows
from dewmark.core.keys import Key
from dewmark.detector import detect_texts
from dewmark.errors import ConfigError, InputError
from dewmark.scheme import BoundScheme, check_test
from dewmark.stats.audit import Audit, Outcome, audit
from dewmark.stats.calibration import Calibration
from dewmark.text.languages import LanguagePolicy, guess_language
from dewmark.types import Detection, Verdict
from dewmark.watermark import identify
from dewmark.workspace import Progress, silent

__all__ = ["AuditedText", "Negatives", "audit_texts", "calibrate_file", "draw_key"]

_KEYS_PER_ROUND = 5  # most keys pass, so few are drawn ahead; texts are read once for all of them


@dataclass(frozen=True, slots=True)
class AuditedText:
    """A text that is long enough for a verdict; ``length`` counts scored tokens."""

    id: str | int
    language: str
    length: int
    p_value: float


class Negatives:
    """Texts that are known to be unmarked, with their languages (guessed where the file has none)."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = list(documents)
        self.languages = [each.language or guess_language(each.text) for each in documents]

    @classmethod
    def read(cls, files: Sequence[str]) -> Negatives:
        """Read text files and JSONL files."""
        if not files:
            raise ConfigError("no texts to audit on: give text files or JSONL files")
        return cls(read_corpus(files))

    @property
    def texts(self) -> list[str]:
        """The texts."""
        return [document.text for document in self.documents]

    @property
    def prompts(self) -> list[str | None]:
        """The prompt of each text, None where it is unknown."""
        return [document.prompt for document in self.documents]

    def audited(self, detections: Sequence[Detection]) -> list[AuditedText]:
        """The texts that are long enough for a verdict, given the detection of each text."""
        rows = zip(self.documents, self.languages, detections, strict=True)
        return [
            AuditedText(
                id=str(number) if document.id is None else document.id,
                language=language,
                length=detection.tokens_scored,
                p_value=detection.p_value,
            )
            for number, (document, language, detection) in enumerate(rows)
            if detection.verdict is not Verdict.TOO_SHORT
        ]


def audit_texts(
    bound: BoundScheme,
    negatives: Negatives,
    *,
    test: str | None = None,
    batch_size: int = 32,
    progress: Progress = silent,
) -> tuple[Audit, list[AuditedText]]:
    """Measure a key's false-positive rate; returns the audit and the texts it is based on."""
    texts, prompts = negatives.texts, negatives.prompts
    anywhere = bound.judging(LanguagePolicy(every=True))  # an audit is what a refused language needs
    found: list[Detection] = []
    for start in range(0, len(texts), batch_size):
        part = slice(start, start + batch_size)
        made = anywhere.detect_batch(texts[part], prompts=prompts[part], test=test)
        found += [dataclasses.replace(detection, tokens=()) for detection in made]  # they take much memory
        progress("scoring", len(found), len(texts))
    audited = negatives.audited(found)
    return _audit(audited), audited


def draw_key(
    negatives: Negatives,
    *,
    tries: int = 20,
    host: str | None = None,
    scheme: str | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> tuple[Key, int, Audit]:
    """The first of at most ``tries`` fresh keys that passes the audit, the number drawn, and its audit."""
    if scheme == "none":
        raise ConfigError("scheme none has no key to audit: name the scheme that will mark")
    audits: list[Audit] = []
    while len(audits) < tries:
        keys = [Key.generate() for _ in range(min(_KEYS_PER_ROUND, tries - len(audits)))]
        rows = identify(
            negatives.texts,
            keys,
            prompts=negatives.prompts,
            host=host,
            scheme=scheme or "dew",
            settings=settings,
            languages=LanguagePolicy(every=True),
            progress=progress,
        )
        for i, key in enumerate(keys):
            found = _audit(negatives.audited([row.detections[i] for row in rows]))
            audits.append(found)
            if found.outcome is Outcome.PASSES:
                return key, len(audits), found
            if found.outcome is Outcome.CANNOT_TELL:
                raise InputError(f"these texts are too few to show that a key is good. {found.sentence}")
        progress("drawing keys", len(audits), tries)
    best = max(audits, key=lambda each: each.worst.corrected)
    raise InputError(f"none of {tries} keys passed, and none was written; the best: {best.sentence}")


def calibrate_file(
    path: str | Path,
    bound: BoundScheme,
    *,
    by: str | None = None,
    test: str | None = None,
    batch_size: int = 32,
    progress: Progress = silent,
) -> Calibration:
    """Score the unmarked texts of a JSONL file under a key, so that other texts can be ranked among them.

    ``by`` names a field of the rows, such as a language, by which texts are ranked separately.
    """
    path = Path(path)
    check_test(test, bound.tests)
    total = count_lines(path)
    bound = bound.judging(LanguagePolicy(every=True))  # ranks among these texts need no known language

    def scored() -> Iterator[tuple[Detection, str | None]]:
        done = 0
        for batch in batched(read_rows(path, by=by), batch_size):
            texts, prompts = [row.text for row in batch], [row.prompt for row in batch]
            found = detect_texts(bound, texts, prompts=prompts, test=test)
            yield from zip(found, (row.group for row in batch), strict=True)
            done += len(batch)
            progress("scoring negatives", done, total)

    return Calibration.from_detections(scored(), config_hash=bound.config_hash, by=by)


def _audit(texts: Sequence[AuditedText]) -> Audit:
    return audit(
        [text.p_value for text in texts],
        languages=[text.language for text in texts],
        lengths=[text.length for text in texts],
    )
