"""The language of a text, and whether a detector may judge texts in it.

`guess_language` and `LanguagePolicy` read a bounded sample of a text with a naive Bayes model over
byte n-grams of 139 languages (`language_identifier`): a quarter of a millisecond a text, no network.

A mark that depends on meaning is only as good as its encoder's knowledge of the language. In a language that
the encoder does not know, most words get similar vectors, so all texts of that language get similar scores
under one key: false alarms are as rare as promised over keys, but one key may accuse nearly every text of the
language. `LanguagePolicy` says which languages a detector judges, and refuses the others.

Boundary: texts and detections; no models of meaning, no keys.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np
import regex

from dewmark.arrays import F64, I64
from dewmark.text.cleaning import clean
from dewmark.text.language_identifier import LanguageIdentifier, load_identifier
from dewmark.types import Detection, Verdict

__all__ = ["UNDETERMINED", "LanguagePolicy", "guess_language", "language_name"]

UNDETERMINED = "und"
"""ISO 639's code for a language that is not determined."""

_NO_LANGUAGE = "zxx"  # numbers, markup, identifiers

_PIECES, _PIECE = 6, 250  # characters of a long text that are read, evenly spread
_MIN_BYTES = 24  # of letters: a Chinese character says more than a Latin one
_LETTERS = regex.compile(r"\p{L}+")
# Of 500 web pages in each of English, German and French, 99% give their language more than 0.2; of sentences
# in 45 languages that the default encoder does not know, 95% give all languages that it knows less than 0.01.
_MIN_LIKELY = 0.3
_KNOWN_ABOVE, _UNKNOWN_BELOW = 0.5, 0.1
_AT_ONCE = 64  # texts
_LOADING = threading.Lock()


def guess_language(text: str) -> str:
    """The ISO 639 code of the text's language, or "und" if the text is short, mixed or not language."""
    return _likeliest(_shares([text])[0])


def _shares(texts: Sequence[str]) -> list[F64 | None]:
    """Of each text the probabilities (labels,) of the model's labels; None if the text does not say.

    That of no language is 0.
    """
    samples = [clean(_sample(text)).text for text in texts]
    telling = [i for i, sample in enumerate(samples) if _has_letters(sample)]
    shares: list[F64 | None] = [None] * len(texts)
    model = _model()
    for first in range(0, len(telling), _AT_ONCE):
        some = telling[first : first + _AT_ONCE]
        found = model.probabilities([samples[i] for i in some]).astype(np.float64)
        if _NO_LANGUAGE in model.labels:
            found[:, model.labels.index(_NO_LANGUAGE)] = 0.0
        for i, row, spoken in zip(some, found, found.sum(axis=1).tolist(), strict=True):
            shares[i] = None if spoken < _MIN_LIKELY else row / spoken
    return shares


def _has_letters(sample: str) -> bool:
    letters = 0
    for run in _LETTERS.finditer(sample):
        letters += len(run.group().encode())
        if letters >= _MIN_BYTES:
            return True
    return False


def language_name(code: str) -> str:
    """The English name of a language, or its code if that is not one of those recognised here."""
    return recognised_languages().get(code, code)


@functools.cache
def recognised_languages() -> dict[str, str]:
    """The English names of the languages that are recognised, by code."""
    file = resources.files("dewmark") / "data" / "languages.txt"
    return dict(line.split(" ", 1) for line in file.read_text(encoding="utf-8").splitlines())


def _sample(text: str) -> str:
    """The whole text, or evenly spread pieces of a long one."""
    if len(text) > _PIECES * _PIECE:
        step = (len(text) - _PIECE) // (_PIECES - 1)
        text = " ".join(text[i * step : i * step + _PIECE] for i in range(_PIECES))
    return text


def _model() -> LanguageIdentifier:
    with _LOADING:
        return load_identifier()


@dataclass(frozen=True, slots=True)
class TextLanguage:
    """A text's language: its code, whether the detector knows it, and whether a verdict is refused.

    ``code`` and ``known`` are None where the text does not say.
    """

    code: str | None = None
    known: bool | None = None
    refused: bool = False

    def applied(self, detection: Detection) -> Detection:
        """The detection of this text with its language, and without a verdict if that is refused.

        In a language that the detector does not know, more text would not add evidence, so that a text
        without enough of it is not called too short.
        """
        verdict = self.judge(detection.verdict)
        return dataclasses.replace(detection, verdict=verdict, language=self.code, language_known=self.known)

    def judge(self, verdict: Verdict) -> Verdict:
        """The verdict, unless it is refused in this language."""
        unread = self.known is False and verdict is Verdict.TOO_SHORT
        return Verdict.UNSUPPORTED_LANGUAGE if self.refused or unread else verdict


@dataclass(frozen=True, slots=True)
class LanguagePolicy:
    """Which languages a detector judges.

    ``known`` are the languages of the scheme's lexicon or encoder; None if the scheme does not depend on the
    language, or if its encoder does not say. ``audited`` are further languages, in which this key's false
    alarms were measured. ``every`` lets all languages through: the detector is known to be reliable in any of
    them, or its user decides.
    """

    known: frozenset[str] | None = None
    audited: frozenset[str] = frozenset()
    every: bool = False

    def read(self, texts: Sequence[str]) -> list[TextLanguage]:
        """The language of each text; no text is read if the scheme does not depend on it."""
        if self.known is None:
            return [TextLanguage()] * len(texts)
        return [self._read(shares, self.known) for shares in _shares(texts)]

    def judge(self, texts: Sequence[str], detections: Sequence[Detection]) -> list[Detection]:
        """The detections of these texts with their languages, and without verdicts in refused ones."""
        return [each.applied(found) for each, found in zip(self.read(texts), detections, strict=True)]

    def _read(self, shares: F64 | None, known: frozenset[str]) -> TextLanguage:
        best = _likeliest(shares)
        allowed = self.every or _knows(shares, known | self.audited) is not False
        return TextLanguage(
            None if best == UNDETERMINED else best, _knows(shares, known), refused=not allowed
        )


def _likeliest(shares: F64 | None) -> str:
    if shares is None:
        return UNDETERMINED
    best = int(np.argmax(shares))
    return _model().labels[best] if shares[best] >= _MIN_LIKELY else UNDETERMINED


def _knows(shares: F64 | None, languages: frozenset[str]) -> bool | None:
    """Whether a text is in one of these languages; None if that is not clear."""
    if shares is None:
        return None
    share = float(shares[_places(languages)].sum())
    return True if share >= _KNOWN_ABOVE else False if share < _UNKNOWN_BELOW else None


@functools.lru_cache(maxsize=64)
def _places(languages: frozenset[str]) -> I64:
    """Where the model has these languages."""
    return np.array([i for i, label in enumerate(_model().labels) if label in languages], dtype=np.int64)
