"""The words of a text: where they stand, and the form under which their meaning is looked up.

Words are cut by the default rules of UAX 29: "don't", "l'eau", "3.14" and "12th" are one word each,
"mother-in-law" is three; spaces, punctuation, symbols and emoji belong to no word. Scripts that put no spaces
between words are cut by the small linear models of the `budoux` package: Han with kana as Japanese, Han alone
as Chinese, Thai. They look three characters to either side, so a word in the middle of a text is cut the same
whatever follows later. Lao, Khmer and Burmese stay whole between spaces.

A form is the word in Unicode's NFKC, in lower case, with one kind of apostrophe and without invisible
characters, Arabic and Hebrew vowel points, elongation strokes and outer underscores. Accents and ß are kept:
the default encoder places "élève" nearer to "pupil" than "eleve". A number is a word, its text its form.

Marking and detection must cut alike, so whatever changes a cut or a form changes `VERSION`. Time is linear in
the text. Boundary: text only, no vectors; a text that grows is `dewmark.text.growing`' business.
"""

from __future__ import annotations

import functools
import json
import unicodedata
from collections.abc import Iterator
from importlib import resources
from typing import NamedTuple

import regex

__all__ = ["MAX_FORM", "VERSION", "Word", "form_of", "open_tail", "words"]

VERSION = 1

MAX_FORM = 64
"""Forms are cut at so many characters, so that no encoder reads a megabyte of one letter."""

# The classes of UAX 29. Extend, Format and ZWJ belong to the character before them (rule WB4).
_ATTACHED = r"\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}"
_X = rf"[{_ATTACHED}]*+"
_LETTER = r"[[\p{WB=ALetter}\p{WB=Hebrew_Letter}]--\p{Han}]"
_DIGIT = r"\p{WB=Numeric}"
_MID_LETTER = r"[\p{WB=MidLetter}\p{WB=MidNumLet}\p{WB=Single_Quote}]"
_MID_DIGIT = r"[\p{WB=MidNum}\p{WB=MidNumLet}\p{WB=Single_Quote}]"
_HEBREW = r"\p{WB=Hebrew_Letter}"
# Scripts without spaces, which UAX 29 leaves to dictionaries. 々 and 〇 count as Han, ー as kana.
_KANA = r"[\p{Hiragana}\p{WB=Katakana}]"
_CJK = rf"[\p{{Han}}{_KANA}]"
_THAI = r"[\p{Thai}&&[\p{L}\p{M}]]"
_UNSPACED = r"[[\p{LB=SA}--\p{Thai}]&&[\p{L}\p{M}]]"

_SPACED = rf"""
    (?: {_HEBREW} {_X} \p{{WB=Double_Quote}} {_X} (?={_HEBREW})          # WB7b, WB7c
      | {_LETTER} {_X} (?: {_MID_LETTER} {_X} (?={_LETTER}) )?           # WB5-7
      | {_DIGIT} {_X} (?: {_MID_DIGIT} {_X} (?={_DIGIT}) )?              # WB8-12
      | \p{{WB=ExtendNumLet}} {_X}                                       # WB13
    )++
    (?: (?<={_HEBREW}[{_ATTACHED}]*) \p{{WB=Single_Quote}} {_X} )?       # WB7a
"""
_WORD = regex.compile(
    rf"(?P<cjk>(?:{_CJK}{_X})++) | (?P<thai>(?:{_THAI}{_X})++) | (?P<word>{_SPACED} | (?:{_UNSPACED}{_X})++)",
    regex.VERSION1 | regex.VERBOSE,
)
_HAS_KANA = regex.compile(_KANA, regex.VERSION1)
# After such a character nothing that comes later can belong to a word before it.
_SOFT = rf"{_LETTER}{_DIGIT}{_CJK}{_THAI}{_UNSPACED}{_MID_LETTER}{_MID_DIGIT}\p{{WB=ExtendNumLet}}"
_HARD = regex.compile(
    rf"[^{_SOFT}{_ATTACHED}\p{{WB=Double_Quote}}] | (?<![{_HEBREW}{_ATTACHED}])\p{{WB=Double_Quote}}",
    regex.VERSION1 | regex.VERBOSE | regex.REVERSE,
)

_APOSTROPHES = str.maketrans({"’": "'", "ʼ": "'"})
_UNSEEN = regex.compile(
    r"[\p{Cf}\u0640\u064B-\u065F\u0670\u0591-\u05BD\u05BF\u05C1\u05C2\u05C4\u05C5\u05C7]+"
)


class Word(NamedTuple):
    """One word: its (start, end) character offsets in the text, and its form."""

    start: int
    end: int
    form: str


def words(text: str) -> list[Word]:
    """The words of a text, in order."""
    found = []
    for start, end in _spans(text):
        form = form_of(text[start : min(end, start + 4 * MAX_FORM)])
        if form:
            found.append(Word(start, end, form))
    return found


@functools.lru_cache(maxsize=1 << 16)
def form_of(word: str) -> str:
    """The form of a word as it is written; empty if it has neither letters nor digits."""
    plain = unicodedata.normalize("NFKC", word).lower().translate(_APOSTROPHES).replace("i\u0307", "i")
    plain = unicodedata.normalize("NFKC", _UNSEEN.sub("", plain))
    plain = plain[:MAX_FORM].rstrip("_‿⁀⁔ ")
    first = next((i for i, character in enumerate(plain) if character.isalnum()), len(plain))
    return plain[first:]


def open_tail(text: str) -> str:
    """The end of a text on which the cutting of what is appended depends; all words before it are final."""
    hard = _HARD.search(text)
    return text[hard.end() :] if hard else text


def _spans(text: str) -> Iterator[tuple[int, int]]:
    for match in _WORD.finditer(text):
        start, end = match.span()
        if match["word"] is not None:
            yield start, end
            continue
        run = match.group()
        language = "th" if match["thai"] is not None else "ja_word" if _HAS_KANA.search(run) else "zh-hans"
        cuts = [start + cut for cut in _cuts(run, language)]
        yield from zip([start, *cuts], [*cuts, end], strict=True)


# Where each of a model's tables looks, relative to the possible cut: characters [first, last).
_FEATURES = {
    "UW1": (-3, -2),
    "UW2": (-2, -1),
    "UW3": (-1, 0),
    "UW4": (0, 1),
    "UW5": (1, 2),
    "UW6": (2, 3),
    "BW1": (-2, 0),
    "BW2": (-1, 1),
    "BW3": (0, 2),
    "TW1": (-3, 0),
    "TW2": (-2, 1),
    "TW3": (-1, 2),
    "TW4": (0, 3),
}
_REACH = 3


@functools.cache
def _model(language: str) -> tuple[list[tuple[dict[str, int], int, int]], int]:
    """A model's tables with where they look, and the threshold for twice the sum of their entries."""
    file = resources.files("budoux") / "models" / f"{language}.json"
    tables: dict[str, dict[str, int]] = json.loads(file.read_text(encoding="utf-8"))
    threshold = sum(sum(table.values()) for table in tables.values())
    return [(table, *_FEATURES[name]) for name, table in tables.items()], threshold


def _cuts(run: str, language: str) -> list[int]:
    """The positions inside a run of one script at which a word ends and the next begins."""
    tables, threshold = _model(language)
    padded = "\0" * _REACH + run + "\0" * _REACH  # no table knows the padding
    return [
        i - _REACH
        for i in range(_REACH + 1, _REACH + len(run))
        if 2 * sum(table.get(padded[i + first : i + last], 0) for table, first, last in tables) > threshold
    ]
