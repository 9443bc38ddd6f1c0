"""Sentences and tokens of a text by their places, for taggers and models that read one sentence at a time.

Unlike the words of a detector, a hyphenated compound is one token here, and so is a punctuation mark. A wrong
end of a sentence costs a substitution, never a mark, so the rules are few.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+(?=[\"'“‘(\[]*[A-Z0-9])|\s*\n\s*")
_ABBREVIATED = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|vs|etc|cf|approx|Inc|Ltd|Co|Corp|Dept|Fig|No|Vol|pp|Gen|Col|Lt|Rev"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)|\b[A-Za-z])\.$"
)
_TOKEN = re.compile(r"\d[\d.,:/%-]*\w*|[^\W\d_]+(?:['’\-–][^\W_]+)*|\S")


class TextSpan(NamedTuple):
    """Characters [start, end) of a text."""

    start: int
    end: int

    def overlaps(self, other: TextSpan) -> bool:
        """Whether the two have a character in common."""
        return self.start < other.end and other.start < self.end


def sentences(text: str) -> list[TextSpan]:
    """The sentences of a text, without the white space around them; a line break ends one."""
    found: list[TextSpan] = []
    start = 0
    for match in _END.finditer(text):
        if "\n" not in match.group() and _ABBREVIATED.search(text[start : match.start()]):
            continue
        found.append(TextSpan(start, match.end()))
        start = match.end()
    found.append(TextSpan(start, len(text)))
    return [trimmed for span in found if (trimmed := _trimmed(text, span)).start < trimmed.end]


def tokens(text: str, within: TextSpan) -> list[TextSpan]:
    """Words, numbers and punctuation marks of a sentence."""
    return [TextSpan(*match.span()) for match in _TOKEN.finditer(text, within.start, within.end)]


def _trimmed(text: str, span: TextSpan) -> TextSpan:
    part = text[span.start : span.end]
    start = span.start + len(part) - len(part.lstrip())
    return TextSpan(start, max(start, span.start + len(part.rstrip())))
