"""Lists of the frequent forms of many languages, from which `dewmark_lab.lexicon_build` makes a lexicon.

Forms come from the word lists of the PyPI package `wordfreq` (extra ``lexicon``). A form enters if
`dewmark.text.words` finds exactly one word in it, without digits: a unit or a character in Chinese and
Japanese. `wordfreq` cuts French and Italian elisions and Korean particles off, `words` does not: the most
frequent joined forms (l'eau, c'est, 사람은) are added, their frequency that of independent parts. A form of
several languages has its highest frequency.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources

import numpy as np
import regex

from dewmark.arrays import F64
from dewmark.encoders.lexicon import SIF
from dewmark.errors import ConfigError
from dewmark.extras import require
from dewmark.text.words import words
from dewmark.workspace import Progress, silent

SIZES: Mapping[str, int] = {
    "en": 45_000,
    **dict.fromkeys(("de", "fr", "es", "pt", "it", "nl"), 14_000),
    **dict.fromkeys(("pl", "ru", "tr", "ar"), 12_000),
    "ko": 4_000,
}
"""The languages of the default lexicon, and how many forms each contributes."""

_NO_DIGITS = regex.compile(r"(?!.*\p{N}).+", regex.V1)
_OTHER_SIZE = 10_000
_ZIPF = 0.1  # the word of rank r has frequency 0.1 / (r + 1)


@dataclass(frozen=True)
class FormList:
    """N forms with their frequency p (N,), most frequent first, and the language of each."""

    forms: tuple[str, ...]
    frequency: F64
    languages: tuple[str, ...]


def word_weight(form: str) -> float:
    """α(w) = a / (a + p(w)), in (0, 1]; 1 for a word in no list.

    p(w) follows Zipf's law in a short list of frequent words per language, ordered by frequency.
    """
    return SIF / (SIF + _frequencies().get(form, 0.0))


@functools.cache
def _frequencies() -> dict[str, float]:
    found: dict[str, float] = {}
    file = resources.files("dewmark_lab") / "data" / "frequent.txt"
    for line in file.read_text(encoding="utf-8").splitlines():
        _, listed = line.split(":", 1)
        for rank, form in enumerate(dict.fromkeys(word.form for word in words(listed)), start=1):
            found[form] = max(found.get(form, 0.0), _ZIPF / (rank + 1))
    return found


def parse_sizes(languages: str | None) -> Mapping[str, int]:
    """``en:45000,de`` to the number of forms of each language; None to `SIZES`."""
    if languages is None:
        return SIZES
    sizes = {}
    for part in languages.split(","):
        code, colon, number = part.strip().partition(":")
        if not code or (colon and not (number.isdecimal() and int(number) > 0)):
            raise ConfigError(f"cannot read {part!r} in --languages: write codes with numbers, en:45000,de")
        sizes[code] = int(number) if colon else SIZES.get(code, _OTHER_SIZE)
    return sizes


def frequent_forms(sizes: Mapping[str, int], *, progress: Progress = silent) -> FormList:
    """The most frequent forms of several languages; ``sizes`` says how many of each."""
    wordfreq = require("wordfreq", extra="lexicon", package="dewmark-lab")
    known = wordfreq.available_languages("best")
    best: dict[str, tuple[float, str]] = {}
    for done, (language, size) in enumerate(sizes.items()):
        progress("listing words", done, len(sizes))
        if language not in known:
            raise ConfigError(f"no word list for {language!r}; there is one for {', '.join(sorted(known))}")
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
            raise ConfigError(f"the word list of language {language!r} has no whole words")
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


def _one_word(listed: str) -> str | None:
    """The form of a listed string that is one word without digits."""
    found = words(listed)
    whole = len(found) == 1 and (found[0].start, found[0].end) == (0, len(listed))
    return found[0].form if whole and _NO_DIGITS.fullmatch(found[0].form) else None


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
_HANGUL, _LAST_HANGUL, _FINALS = 0xAC00, 0xD7A3, 28
_STEMS = 1_500


def _joined(language: str, listed: Mapping[str, float]) -> dict[str, float]:
    """A language's list with the joined forms that `words` leaves whole."""
    found = dict(listed)
    if language in (*_ELIDED, "ko"):
        for joined, p in _with_particles(listed) if language == "ko" else _elisions(language, listed):
            found[joined] = max(found.get(joined, 0.0), p)
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
    hangul = (word for word in listed if all(_HANGUL <= ord(c) <= _LAST_HANGUL for c in word))
    stems = [word for word in hangul if len(word) > 1][:_STEMS]
    total = sum(listed[stem] for stem in stems)
    for stem in (stem for stem in stems if stem not in particles):
        closed = (ord(stem[-1]) - _HANGUL) % _FINALS > 0
        for particle in (*(pair[0 if closed else 1] for pair in _PARTICLES), *_INVARIANT):
            p = listed.get(particle, listed.get(particle[:1], 0.0) * listed.get(particle[1:], 0.0))
            yield stem + particle, listed[stem] * p / total
