"""Unmarked texts under a key: audit its false-positive rate, draw a key that passes, calibrate on them.

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
from pathlib import Path
from typing import Any

import numpy as np

from dewmark import storage
from dewmark.arrays import F32
from dewmark.batch import open_source
from dewmark.batch.inputs import Document
from dewmark.core.keys import Key
from dewmark.detect import Examined, detect_texts, score_texts
from dewmark.encoders.contexts import package_texts
from dewmark.errors import ArtifactError, ConfigError, InputError
from dewmark.opening import load_scheme
from dewmark.scheme import BoundScheme, check_test, for_languages
from dewmark.text.languages import LanguagePolicy, guess_language
from dewmark.types import Detection, Verdict
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import Progress, silent
from dewmark_audit.audit import TOLERANCE, Audit, Outcome, audit
from dewmark_audit.calibration import Calibration
from dewmark_audit.one_key import KeyOnKind, directions
from dewmark_audit.texts import read_corpus

PACKAGED = "packaged"
"""The name of the package's own texts, where files are named."""

_SENTENCES = 8  # in a text made of the package's ordinary sentences
_TEXTS_PER_BATCH = 32
_CONFIDENCE = 0.95  # that a trusted group's rate is bounded
_REMEDY = "make one with: dewmark audit --out AUDIT.json"


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
        registers = package_texts("registers").items()
        found = [Document(text, name, language="en", kind="prose") for name, text in registers]
        for language, lines in package_texts("ordinary").items():
            sentences = lines.splitlines()
            parts = len(sentences) // _SENTENCES
            for number in range(parts):
                text = "\n".join(sentences[number::parts])
                found.append(Document(text, f"{language}-{number}", language=language, kind="prose"))
        for name, lines in package_texts("negatives").items():
            for number, line in enumerate(lines.splitlines()):
                found.append(Document(id=f"{name}-{number}", **json.loads(line)))
        return cls(found)

    @property
    def texts(self) -> list[str]:
        """The texts."""
        return [document.text for document in self.documents]

    @property
    def prompts(self) -> list[str | None]:
        """The prompt of each text, None where it is unknown."""
        return [document.prompt for document in self.documents]

    def audit(self, found: Sequence[Examined], shared: F32 | None) -> tuple[Audit, list[AuditedText]]:
        """Audit a key, given the verdict on each text and the `text_directions` of all (N, D).

        Also returns the texts that are long enough for a verdict.
        """
        rows = zip(self.documents, self.languages, found, strict=True)
        texts = [
            AuditedText(
                id=str(number) if document.id is None else document.id,
                language=language,
                length=each.detection.tokens_scored,
                p_value=each.p_value,
                kind=document.kind,
            )
            for number, (document, language, each) in enumerate(rows)
            if each.verdict is not Verdict.TOO_SHORT
        ]
        judged = np.array([each.verdict is not Verdict.TOO_SHORT for each in found], dtype=bool)
        result = audit(
            [text.p_value for text in texts],
            languages=[text.language for text in texts],
            lengths=[text.length for text in texts],
            kinds=[text.kind for text in texts],
            directions=None if shared is None else shared[judged],
            p_of_whole=np.array([each.detection.p_value for each in found])[judged],
        )
        return result, texts


def text_directions(
    bound: BoundScheme,
    texts: Sequence[str],
    prompts: Sequence[str | None] | None = None,
    *,
    progress: Progress = silent,
) -> F32 | None:
    """Unit vectors (N, D) whose inner products are the correlations of the texts' z over keys.

    They do not depend on the key. None if the scheme does not know how the scores of two texts vary together.
    """
    parts: list[F32] = []
    before = [""] * len(texts) if prompts is None else [prompt or "" for prompt in prompts]
    for start in range(0, len(texts), _TEXTS_PER_BATCH):
        part = slice(start, start + _TEXTS_PER_BATCH)
        found = bound.evidence(bound.read(bound.tokenize(texts[part]), bound.tokenize(before[part])))
        evidence = [] if found is None else list(found)
        if not (evidence and bound.finds_passages and all(each.comparable for each in evidence)):
            return None  # no covariance over keys
        parts.append(directions(evidence))
        progress("comparing texts", min(start + _TEXTS_PER_BATCH, len(texts)), len(texts))
    return np.concatenate(parts) if parts else None


def audit_texts(
    bound: BoundScheme, negatives: Negatives, *, test: str | None = None, progress: Progress = silent
) -> tuple[Audit, list[AuditedText]]:
    """Measure a key's false-positive rate; returns the audit and the texts it is based on."""
    found = _judged(bound, negatives, test=test, progress=progress)
    shared = text_directions(bound, negatives.texts, negatives.prompts, progress=progress)
    return negatives.audit(found, shared)


def _judged(
    bound: BoundScheme, negatives: Negatives, *, test: str | None = None, progress: Progress
) -> list[Examined]:
    """The verdict on each text, without its tokens, which take much memory."""
    texts, prompts = negatives.texts, negatives.prompts
    anywhere = for_languages(bound, LanguagePolicy(every=True))  # an audit is what a refused language needs
    found: list[Examined] = []
    for start in range(0, len(texts), _TEXTS_PER_BATCH):
        part = slice(start, start + _TEXTS_PER_BATCH)
        made = detect_texts(texts[part], anywhere, prompts=prompts[part], test=test, explain=False)
        found += [
            dataclasses.replace(each, detections=(), detection=dataclasses.replace(each.detection, tokens=()))
            for each in made
        ]
        progress("scoring", len(found), len(texts))
    return found


def draw_key(
    negatives: Negatives,
    *,
    tries: int = 20,
    host: str | None = None,
    scheme: str = "dew",
    settings: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> tuple[Key, int, Audit]:
    """The first of at most ``tries`` fresh keys that passes the audit, the number drawn, and its audit."""
    if scheme == "none":
        raise ConfigError("scheme none has no key to audit: name the scheme that will mark")
    audits: list[Audit] = []
    shared: F32 | None = None
    while len(audits) < tries:
        key = Key.generate()
        bound = load_scheme(key, host=host, scheme=scheme, settings=settings, progress=progress)
        if not audits:  # directions do not depend on the key
            shared = text_directions(bound, negatives.texts, negatives.prompts, progress=progress)
        found, _ = negatives.audit(_judged(bound, negatives, progress=progress), shared)
        audits.append(found)
        if found.outcome is Outcome.PASSES:
            return key, len(audits), found
        if found.outcome is Outcome.CANNOT_TELL and shared is None:
            raise InputError(f"these texts are too few to show that a key is good. {found.sentence}")
    best = max(audits, key=lambda each: (each.outcome is not Outcome.FAILS, each.worst.corrected))
    raise InputError(f"none of {tries} keys passed, and none was written; the best: {best.sentence}")


def calibrate_file(
    path: str | Path, bound: BoundScheme, *, test: str | None = None, progress: Progress = silent
) -> Calibration:
    """Score the unmarked texts of a file under a key, so that other texts can be ranked among them."""
    check_test(test, bound.tests)
    source = open_source(str(path))
    blocks = source.blocks(_TEXTS_PER_BATCH)
    bound = for_languages(bound, LanguagePolicy(every=True))  # ranks among these texts need no known language

    def scored() -> Iterator[Detection]:
        for number, block in enumerate(blocks, start=1):
            rows = source.read(block)
            prompts = [row.prompt for row in rows]
            yield from score_texts(bound, [row.text for row in rows], prompts=prompts, test=test, blank=True)
            progress("scoring negatives", number, len(blocks))

    return Calibration.from_detections(scored(), config_hash=bound.config_hash)


def with_audit(bound: BoundScheme, file: str | Path) -> BoundScheme:
    """The same detector, which also judges the languages in which its key passed the audit in ``file``.

    Raises `ConfigError` if the audit is of another key or configuration.
    """
    try:
        data = storage.read_json(file, most=1 << 26)
        made = {name: data[name] for name in ("key_fingerprint", "config_hash")}
        found = [each for each in data["groups"] if each["together"] is not None]
        trusted = []
        for each in found:  # whose rate at the default level is bounded as an audit demands
            fit = KeyOnKind(*(float(each["together"][name]) for name in ("mean", "sd", "spread")))
            if fit.rate(DEFAULT_FPR, confidence=_CONFIDENCE) <= TOLERANCE * DEFAULT_FPR:
                trusted.append(each)
        named = [each["group"] if each["kind"] == "language" else None for each in trusted]
        if any(each["kind"] == "all" for each in trusted):  # which stands for a language that all texts share
            named.append(data["common"].get("language"))
    except OSError as error:
        raise ArtifactError(f"cannot read the audit {file}: {error.strerror}; {_REMEDY}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ArtifactError(f"{file} is not an audit's report; {_REMEDY}") from None
    if made["key_fingerprint"] != bound.fingerprint:
        raise ConfigError(
            f"{file} is the audit of key {made['key_fingerprint']}, but this key is {bound.fingerprint}: "
            "audit this key"
        )
    if made["config_hash"] != bound.config_hash:
        raise ConfigError(
            f"{file} was made with another scheme, host or settings than this detector: audit it again"
        )
    if not found:
        raise ConfigError(
            f"{file} does not say how this scheme's scores go together: use dewmark calibrate instead"
        )
    audited = bound.languages.audited | {each for each in named if each}
    return for_languages(bound, dataclasses.replace(bound.languages, audited=audited))
