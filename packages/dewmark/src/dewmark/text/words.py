"""The words of a text: their positions, and the normalised form under which their vector is looked up.

A text is cleaned first (`dewmark.text.cleaning`), so markup, invisible characters and look-alike letters
change no word; positions are those in the text as it was given.

Segmentation follows the default rules of UAX 29, except that underscores separate words: "don't", "l'eau",
"3.14" and "12th" are one word each, "mother-in-law" is three; spaces, punctuation, symbols and emoji belong
to no word. Runs of Chinese, Japanese and Thai are cut from left to right into the longest beginnings of
*units*, a packaged list of frequent words (`units`); a character that begins none is a word. So only the last
word can change when text is appended, a tokenizer's pieces can follow the cuts (`dewmark.text.trie`), and
after an edit the cuts soon fall together again. Lao, Khmer and Burmese stay whole between spaces.

The form of a word is its lower-case NFKC, with one kind of apostrophe and without invisible characters,
Arabic and Hebrew vowel points and elongation strokes, and traditional Chinese characters are simplified.
Accents and ß are kept: the default encoder places "élève" nearer to "pupil" than "eleve". A number is a word
and its text its form.

A word that a lexicon does not list is known by its spelling alone, a number that grows letter by letter:

    spelling(form) = Σ_i code(letter_i) B^(n−i)  mod P,    n letters

so that of a word in several tokens follows from those of the tokens (`spelling`).

Marking and detection must agree on words and forms, so any change to either changes `VERSION`. Time is linear
in the text. Boundary: complete texts only; `dewmark.text.trie` follows texts that are being generated.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple, overload

import numpy as np
import regex

from dewmark.arrays import I64, Mask
from dewmark.text.cleaning import Cleaned, clean

__all__ = [
    "VERSION",
    "class_letter",
    "distinct",
    "form_of",
    "most_words",
    "places_and_forms",
    "repetition",
    "spelling",
    "words",
]

VERSION = 3

MAX_FORM = 64
"""Forms are truncated at this many characters, so that no encoder reads a megabyte of one letter."""

# The classes of UAX 29. Extend, Format and ZWJ belong to the character before them (rule WB4).
_ATTACHED = r"\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}"
_LETTER = r"[[\p{WB=ALetter}\p{WB=Hebrew_Letter}]--\p{Han}]"
_DIGIT = r"\p{WB=Numeric}"
_MID_LETTER = r"[\p{WB=MidLetter}\p{WB=MidNumLet}\p{WB=Single_Quote}]"
_MID_DIGIT = r"[\p{WB=MidNum}\p{WB=MidNumLet}\p{WB=Single_Quote}]"
_HEBREW = r"\p{WB=Hebrew_Letter}"
# Scripts without spaces, for which UAX 29 requires dictionaries. 々 and 〇 count as Han, ー as kana.
_KANA = r"[\p{Hiragana}\p{WB=Katakana}]"
_CJK = rf"[\p{{Han}}{_KANA}]"
_THAI = r"[\p{Thai}&&[\p{L}\p{M}]]"
_UNSPACED = r"[[\p{LB=SA}--\p{Thai}]&&[\p{L}\p{M}]]"

# Characters are replaced by letters for their classes, and the rules by a plain pattern of such letters: four
# times as fast. Capitals C, T and U also belong to the character before them, like x.
_CLASSES = {
    "c": _CJK,
    "t": _THAI,
    "u": _UNSPACED,
    "H": _HEBREW,
    "L": _LETTER,
    "D": _DIGIT,
    "q": r"\p{WB=Double_Quote}",
    "'": r"\p{WB=Single_Quote}",
    ".": r"\p{WB=MidNumLet}",
    ":": r"\p{WB=MidLetter}",
    ",": r"\p{WB=MidNum}",
    "x": f"[{_ATTACHED}]",
}
_WITH_X = "[xCTU]*+"
_WORD = re.compile(
    rf"""
    [cC][cxCTU]*+ | [tT][txCTU]*+ | [uU][uxCTU]*+
  | (?=[LHD])
    (?: L++ {_WITH_X} (?: [:.'] {_WITH_X} (?=[LH]) )?                            # WB5-7
      | H {_WITH_X} (?: [:.'] {_WITH_X} (?=[LH]) | q {_WITH_X} (?=H) | (?!') )   # and WB7b, WB7c
      | D++ {_WITH_X} (?: [,.'] {_WITH_X} (?=D) )?                               # WB8-12
    )*+
    (?: H {_WITH_X} ' {_WITH_X} )?                                               # WB7a
    """,
    re.VERBOSE,
)


class _ClassLetters(dict[int, str]):
    """The class letter of each character that has occurred; a space for those that belong to no word."""

    def __missing__(self, code: int) -> str:
        found = [name for name, pattern in _class_patterns().items() if pattern.match(chr(code))]
        letter = found[0] if found else " "
        if letter in "ctu" and "x" in found:
            letter = letter.upper()
        if len(self) > _MAX_LETTERS:
            self.clear()
        self[code] = letter
        return letter


def class_letter(character: str) -> str:
    """The letter that stands for a character in the rules of words: its class, or a space for none."""
    return _LETTERS[ord(character)]


@functools.cache
def _class_patterns() -> dict[str, regex.Pattern[str]]:
    return {name: regex.compile(members, regex.VERSION1) for name, members in _CLASSES.items()}


_MAX_LETTERS = 1 << 16
_LETTERS = _ClassLetters()
# Nothing after such a character can belong to a word before it.
_SOFT = rf"{_LETTER}{_DIGIT}{_CJK}{_THAI}{_UNSPACED}{_MID_LETTER}{_MID_DIGIT}"
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
    return [Word(start, end, form) for (start, end), form in zip(*places_and_forms(text), strict=True)]


def places_and_forms(text: str) -> tuple[Places, list[str]]:
    """The (start, end) of each word of a text, and its form."""
    cleaned = clean(text)
    unusual, word = _plain_text()
    plain = not unusual.search(cleaned.text)
    written = word.findall(cleaned.text) if plain else []
    if plain and max(map(len, written), default=0) <= 4 * MAX_FORM:
        forms = list(filter(None, map(form_of, written)))  # those of `cut`, in a third of the time
    else:
        forms = [each.form for each in cut(cleaned.text)]
    return Places(cleaned, len(forms)), forms


@dataclass(frozen=True, eq=False)
class Places(Sequence[tuple[int, int]]):
    """The (start, end) of each of ``size`` words of a text, found when one is looked at: few readers do."""

    cleaned: Cleaned
    size: int

    @functools.cached_property
    def _all(self) -> list[tuple[int, int]]:
        return self.cleaned.original([(start, end) for start, end, _ in cut(self.cleaned.text)])

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, int]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, int] | list[tuple[int, int]]:
        return self._all[index]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._all)


def cut(text: str) -> list[Word]:
    """The words of a text that is clean already."""
    letters = text.translate(_LETTERS)
    spans = [match.span() for match in _WORD.finditer(letters)]
    if any(script in letters for script in "cCtT"):
        # a word of a script without spaces goes on while it is the beginning of a unit
        runs, spans, known = spans, [], _beginnings()
        for start, end in runs:
            if letters[start] not in "cCtT":
                spans.append((start, end))
                continue
            plain, first = text[start:end].translate(simplified()), 0
            for i in range(1, len(plain) + 1):
                if i == len(plain) or plain[first : i + 1] not in known:
                    spans.append((start + first, start + i))
                    first = i
    most = 4 * MAX_FORM
    found = [(i, j, form_of(text[i : min(j, i + most)])) for i, j in spans]
    return [Word(*each) for each in found if each[2]]


@functools.cache
def _plain_text() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A character that plain Latin text does not have, and a word of such text (the rules of `_WORD`)."""
    members: dict[str, str] = dict.fromkeys("LD:.', q", "")
    for code in (*range(0x250), *map(ord, _PUNCTUATION)):
        letter = _LETTERS[code]
        if letter in members:
            members[letter] += re.escape(chr(code))
    L, D, quote, dot = (members[name] for name in "LD'.")
    letters = f"(?<=[{L}])[{members[':']}{dot}{quote}](?=[{L}])"
    digits = f"(?<=[{D}])[{members[',']}{dot}{quote}](?=[{D}])"
    word = f"[{L}{D}]++(?:(?:{letters}|{digits})[{L}{D}]++)*+"
    return re.compile(f"[^{''.join(members.values())}]"), re.compile(word)


_PUNCTUATION = "‐‑‒–—‘’‚“”„†•…‹›€™−"


@functools.lru_cache(maxsize=1 << 16)
def form_of(word: str) -> str:
    """The form of a word; empty if it has neither letters nor digits."""
    if word.isascii() and word.isalnum():
        return word[:MAX_FORM].lower()
    plain = unicodedata.normalize("NFKC", word).lower().translate(_APOSTROPHES).replace("i\u0307", "i")
    plain = unicodedata.normalize("NFKC", _UNSEEN.sub("", plain)).translate(simplified())
    plain = plain[:MAX_FORM].rstrip()
    first = next((i for i, character in enumerate(plain) if character.isalnum()), len(plain))
    return plain[first:]


def most_words(text: str) -> int:
    """At least as many words as `words` finds in a text, in a tenth of its time or less.

    In a script with spaces a run of letters is one word at most; any other letter may be a word by itself.
    """
    return sum(1 for _ in _runs().finditer(text))


@functools.cache
def _runs() -> re.Pattern[str]:
    """A run of letters and digits that no rule separates, or another character that may be a word."""
    joined = (chr(code) for code in range(0x2000) if class_letter(chr(code)) in "LHDx")
    return re.compile(rf"[{re.escape(''.join(joined))}\uac00-\ud7a3]+|[\u2e80-\U0010ffff]|[^\W_]")


def open_tail(text: str) -> str:
    """The end of a text that can still change when text is appended; all words before it are final."""
    hard = _HARD.search(text)
    return text[hard.end() :] if hard else text


@functools.cache
def _unit_file() -> list[str]:
    file = resources.files("dewmark") / "data" / "units.txt"
    return file.read_text(encoding="utf-8").splitlines()


@functools.cache
def simplified() -> dict[int, str]:
    """Traditional Chinese characters to simplified ones, and narrow kana to wide."""
    traditional, simple, *_ = _unit_file()
    narrow = {code: unicodedata.normalize("NFKC", chr(code)) for code in range(0xFF66, 0xFF9E)}
    return narrow | dict(zip(map(ord, traditional), simple, strict=True))


@functools.cache
def units() -> tuple[str, ...]:
    """The frequent words of several characters in Chinese, Japanese and Thai, as forms."""
    return tuple(unit for line in _unit_file()[2:] for unit in line.split(" "))


@functools.cache
def _beginnings() -> frozenset[str]:
    return frozenset(unit[:i] for unit in units() for i in range(2, len(unit) + 1))


# Spellings

SPELLINGS = 131_071
"""P: there are so many spellings, a prime number."""
_FACTOR = 48_271  # B
_LENDS = 4096  # forms
_SPELLED = regex.compile(r"[\p{L}\p{M}']++", regex.VERSION1)


@functools.lru_cache(maxsize=1 << 16)
def spelling(form: str) -> tuple[int, int]:
    """A form's spelling, and the factor B^n of a spelling before it; (−1, −1) with signs or digits in it."""
    if not _SPELLED.fullmatch(form):
        return -1, -1
    found = 0
    for code in map(ord, form):
        found = (found * _FACTOR + _code(code)) % SPELLINGS
    return found, pow(_FACTOR, len(form), SPELLINGS)


def spellings(parents: I64, letters: I64) -> tuple[I64, Mask, Mask]:
    """Spellings of N prefixes, each a letter (a code point) after its parent, an earlier one; or −1.

    Also whether all of a prefix is ASCII, and whether its script has no spaces. The first prefix is empty.
    """
    distinct, which = np.unique(letters, return_inverse=True)
    codes = np.array([_code(c) if _SPELLED.match(chr(c)) else -1 for c in distinct.tolist()])[which]
    cut = np.array([_LETTERS[c] in "cCtT" for c in distinct.tolist()])[which]
    found, plain, done = np.zeros_like(letters), letters < 128, np.arange(len(letters)) == 0
    rest = np.arange(1, len(letters))
    while len(rest):  # one letter deeper each time
        now = rest[done[parents[rest]]]
        before, code = found[parents[now]], codes[now]
        found[now] = np.where(np.minimum(before, code) < 0, -1, (before * _FACTOR + code) % SPELLINGS)
        plain[now] &= plain[parents[now]]
        done[now] = True
        rest = rest[~done[rest]]
    return found, plain, cut


def _code(letter: int) -> int:
    return (letter * 40_503 + 12_345) % SPELLINGS * (letter + 7) % SPELLINGS


def borrowed_rows(spelled: I64, size: int) -> I64:
    """The rows that words of these spellings borrow from a list of so many forms, most frequent first.

    A short list, of which many words would borrow the same row, lends none.
    """
    first = size // 8  # frequent words weigh little in contexts
    return 1 + first + spelled % (size - first) if size >= _LENDS else spelled * 0


def distinct(text: str, n: int) -> float:
    """The share of distinct n-grams of words; 1 if the text has none."""
    tokens = text.split()
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def repetition(text: str) -> float:
    """The share of 4-grams of words that repeat an earlier one."""
    return 1.0 - distinct(text, 4)
