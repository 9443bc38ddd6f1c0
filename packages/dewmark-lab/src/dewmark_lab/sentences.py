"""Sentence boundaries, by one rule for detection and for marking, which sees a growing text.

A sentence ends at a line break, or at a run of . ! ? … or their equivalents in other scripts together with
the quotes and brackets that close after it, if a space or the end of the text follows (the wide marks of
Chinese and Japanese need no space). It does not end inside "3.14" or "example.org", after an abbreviation or
an initial ("Dr. Ada B. King"), or before it contains a letter, so "1." and "* * *" belong to the sentence
after them.

Text is read from left to right, and each end depends only on its own sentence and the next character: an end
that is certain stays so however the text continues, and reading can resume from any end. The rule need not be
the best one for any language, but it must be the same for marking and detection.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_WIDE = "。！？｡"
_LINES = r"\n\r\x0b\x0c\x85\u2028\u2029"
_MARKS = f".!?…‽؟۔।॥։።{_WIDE}"
_END = re.compile(rf"(?P<line>[{_LINES}])|(?P<mark>[{_MARKS}]+)(?P<close>[\"'”’»›)\]}}」』）】]*)")
_START_OF_END = re.compile(f"[{_LINES}{_MARKS}]")  # several times faster where there is no end
_LAST_WORD = re.compile(r"[^\W\d_]+\Z")
# English titles, references and months, then German, French, Italian, Spanish
_ABBREVIATIONS = (
    "mr mrs ms dr prof st sr jr vs etc al cf ca approx inc ltd co corp dept fig figs no nos vol pp ed eds "
    "gen col lt sgt capt rev hon jan feb mar apr jun jul aug sep sept oct nov dec "
    "bzw usw vgl nr bd hr fr str evtl ggf sog mme mlle sig sra dott núm pág"
)
_ABBREVIATED = frozenset(_ABBREVIATIONS.split())


class Sentence(NamedTuple):
    """One sentence by its (start, end) character offsets; only the last of a text can be incomplete."""

    start: int
    end: int
    complete: bool


def sentences(text: str) -> list[Sentence]:
    """The sentences of a text; trailing characters without a letter belong to none."""
    found = []
    start = 0
    while (end := first_end(text, start=start, last=True)) is not None:
        found.append(_trimmed(text, start, end, complete=True))
        start = end
    if _has_letter(text[start:]):
        found.append(_trimmed(text, start, len(text), complete=False))
    return found


def first_end(text: str, *, start: int = 0, last: bool = False) -> int | None:
    """The end of the sentence that begins at ``start``, or None if it is not (yet) certain.

    ``last`` means that nothing follows the text. The line break that ends a sentence is part of it.
    """
    first = _START_OF_END.search(text, start)
    if first is None:
        return None
    lettered = False
    seen = start
    for match in _END.finditer(text, first.start()):
        lettered = lettered or _has_letter(text[seen : match.start()])
        seen = match.end()
        if not lettered:
            continue
        if match["line"]:
            return match.end()
        after = text[match.end() : match.end() + 1]
        if not after:  # a digit, a quote or another mark could follow
            return match.end() if last else None
        if match["mark"][-1] in _WIDE or (after.isspace() and not _abbreviated(text, start, match)):
            return match.end()
    return None


def _abbreviated(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether a single full stop belongs to the word before it: "Dr.", "B.", "e.g."."""
    if match["mark"] != ".":
        return False
    word = _LAST_WORD.search(text, max(start, match.start() - 20), match.start())
    if word is None:
        return False
    letters = word.group()
    initial = len(letters) == 1 and (text[word.start() - 1 : word.start()] == "." or letters not in "aAI")
    return initial or letters.lower() in _ABBREVIATED


def _has_letter(text: str) -> bool:
    return any(character.isalpha() for character in text)


def _trimmed(text: str, start: int, end: int, *, complete: bool) -> Sentence:
    piece = text[start:end]
    return Sentence(start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip()), complete)
