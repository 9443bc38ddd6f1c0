"""Unmarked texts under a key: audit its false-positive rate, calibrate on them, draw a key that passes.

Keys differ by chance in how often they call unmarked texts marked. An audit measures the rate for one key, by
kind of text, language and length, and how far texts are called marked together; a calibration ranks a text's
z among those of unmarked texts under the same key.

`Negatives.packaged` are unmarked texts that come with the package: prose, code, data, logs, letters, lists
and poems, and prose in languages inside and outside the encoder's. They were written for this purpose.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from dewmark.arrays import F32
from dewmark.batch.inputs import Document, batched, count_lines, read_corpus, read_rows
from dewmark.capabilities import GivesEvidence, capability
from dewmark.core.keys import Key
from dewmark.detector import detect_texts
from dewmark.errors import ConfigError, InputError
from dewmark.opening import identify, load_scheme
from dewmark.scheme import BoundScheme, check_test, for_languages
from dewmark.stats.audit import Audit, Outcome, audit
from dewmark.stats.calibration import Calibration
from dewmark.stats.one_key import directions
from dewmark.text.languages import LanguagePolicy, guess_language
from dewmark.types import Detection, Verdict
from dewmark.workspace import Progress, silent

__all__ = ["Negatives", "text_directions"]

PACKAGED = "packaged"
"""The name of the package's own texts, where files are named."""

_SENTENCES = 8  # in a text made of the package's ordinary sentences
_KEYS_PER_ROUND = 5  # most keys pass, so few are drawn ahead; texts are read once for all of them
_TEXTS_PER_BATCH = 32


@dataclass(frozen=True, slots=True)
class AuditedText:
    """A text that is long enough for a verdict; ``length`` counts scored tokens."""

    id: str | int
    language: str
    length: int
    p_value: float
    kind: str | None = None


class Negatives:
    """Texts that are known to be unmarked, with their languages (guessed where the file has none)."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = list(documents)
        self.languages = [each.language or guess_language(each.text) for each in documents]

    @classmethod
    def read(cls, files: Sequence[str]) -> Negatives:
        """Read text files and JSONL files; the name "packaged" stands for the texts of the package."""
        if not files:
            raise ConfigError(f"no texts to audit on: give text files or JSONL files, or {PACKAGED}")
        given = [file for file in files if file != PACKAGED]
        own = cls.packaged().documents if len(given) < len(files) else []
        return cls([*own, *(read_corpus(given) if given else ())])

    @classmethod
    def packaged(cls) -> Negatives:
        """The unmarked texts of the package."""
        found = [Document(text, name, language="en", kind="prose") for name, text in _data("registers")]
        for language, lines in _data("ordinary"):
            sentences = lines.splitlines()
            parts = len(sentences) // _SENTENCES
            for number in range(parts):
                text = "\n".join(sentences[number::parts])
                found.append(Document(text, f"{language}-{number}", language=language, kind="prose"))
        for name, lines in _data("negatives"):
            for number, line in enumerate(lines.splitlines()):
                row = json.loads(line)
                found.append(
                    Document(row["text"], f"{name}-{number}", language=row["language"], kind=row["kind"])
                )
        return cls(found)

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
                kind=document.kind,
            )
            for number, (document, language, detection) in enumerate(rows)
            if detection.verdict is not Verdict.TOO_SHORT
        ]

    def audit(self, detections: Sequence[Detection], found: F32 | None) -> tuple[Audit, list[AuditedText]]:
        """Audit a key, given the detection of each text and the `text_directions` of all (N, D)."""
        texts = self.audited(detections)
        judged = [detection.verdict is not Verdict.TOO_SHORT for detection in detections]
        result = audit(
            [text.p_value for text in texts],
            languages=[text.language for text in texts],
            lengths=[text.length for text in texts],
            kinds=[text.kind for text in texts],
            directions=None if found is None else found[judged],
        )
        return result, texts


def _data(folder: str) -> Iterator[tuple[str, str]]:
    """The names (without suffix) and contents of the files in a folder of the package's data."""
    files = (resources.files("dewmark") / "data" / folder).iterdir()
    for file in sorted(files, key=lambda each: each.name):
        yield file.name.partition(".")[0], file.read_text(encoding="utf-8")


def text_directions(
    bound: BoundScheme,
    texts: Sequence[str],
    prompts: Sequence[str | None] | None = None,
    *,
    batch_size: int = _TEXTS_PER_BATCH,
    progress: Progress = silent,
) -> F32 | None:
    """Unit vectors (N, D) whose inner products are the correlations of the texts' z over keys.

    They do not depend on the key. None if the scheme does not know how the scores of two texts vary together.
    """
    parts: list[F32] = []
    before = [""] * len(texts) if prompts is None else [prompt or "" for prompt in prompts]
    for start in range(0, len(texts), batch_size):
        part = slice(start, start + batch_size)
        try:
            able = capability(bound, GivesEvidence)
            evidence = able.evidence(bound.tokenize(texts[part]), bound.tokenize(before[part]))
        except ConfigError:  # no covariance over keys
            return None
        if not all(each.comparable for each in evidence):
            return None
        parts.append(directions(evidence))
        progress("comparing texts", min(start + batch_size, len(texts)), len(texts))
    return np.concatenate(parts) if parts else None


def audit_texts(
    bound: BoundScheme,
    negatives: Negatives,
    *,
    test: str | None = None,
    batch_size: int = _TEXTS_PER_BATCH,
    progress: Progress = silent,
) -> tuple[Audit, list[AuditedText]]:
    """Measure a key's false-positive rate; returns the audit and the texts it is based on."""
    texts, prompts = negatives.texts, negatives.prompts
    anywhere = for_languages(bound, LanguagePolicy(every=True))  # an audit is what a refused language needs
    found: list[Detection] = []
    for start in range(0, len(texts), batch_size):
        part = slice(start, start + batch_size)
        made = anywhere.detect_batch(texts[part], prompts=prompts[part], test=test)
        found += [dataclasses.replace(detection, tokens=()) for detection in made]  # they take much memory
        progress("scoring", len(found), len(texts))
    shared = text_directions(bound, texts, prompts, batch_size=batch_size, progress=progress)
    return negatives.audit(found, shared)


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
    name, audits = scheme or "dew", list[Audit]()
    shared: F32 | None = None
    while len(audits) < tries:
        keys = [Key.generate() for _ in range(min(_KEYS_PER_ROUND, tries - len(audits)))]
        if not audits:
            bound = load_scheme(keys[0], host=host, scheme=name, settings=settings, progress=progress)
            shared = text_directions(bound, negatives.texts, negatives.prompts, progress=progress)
        rows = identify(
            negatives.texts,
            keys,
            prompts=negatives.prompts,
            host=host,
            scheme=name,
            settings=settings,
            languages=LanguagePolicy(every=True),
            progress=progress,
        )
        for i, key in enumerate(keys):
            found, _ = negatives.audit([row.detections[i] for row in rows], shared)
            audits.append(found)
            if found.outcome is Outcome.PASSES:
                return key, len(audits), found
            if found.outcome is Outcome.CANNOT_TELL and shared is None:
                raise InputError(f"these texts are too few to show that a key is good. {found.sentence}")
        progress("drawing keys", len(audits), tries)
    best = max(audits, key=lambda each: (each.outcome is not Outcome.FAILS, each.worst.corrected))
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
    bound = for_languages(bound, LanguagePolicy(every=True))  # ranks among these texts need no known language

    def scored() -> Iterator[tuple[Detection, str | None]]:
        done = 0
        for batch in batched(read_rows(path, by=by), batch_size):
            texts, prompts = [row.text for row in batch], [row.prompt for row in batch]
            found = detect_texts(bound, texts, prompts=prompts, test=test)
            yield from zip(found, (row.group for row in batch), strict=True)
            done += len(batch)
            progress("scoring negatives", done, total)

    return Calibration.from_detections(scored(), config_hash=bound.config_hash, by=by)
