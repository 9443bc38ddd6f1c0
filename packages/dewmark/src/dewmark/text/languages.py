"""The language of a text, and whether a detector may judge texts in it.

`guess_language` and `LanguagePolicy` read a bounded sample of a text with py3langid's naive Bayes model over
byte n-grams of 139 languages, without its loops: a fifth of a millisecond a text, no network. The model is
an automaton over bytes and a table of log-probabilities. A state depends on the last few bytes only
(``depth``), so the states of all places in a text follow together, from that many bytes each. Both tables are
unpacked once into the cache and memory-mapped from then on: unpacking takes a second and 130 MB.

In a language that an encoder does not know, most words get similar vectors, so one key may accuse nearly
every text of the language. `LanguagePolicy` says which languages a detector judges, and refuses the others.

Boundary: texts and detections; no models of meaning, no keys.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np
import regex
from numpy.typing import NDArray

from dewmark.arrays import F32, F64, I64
from dewmark.config import cache_dir
from dewmark.errors import ArtifactError, StorageError
from dewmark.storage import load_bundle, save_bundle
from dewmark.text.cleaning import clean
from dewmark.text.words import Places
from dewmark.types import Detection, Verdict
from dewmark.workspace import Texts, Tokenized

__all__ = ["UNDETERMINED", "LanguagePolicy", "guess_language", "language_name", "recognised_languages"]

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
_BREAK = b"\xff"  # occurs in no text; after it the automaton is in its first state again
# Written alike, and one language to an encoder: Arabic with Moroccan and Egyptian, Chinese with Wu and Yue.
_SAME = {"ary": "ar", "arz": "ar", "wuu": "zh", "yue": "zh", "nn": "no", "nb": "no"}
_LOGS = "float32"  # the model has float16: to convert a text's rows took as long as all else here
_LOADING = threading.Lock()


def guess_language(text: str) -> str:
    """The ISO 639 code of the text's language, or "und" if the text is short, mixed or not language."""
    return _likeliest(_shares([clean(_sample(text)).text])[0])


def _sample(text: str) -> str:
    """The whole text, or evenly spread pieces of a long one."""
    if len(text) <= _PIECES * _PIECE:
        return text
    step = (len(text) - _PIECE) // (_PIECES - 1)
    return " ".join(text[i * step : i * step + _PIECE] for i in range(_PIECES))


def _cleaned_sample(text: Tokenized) -> str:
    """A text's sample without markup and disguises; a text that was cut into words is clean already."""
    sample = _sample(text.text)
    if isinstance(text.offsets, Places):
        cleaned = text.offsets.cleaned.text
        if sample is text.text:
            return cleaned
        if cleaned == text.text:
            return sample
    return clean(sample).text  # of a long text: its pieces lie where they are in the text as it was given


def _shares(samples: Sequence[str]) -> list[F64 | None]:
    """Of each sample the probabilities (labels,) of the model's labels; None if the sample does not say.

    That of no language is 0.
    """
    telling = [i for i, sample in enumerate(samples) if _has_letters(sample)]
    shares: list[F64 | None] = [None] * len(samples)
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


def _model() -> LanguageIdentifier:
    with _LOADING:
        return _load()


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

    def read(self, texts: Texts) -> list[TextLanguage]:
        """The language of each text; no text is read if the scheme does not depend on it."""
        if self.known is None:
            return [TextLanguage()] * len(texts)
        found = []
        for shares in _shares([_cleaned_sample(text) for text in texts]):
            best = _likeliest(shares)
            refused = not self.every and _knows(shares, self.known | self.audited) is False
            code = None if best == UNDETERMINED else best
            found.append(TextLanguage(code, _knows(shares, self.known), refused))
        return found


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


# The model


class LanguageIdentifier:
    """``moves`` (rows, 256) give the next state by row and byte, ``rows`` (states,) each state's row.

    ``features`` (states,) are what a visit counts towards, or -1; ``logs`` (features, classes) and ``prior``
    (classes,) the log-probabilities; ``classes`` the languages, of which some are one (``labels``).
    """

    def __init__(self, arrays: dict[str, NDArray[np.generic]], *, classes: list[str], depth: int) -> None:
        self._moves = np.asarray(arrays["moves"]).reshape(-1)
        self._starts = np.asarray(arrays["rows"]).astype(np.int64) << 8
        self._features = np.asarray(arrays["features"])
        self._logs = np.asarray(arrays["logs"])
        self._prior = np.asarray(arrays["prior"], dtype=np.float32)
        self._depth = depth
        merged = [_SAME.get(each, each) for each in classes]
        self.labels = list(dict.fromkeys(merged))
        self._label_of = np.array([self.labels.index(each) for each in merged])

    def probabilities(self, texts: Sequence[str]) -> F32:
        """The probability of each label in each text (texts, labels); all alike where nothing tells."""
        lowered = [text.lower() if text.isupper() else text for text in texts]
        data = [unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass") for text in lowered]
        lengths = np.array([len(each) for each in data], dtype=np.int64)
        visited = self._features.take(self._states(np.frombuffer(_BREAK.join((*data, b"")), np.uint8)))
        told = np.flatnonzero(visited >= 0)
        first_codes = np.arange(len(texts) + 1, dtype=np.int32) * len(self._logs)
        of_text = np.repeat(first_codes[:-1], lengths + len(_BREAK))
        codes, counts = np.unique(of_text[told] + visited[told], return_counts=True)
        ends = np.searchsorted(codes, first_codes).tolist()
        features, weights = codes % len(self._logs), np.log1p(counts.astype(np.float32))
        scores = np.zeros((len(texts), len(self._prior)), dtype=np.float32)
        for row, start, end in zip(scores, ends, ends[1:], strict=False):
            if start < end:
                row += weights[start:end] @ self._logs.take(features[start:end], axis=0) + self._prior
        # keeps the probabilities honest at every length
        scores /= np.sqrt(np.maximum(lengths, 1)).astype(np.float32)[:, None]
        np.exp(scores - scores.max(axis=1, keepdims=True), out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        merged = np.arange(len(texts))[:, None] * len(self.labels) + self._label_of
        size = len(texts) * len(self.labels)
        sums = np.bincount(merged.ravel(), weights=scores.ravel(), minlength=size)
        return sums.reshape(len(texts), -1).astype(np.float32)

    def _states(self, data: NDArray[np.uint8]) -> I64:
        """The automaton's state after each byte (N,)."""
        states = np.zeros(len(data), dtype=np.int64)
        for back in range(min(self._depth, len(data)) - 1, -1, -1):
            # the first places have fewer bytes before them, and stay in the first state until then
            at = states[back:]
            at[:] = self._moves.take(self._starts.take(at) + data[: len(data) - back])
        return states


@functools.cache
def _load() -> LanguageIdentifier:
    """The packaged model: unpacked tables from the cache, where the first use writes them."""
    from py3langid.langid import MODEL_DIR, MODEL_FILE

    packed = MODEL_DIR / MODEL_FILE
    about = packed.stat()
    folder = cache_dir() / "languages" / f"{about.st_size}-{about.st_mtime_ns}-{_LOGS}"
    try:
        bundle = load_bundle(folder, verify=False)
        return LanguageIdentifier(bundle.arrays, classes=bundle.meta["classes"], depth=bundle.meta["depth"])
    except (ArtifactError, KeyError):
        pass
    from py3langid.modelio import load_model

    logs, prior, classes, moves, rows, features = load_model(packed)
    arrays = {
        "moves": np.asarray(moves).reshape(-1, 256),
        "rows": np.asarray(rows),
        "features": np.array(features, dtype=np.int32),
        "logs": np.asarray(logs, dtype=_LOGS),
        "prior": prior,
    }
    depth = _depth(arrays["moves"], arrays["rows"])
    try:
        save_bundle(folder, meta={"classes": list(classes), "depth": depth}, arrays=arrays)
    except StorageError:  # a cache that cannot be written costs time, nothing else
        return LanguageIdentifier(arrays, classes=list(classes), depth=depth)
    return _load.__wrapped__()


def _depth(moves: NDArray[np.unsignedinteger], rows: NDArray[np.unsignedinteger]) -> int:
    """The most bytes that a state remembers: the length of the longest shortest path to one."""
    seen = np.zeros(len(rows), dtype=bool)
    reached, depth = np.zeros(1, dtype=np.int64), -1
    while len(reached):
        seen[reached] = True
        found = np.zeros_like(seen)
        found[moves[np.unique(rows[reached])]] = True
        reached = np.flatnonzero(found & ~seen)
        depth += 1
    return depth
