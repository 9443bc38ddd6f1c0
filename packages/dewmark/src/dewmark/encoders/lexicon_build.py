"""Build a lexicon: the frequent forms of many languages, their vectors reduced and quantised.

**Forms** come from the word lists of the PyPI package `wordfreq` (extra ``lexicon``; needed to build, never
to read). A form enters if `dewmark.text.words` finds exactly one word in it, without digits and in a script
with spaces between words. `wordfreq` cuts French and Italian elisions and Korean particles off, `words` does
not: the most frequent joined forms (l'eau, c'est, 사람은) are added, their frequency that of independent
parts. A form of several languages has its highest frequency.

**Vectors.** P M(w), see `dewmark.encoders.word_vectors`, is written in the basis of its principal
directions, fitted with equal weight per language and per form of a language, and only the leading
coordinates are kept, each as one of 16 levels times the coordinate's spread. The levels are those that lose
least (Lloyd's algorithm over all coordinates).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import regex
from numpy.typing import NDArray

from dewmark.arrays import F16, F32, F64
from dewmark.encoders.base import Encoder
from dewmark.encoders.lexicon import ARRAYS, LAYOUT
from dewmark.encoders.word_vectors import WordStatistics, WordVectors
from dewmark.errors import ConfigError
from dewmark.extras import require
from dewmark.storage import save_bundle
from dewmark.text.words import VERSION, words
from dewmark.workspace import Progress, silent

DIM = 128
"""Coordinates per word: with twice as many, translations of a word are no nearer to it."""

_LEVELS = 16
_SAMPLE = 1_000_000
_ROUNDS = 100

SIZES: Mapping[str, int] = {
    "en": 45_000,
    **dict.fromkeys(("de", "fr", "es", "pt", "it", "nl"), 14_000),
    **dict.fromkeys(("pl", "ru", "tr", "ar"), 12_000),
    "ko": 4_000,
}
"""The languages of the default lexicon, and how many forms each contributes."""

_SPACED = regex.compile(r"(?!.*[\p{N}\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{LB=SA}]).+", regex.V1)


_OTHER_SIZE = 10_000


def parse_sizes(languages: str | None) -> Mapping[str, int]:
    """``en:45000,de`` to the number of forms of each language; None to `SIZES`."""
    if languages is None:
        return SIZES
    sizes = {}
    for part in languages.split(","):
        code, colon, number = part.strip().partition(":")
        if not code or (colon and not (number.isdecimal() and int(number) > 0)):
            raise ConfigError(
                f"cannot read {part!r} in --languages: write codes and numbers like en:45000,de"
            )
        sizes[code] = int(number) if colon else SIZES.get(code, _OTHER_SIZE)
    return sizes


@dataclass(frozen=True)
class FormList:
    """N forms with their frequency p (N,), most frequent first, and the language of each."""

    forms: tuple[str, ...]
    frequency: F64
    languages: tuple[str, ...]


def frequent_forms(sizes: Mapping[str, int], *, progress: Progress = silent) -> FormList:
    """The most frequent forms of several languages: so many of each."""
    wordfreq = require("wordfreq", extra="lexicon")
    known = wordfreq.available_languages("best")
    best: dict[str, tuple[float, str]] = {}
    for done, (language, size) in enumerate(sizes.items()):
        progress("listing words", done, len(sizes))
        if language not in known:
            raise ConfigError(
                f"no word list for language {language!r}; there is one for {', '.join(sorted(known))}"
            )
        listed = wordfreq.get_frequency_dict(language, "best")
        ordered = sorted(_joined(language, listed).items(), key=lambda item: (-item[1], item[0]))
        taken: dict[str, float] = {}
        for spelled, frequency in ordered:
            if len(taken) == size:
                break
            form = _one_word(spelled)
            if form is not None:
                taken.setdefault(form, frequency)
        if not taken:
            raise ConfigError(f"language {language!r} is written without spaces: a lexicon cannot serve it")
        for form, frequency in taken.items():
            if frequency > best.get(form, (0.0, ""))[0]:
                best[form] = frequency, language
    ranked = sorted(best.items(), key=lambda item: (-item[1][0], item[0]))
    progress("listing words", len(sizes), len(sizes))
    return FormList(
        forms=tuple(form for form, _ in ranked),
        frequency=np.array([frequency for _, (frequency, _) in ranked], dtype=np.float64),
        languages=tuple(language for _, (_, language) in ranked),
    )


def _one_word(spelled: str) -> str | None:
    """The form of a spelling that is one word, without digits and in a script with spaces."""
    found = words(spelled)
    whole = len(found) == 1 and (found[0].start, found[0].end) == (0, len(spelled))
    return found[0].form if whole and _SPACED.fullmatch(found[0].form) else None


# Joined words: what the lists cut and `words` does not

_VOWEL = regex.compile(r"[aeiouhàâéèêëîïôöùûœæ]")
_ELIDED = {"fr": ("l", "d", "qu"), "it": ("l", "d")}
_FUNCTION_WORD = 1e-3  # as frequent a word stands after few others: those pairs are listed
_PAIRS = {
    "fr": "c'est c'était c'étaient d'abord d'autres d'avoir d'elle d'en d'eux d'être d'ici d'il d'où d'un "
    "d'une d'y j'ai j'aime j'aurais j'avais j'en j'espère j'étais j'y jusqu'au jusqu'en l'a l'ai "
    "l'autre l'avait l'en l'est l'on l'un l'une l'y m'a m'en m'est n'a n'ai n'avait n'en n'est n'était "
    "n'étaient n'ont n'y qu'à qu'elle qu'elles qu'en qu'est qu'il qu'ils qu'on qu'un qu'une s'en s'est "
    "s'était s'il s'ils s'y t'a t'ai t'en t'es",
    "it": "c'è c'era c'erano d'accordo d'altra l'ha l'hanno l'ho l'altra l'altro l'una l'uno m'ha s'è t'ho "
    "un'altra un'amica un'area un'arma un'auto un'azienda un'esperienza un'estate un'idea un'immagine "
    "un'intera un'isola un'occasione un'offerta un'opera un'ora un'unica",
}
# Particles after a consonant and after a vowel.
_PARTICLES = (("은", "는"), ("이", "가"), ("을", "를"), ("과", "와"), ("으로", "로"))
_INVARIANT = ("에", "의", "도", "에서", "에게", "만", "까지", "부터", "들", "들은", "들이", "들을", "들의")
_HANGUL, _FINALS = 0xAC00, 28
_STEMS = 1_500


def _joined(language: str, listed: Mapping[str, float]) -> dict[str, float]:
    """A language's list with the joined forms that `words` leaves whole."""
    found = dict(listed)
    if language in _ELIDED:
        for joined, frequency in _elisions(language, listed):
            found[joined] = max(found.get(joined, 0.0), frequency)
    if language == "ko":
        for joined, frequency in _with_particles(listed):
            found[joined] = max(found.get(joined, 0.0), frequency)
    return found


def _elisions(language: str, listed: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    after = {word: p for word, p in listed.items() if _VOWEL.match(word) and len(word) > 2}
    after = {word: p for word, p in after.items() if p < _FUNCTION_WORD}
    total = sum(p for word, p in listed.items() if _VOWEL.match(word))
    for head in _ELIDED[language]:
        share = listed[head] / total
        yield from ((f"{head}'{word}", share * p) for word, p in after.items())
    for pair in _PAIRS[language].split():
        head, word = pair.split("'")
        yield pair, listed.get(head, 0.0) * listed.get(word, 0.0) / total


def _with_particles(listed: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    particles = {*_INVARIANT, *(part for pair in _PARTICLES for part in pair)}
    stems = [word for word in listed if len(word) > 1 and all(_is_hangul(c) for c in word)][:_STEMS]
    total = sum(listed[stem] for stem in stems)
    for stem in (stem for stem in stems if stem not in particles):
        closed = (ord(stem[-1]) - _HANGUL) % _FINALS > 0
        for particle in (*(pair[0 if closed else 1] for pair in _PARTICLES), *_INVARIANT):
            p = listed.get(particle, listed.get(particle[:1], 0.0) * listed.get(particle[1:], 0.0))
            yield stem + particle, listed[stem] * p / total


def _is_hangul(character: str) -> bool:
    return _HANGUL <= ord(character) <= 0xD7A3


# Vectors


@dataclass(frozen=True)
class Reduced:
    """P M(w) of N words in its leading principal coordinates.

    ``mean`` (d,), ``basis`` (r, d) with orthonormal rows, ``coordinates`` (N, r) float16, ``energy`` (N,) the
    squared length of each centred row before the reduction, ``spread`` (d,) the variance along every
    principal direction.
    """

    mean: F32
    basis: F32
    coordinates: F16
    energy: F32
    spread: F32


def reduce_vectors(vectors: F16, statistics: WordStatistics, *, languages: Sequence[str], r: int) -> Reduced:
    """M(w), unit rows (N, d), to their ``r`` leading coordinates; every language has the same weight."""
    _, group = np.unique(np.asarray(languages), return_inverse=True)
    weight = 1.0 / np.bincount(group)[group]
    weight /= weight.sum()
    project = functools.partial(_projected, statistics=statistics)
    dim = vectors.shape[1]
    mean, second = np.zeros(dim), np.zeros((dim, dim))
    for part in _parts(len(vectors)):
        x = project(vectors[part])
        mean += weight[part] @ x
        second += (x * weight[part, None]).T @ x
    spread, directions = np.linalg.eigh(second - np.outer(mean, mean))
    basis = directions[:, ::-1][:, :r].T
    # a direction has no sign of its own: make the largest entry positive
    largest = np.argmax(np.abs(basis), axis=1)
    basis = basis * np.sign(basis[np.arange(len(basis)), largest])[:, None]
    coordinates = np.empty((len(vectors), len(basis)), dtype=np.float16)
    energy = np.empty(len(vectors), dtype=np.float32)
    for part in _parts(len(vectors)):
        x = project(vectors[part]) - mean
        coordinates[part] = x @ basis.T
        energy[part] = (x * x).sum(axis=1)
    return Reduced(
        mean=mean.astype(np.float32),
        basis=basis.astype(np.float32),
        coordinates=coordinates,
        energy=energy,
        spread=np.maximum(spread[::-1], 0.0).astype(np.float32),
    )


def _projected(vectors: F16, statistics: WordStatistics) -> F64:
    x = vectors.astype(np.float64)
    removed = statistics.removed.astype(np.float64)
    return x - (x @ removed.T) @ removed


def _parts(n: int, size: int = 8192) -> Iterator[slice]:
    yield from (slice(i, i + size) for i in range(0, n, size))


# The bundle


def build_lexicon(
    listed: FormList,
    vectors: WordVectors,
    statistics: WordStatistics,
    *,
    out: Path,
    dim: int = DIM,
    note: str = "",
    progress: Progress = silent,
) -> None:
    """Encode the forms (cached word by word, so it resumes), reduce, quantise, and write the lexicon."""
    rows = np.empty((len(listed.forms), vectors.dim), dtype=np.float16)
    for part in _parts(len(rows), 2048):
        progress("encoding words", part.start, len(rows))
        rows[part] = vectors.vectors(listed.forms[part])
    progress("encoding words", len(rows), len(rows))
    reduced = reduce_vectors(rows, statistics, languages=listed.languages, r=min(dim, vectors.dim))
    save_lexicon(out, listed, reduced, statistics, encoder=vectors.encoder, note=note)


def save_lexicon(
    out: Path,
    listed: FormList,
    reduced: Reduced,
    statistics: WordStatistics,
    *,
    encoder: Encoder,
    note: str = "",
) -> None:
    """Quantise reduced vectors and write the lexicon for `dewmark.encoders.lexicon.load_lexicon`."""
    r = reduced.coordinates.shape[1] // 2 * 2  # two coordinates a byte
    coordinates, basis = reduced.coordinates[:, :r].astype(np.float32), reduced.basis[:r]
    scales = coordinates.std(axis=0) + np.float32(1e-12)
    levels = best_levels(coordinates / scales, _LEVELS)
    codes = np.searchsorted((levels[1:] + levels[:-1]) / 2, coordinates / scales).astype(np.uint8)
    arrays: dict[str, NDArray[np.generic]] = {
        "forms": np.frombuffer("\n".join(listed.forms).encode(), dtype=np.uint8),
        "centibels": np.round(100 * np.log10(listed.frequency)).astype(np.int16),
        "codes": codes[:, 0::2] | codes[:, 1::2] << 4,
        "levels": levels,
        "scales": scales,
        "mean": reduced.mean,
        "basis": basis.astype(np.float16),
    }
    for name in ("running_centre", "rare_centre", "context_centre"):
        centre = _projected(getattr(statistics, name)[None], statistics) - reduced.mean
        arrays[name] = (centre @ basis.T.astype(np.float64))[0].astype(np.float32)
    kept = float(reduced.spread[:r].sum() / reduced.spread.sum())
    meta = {
        "encoder": encoder.name,
        "encoder_identity": encoder.identity,
        "energy_kept": round(kept, 4),
        "languages": {name: listed.languages.count(name) for name in sorted(set(listed.languages))},
        "layout": LAYOUT,
        "note": note,
        "words": VERSION,
    }
    save_bundle(out, meta=meta, arrays={name: arrays[name] for name in ARRAYS})


def best_levels(values: F32, n: int) -> F32:
    """The n levels with the least mean squared error, by Lloyd's algorithm on a sample of the values."""
    flat = values.reshape(-1)
    sample = np.sort(flat[:: max(1, len(flat) // _SAMPLE)].astype(np.float64))
    sums = np.concatenate([[0.0], np.cumsum(sample)])
    levels: F64 = np.quantile(sample, (np.arange(n) + 0.5) / n)
    for _ in range(_ROUNDS):
        edges = np.searchsorted(sample, (levels[1:] + levels[:-1]) / 2)
        edges = np.concatenate([[0], edges, [len(sample)]])
        counts = np.diff(edges)
        levels = np.where(counts > 0, np.diff(sums[edges]) / np.maximum(counts, 1), levels)
    return levels.astype(np.float32)
