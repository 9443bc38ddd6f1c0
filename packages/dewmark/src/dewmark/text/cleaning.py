"""Undo what formats and disguises do to a text, before words are cut or tokens are made.

A mark lies in the words that a reader sees, so what no reader sees must not change them: markup, invisible
characters, strokes over letters, line numbers, hyphens at line ends, look-alike and styled letters. `clean`
removes all that and remembers the place of every character in the text as it was given.

Only HTML's own tags count as tags, so ``List<String>`` stays. Look-alike letters are replaced in words that
mix alphabets, so real Russian and Greek stay; three such words in a text show a disguise, and then words
that consist of look-alikes only are replaced too. Line numbers must count up line by line through the text;
"1." and "1)" count as a list unless lines begin in the middle of sentences.

Everything is a function of the text alone and takes time linear in its length. Ordinary prose comes back as
it is, so a text that grows while it is marked (`dewmark.text.trie`) has the same words.
"""

from __future__ import annotations

import functools
import html
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html.entities import html5
from importlib import resources

import numpy as np
import regex

from dewmark.arrays import I64
from dewmark.workspace import Tokenized, Tokenizer

__all__ = ["alphabets", "clean", "styles"]

_FLAGS = regex.VERSION1 | regex.VERBOSE
Edit = tuple[int, int, str]  # characters [start, end) become this


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A cleaned text, and where its characters lie in the original.

    ``steps`` are the changes of length, the last one first: for each change its place in the text before
    (start, end) and its place after it, rows of (N, 4).
    """

    text: str
    steps: tuple[I64, ...] = ()

    def original(self, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Spans of characters of the cleaned text to the same characters of the original."""
        if not self.steps or not spans:
            return list(spans)
        found = np.array(spans, dtype=np.int64)
        starts, ends = found[:, 0], found[:, 1]
        empty = ends <= starts
        lasts = np.maximum(ends - 1, starts)
        for step in self.steps:
            starts, lasts = _before(step, starts, last=False), _before(step, lasts, last=True)
        return list(zip(starts.tolist(), np.where(empty, starts, lasts + 1).tolist(), strict=True))


def _before(step: I64, places: I64, *, last: bool) -> I64:
    """The first (or last) character from which each character after a step was made."""
    index = np.searchsorted(step[:, 2], places, side="right") - 1
    row = step[np.maximum(index, 0)]
    inside = places < row[:, 3]
    made_from = row[:, 1] - 1 if last else row[:, 0]
    found: I64 = np.where(index < 0, places, np.where(inside, made_from, places - row[:, 3] + row[:, 1]))
    return found


def clean(text: str) -> Cleaned:
    """The text without markup, invisible characters and disguises."""
    steps: list[I64] = []
    # 1. what no reader sees, each kind in the text without those before it
    for find in (_markup, _line_numbers, _hyphens, _invisible, _narrow_kana):
        pieces: list[str] = []
        rows: list[tuple[int, int, int, int]] = []
        at = length = 0
        for start, end, new in find(text):
            pieces += (text[at:start], new)
            length += start - at
            rows.append((start, end, length, length + len(new)))
            at, length = end, length + len(new)
        if rows:
            text = "".join((*pieces, text[at:]))
            steps.insert(0, np.array(rows, dtype=np.int64))
    # 2. disguised letters
    if not text.isascii():
        if not styles().keys().isdisjoint(map(ord, set(text))):
            text = text.translate(styles())
        text = _same_alphabet(text)
    # 3. underscores and unusual spaces, where a text has more of them than of ordinary ones
    joined = "_" in text or not (text.isascii() or _JOINTS.isdisjoint(text))
    if joined and len(_JOINED.findall(text)) > text.count(" "):
        text = _JOINED.sub(" ", text)
    return Cleaned(text, tuple(steps))


def tokenize_cleaned(tokenizer: Tokenizer, texts: Iterable[str]) -> list[Tokenized]:
    """Tokens of the cleaned texts, with their offsets in the texts as they are given."""
    given = list(texts)
    cleaned = [clean(text) for text in given]
    made = tokenizer.encode([_ODD_SPACE.sub(" ", each.text) for each in cleaned])
    return [
        Tokenized(text, tokens.ids, tuple(each.original(tokens.offsets)))
        for text, each, tokens in zip(given, cleaned, made, strict=True)
    ]


# Markup

_INLINE_NAMES = (
    "a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd mark q rb ruby s samp small span "
    "strike strong sub sup time tt u var wbr"
)
_BLOCK_NAMES = (
    "address applet area article aside audio base blockquote body br button canvas caption center col "
    "colgroup datalist dd details dialog dir div dl dt embed fieldset figcaption figure footer form frame "
    "frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe img input label legend li link main map "
    "menu meta meter nav noframes noscript object ol optgroup option output p param picture pre progress rp "
    "rt script search section select slot source style summary svg table tbody td template textarea tfoot th "
    "thead title tr track ul video"
)
_INLINE, _BLOCK = frozenset(_INLINE_NAMES.split()), frozenset(_BLOCK_NAMES.split())
_ENTITY = r"(?:[A-Za-z][A-Za-z0-9]{1,31}+|\#[0-9]{1,7}+|\#[xX][0-9A-Fa-f]{1,6}+)"
_MARKUP = regex.compile(
    rf"""
    (?=[<&\]*~])(?:  # skips quickly to where markup may be
    (?P<hidden> <(?:script|SCRIPT|style|STYLE)\b[^<>]*+> [^<]*+ </(?:script|SCRIPT|style|STYLE)\s*+> )
  | (?P<tag> </?+ (?P<name>[A-Za-z][A-Za-z1-6]*+) (?:\s[^<>]*+|/)?+ > )
  | (?P<declaration> <[!?][^<>]*+> )
  | (?P<entity> & (?: (?:amp;)++ (?:{_ENTITY};)?+ | {_ENTITY}; ) )
  | \] (?P<target> \( [^()\s<>]{{1,2000}}+ (?: \s"[^"\n]{{0,500}}+" )?+ \) )
  | (?P<emphasis> \*{{2,3}}+ (?<=\p{{L}}\*{{2,3}}) | ~~ (?<=\p{{L}}~~) ) (?=\p{{L}})
    )""",
    _FLAGS,
)


def _markup(text: str) -> Iterator[Edit]:
    if not ("<" in text or "&" in text or "](" in text or "**" in text or "~~" in text):
        return
    for match in _MARKUP.finditer(text):
        seen: str | None = ""  # what a reader sees instead; None if it is not markup after all
        if match["tag"] is not None:
            name = match["name"].lower()
            seen = "" if name in _INLINE else "\n" if name in _BLOCK else None
        elif match["entity"] is not None:
            name = match.group()[1:].replace("amp;", "")
            seen = html.unescape(f"&{name}") if name[:1] in ("", "#") else html5.get(name)
        elif match["hidden"] or match["declaration"]:
            seen = "\n"
        if seen is not None:
            yield (*match.span("target" if match["target"] else 0), seen)


# Lines

_NUMBERED = regex.compile(r"[^\S\r\n]*+([0-9]{1,6})([.:|)\]│→]?+)(?:[^\S\r\n]++|\r?+$)")
_MIN_LINES = 3
_MIN_NUMBERED = 0.5  # of all lines: a numbered line may have been broken again
_MIN_MID_SENTENCE = 0.3  # a wrapped text's lines begin with small letters, a list's with capitals
_YEARS = range(1000, 2200)


def _line_numbers(text: str) -> list[Edit]:
    """The numbers in front of lines, if they count up line by line through the whole text."""
    if "\n" not in text:
        return []
    edits: list[Edit] = []
    at = written = small = latest = skipped = 0
    as_list = False
    for line in text.split("\n"):
        match = _NUMBERED.match(line)
        number = int(match[1]) if match is not None else 0
        follows = latest < number <= latest + 1 + skipped if edits else number not in _YEARS
        if match is not None and follows:
            edits.append((at, at + match.end(), ""))
            as_list = as_list or match[2] in (".", ")")
            small += line[match.end() : match.end() + 1].islower()
            latest, skipped = number, 0
        else:
            skipped += 1  # the line may have been counted all the same
        written += bool(line.strip())
        at += len(line) + 1
    few = len(edits) < _MIN_LINES or len(edits) < _MIN_NUMBERED * written
    if few or (as_list and small < _MIN_MID_SENTENCE * len(edits)):
        return []
    return edits


_HYPHENS = frozenset("-\u2010\u00ad")
_HYPHEN = regex.compile(r"[-\u2010\u00AD] (?<=\p{L}\p{Ll}.) [ \t]*+ \r?+\n [ \t]*+ (?=\p{Ll}\p{Ll})", _FLAGS)


def _hyphens(text: str) -> Iterator[Edit]:
    if "\n" in text and not _HYPHENS.isdisjoint(text):
        for match in _HYPHEN.finditer(text):
            yield (*match.span(), "")


# Characters that are not seen

# Soft hyphens, fillers, direction marks, invisible operators, lines drawn over or under letters.
_ALWAYS = (
    r"\u00AD\u034F\u061C\u115F\u1160\u17B4\u17B5\u180E\u200E\u200F\u202A-\u202E\u2060-\u206F\u3164\uFEFF"
    r"\uFFA0\uFFF9-\uFFFB\u0305\u0332\u0333\u0335-\u0338\u033F\u20D0-\u20DC\u20E0-\u20F0"
)
# Joiners belong to Persian, to the scripts of India and to emoji; variants and tags belong to emoji.
_SOMETIMES = r"\u200C\u200D\u180B-\u180D\u180F\uFE00-\uFE0F\U000E0000-\U000E0FFF"
_SPACE = "\u200b"  # the zero-width space separates words of Khmer, Lao, Burmese and Thai
_INVISIBLE = regex.compile(rf"[{_ALWAYS}{_SOMETIMES}{_SPACE}]++", regex.VERSION1)
_HARMLESS = regex.compile(rf"[{_ALWAYS}{_SPACE}]++", regex.VERSION1)
_UNJOINED = regex.compile(r"[\p{Latin}\p{Greek}\p{Cyrillic}\p{Nd}\p{P}\s]", regex.VERSION1)
_UNSPACED = regex.compile(r"\p{LB=SA}", regex.VERSION1)


def _invisible(text: str) -> Iterator[Edit]:
    if text.isascii():
        return
    for match in _INVISIBLE.finditer(text):
        run, (start, end) = match.group(), match.span()
        before, after = text[max(start - 1, 0) : start], text[end : end + 1]
        if _SPACE in run and (_UNSPACED.match(before) or _UNSPACED.match(after)):
            continue
        if _HARMLESS.fullmatch(run) or _UNJOINED.match(before):
            yield start, end, ""


# Letters in another style or alphabet

_NARROW_PAIR = regex.compile(r"[\uFF66-\uFF9D][\uFF9E\uFF9F]")


def _narrow_kana(text: str) -> Iterator[Edit]:
    """Narrow kana with a sign of its own for the voice, which a wide one contains."""
    if not text.isascii():
        for match in _NARROW_PAIR.finditer(text):
            yield (*match.span(), unicodedata.normalize("NFKC", match.group()))


@functools.cache
def styles() -> dict[int, str]:
    """Mathematical, circled, squared and wide letters to plain ones; small capitals to small letters."""
    found = {}
    for first, last in (
        (0x1D400, 0x1D7FF),
        (0x24B6, 0x24E9),
        (0x1F110, 0x1F12B),
        (0x1F130, 0x1F149),
        (0xFF21, 0xFF3A),
        (0xFF41, 0xFF5A),
        (0x2102, 0x2134),
    ):
        for code in range(first, last + 1):
            plain = unicodedata.normalize("NFKC", chr(code)).strip("()")
            if len(plain) == 1 and plain.isalnum():
                found[code] = plain
    for first in (0x1F150, 0x1F170):  # white on black, which Unicode maps to nothing
        found |= {first + i: chr(ord("A") + i) for i in range(26)}
    small = "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘꞯʀꜱᴛᴜᴠᴡxʏᴢ"
    found |= {ord(c): chr(ord("a") + i) for i, c in enumerate(small) if not c.isascii()}
    return found | {ord("ɑ"): "a", ord("ɡ"): "g"}


@dataclass(frozen=True, slots=True)
class _Alphabets:
    """``latin`` gives the Latin letter that a letter looks like, ``other`` the converse by alphabet."""

    latin: dict[str, str]
    other: dict[str, dict[str, str]]


_SCRIPTS = ("Cyrillic", "Greek")
_LATIN = regex.compile(r"\p{Latin}", regex.VERSION1)
_SCRIPT = {name: regex.compile(rf"\p{{{name}}}", regex.VERSION1) for name in _SCRIPTS}
_RUN = regex.compile(r"[\p{L}\p{M}]++", regex.VERSION1)
_DISGUISED = 3


@functools.cache
def alphabets() -> _Alphabets:
    """The letters that look alike, by alphabet."""
    file = resources.files("dewmark") / "data" / "lookalikes.txt"
    latin: dict[str, str] = {}
    other: dict[str, dict[str, str]] = {name: {} for name in _SCRIPTS}
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        letter, *columns = line.split(" ")
        for name, alike in zip((*_SCRIPTS, None), columns, strict=True):
            if alike == "-":
                continue
            latin |= dict.fromkeys(alike, letter)
            if name is not None:
                other[name][letter] = alike[0]
    return _Alphabets(latin, other)


def _same_alphabet(text: str) -> str:
    """Words that mix alphabets, written in the one that they belong to."""
    known = alphabets()
    if known.latin.keys().isdisjoint(set(text)) or not _LATIN.search(text):
        return text
    # 1. the main alphabet is that of most letters that look like none of another alphabet
    counts: Counter[str] = Counter()
    for letter, count in Counter(text).items():
        if _LATIN.match(letter):
            counts["Latin"] += 0 if letter in known.other["Cyrillic"] else count
        elif letter not in known.latin:
            for name, pattern in _SCRIPT.items():
                counts[name] += count if pattern.match(letter) else 0
    main = max(("Latin", *_SCRIPTS), key=counts.__getitem__)
    # 2. words that mix alphabets, and if there are several, those of look-alikes only
    pieces: list[str] = []
    alone: list[tuple[int, str]] = []  # (piece, replacement) of words that consist of look-alikes only
    at = mixed = 0
    for match in _RUN.finditer(text):
        run = match.group()
        if main == "Latin" and run.isascii():
            continue
        plain = _folded(run, main)
        if plain is None:
            continue
        pieces += (text[at : match.start()], run)
        at = match.end()
        if run.isascii() or not _LATIN.search(run):
            alone.append((len(pieces) - 1, plain))
        else:
            mixed += 1
            pieces[-1] = plain
    if mixed >= _DISGUISED:
        for place, plain in alone:
            pieces[place] = plain
    return "".join((*pieces, text[at:]))


@functools.lru_cache(maxsize=1 << 15)
def _folded(run: str, main: str) -> str | None:
    """A word in one alphabet, the main one if possible; None if it stays as it is."""
    known = alphabets()
    targets = {"Latin": (known.latin, _LATIN)}
    if main != "Latin":
        if not _LATIN.search(run):
            return None
        targets = {main: (known.other[main], _SCRIPT[main]), **targets}
    for table, own in targets.values():
        letters = [c if own.match(c) or unicodedata.combining(c) else table.get(c, "") for c in run]
        if all(letters):
            plain = "".join(letters)
            return None if plain == run else plain
    return None


# Spaces

_JOINTS = frozenset("_\u00a0\u202f\u205f").union(map(chr, range(0x2000, 0x200B)))
# Between words, whatever their number: a tokenizer makes other tokens of them. French puts unusual spaces
# before marks and between digits, and hosts write them there; these stay.
_ODD_SPACE = regex.compile(
    r"[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000] (?<=[\p{L},.;:!?)\]”’'\"].) (?=[\p{L}\p{N}])", _FLAGS
)
_JOINED = regex.compile(rf"[{''.join(_JOINTS)}] (?<=[\p{{L}}\p{{N}}].) (?=[\p{{L}}\p{{N}}])", _FLAGS)
