"""Cut a text into the pieces that are shown in one colour, whatever its tokenizer's offsets look like.

Byte-level pieces of one character share that character's offsets, some tokens stand for no character at all,
and some characters belong to no token. The spans made here join up to the text exactly, once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dewmark.types import TokenScore

__all__ = ["LEVELS", "Span", "grouped", "level", "spans"]

LEVELS = 4
_STEP = 0.6


@dataclass(frozen=True, slots=True)
class Span:
    """Some characters of a text and the tokens that share them, in order; no tokens where none has them."""

    text: str
    tokens: tuple[TokenScore, ...]

    @property
    def scored(self) -> bool:
        """Whether any of the tokens carries evidence."""
        return any(token.scored for token in self.tokens)

    @property
    def score(self) -> float:
        """Σu/√n over the scored tokens: standard normal on unmarked text, like a single token's score."""
        scores = [token.score for token in self.tokens if token.scored]
        return sum(scores) / math.sqrt(len(scores)) if scores else 0.0


def spans(text: str, tokens: Iterable[TokenScore]) -> list[Span]:
    """Partition ``text``: the spans' texts joined give the text back."""
    pieces: list[Span] = []
    group: list[TokenScore] = []
    start = end = 0  # of the characters that the group holds

    def close() -> None:
        if group and end > start:
            pieces.append(Span(text[start:end], tuple(group)))
            group.clear()

    for token in sorted(tokens, key=lambda token: token.start):
        first, last = (min(max(offset, 0), len(text)) for offset in (token.start, token.end))
        if first >= end and last > first:
            close()  # a group of tokens without characters stays open and joins the next characters
            if first > end:
                pieces.append(Span(text[end:first], ()))
            start, end = first, last
        group.append(token)
        if last > first:
            end = max(end, last)
    close()
    if end < len(text):
        pieces.append(Span(text[end:], ()))
    return pieces


def grouped(pieces: Iterable[Span], places: Sequence[tuple[int, int]]) -> list[tuple[int | None, list[Span]]]:
    """Group spans by the place they lie in: (index of the place or None, its spans), in order.

    ``places`` are disjoint (start, end) character offsets, in order. A span that only touches a place belongs
    to it, to the first if it touches two.
    """
    groups: list[tuple[int | None, list[Span]]] = []
    at = 0
    for piece in pieces:
        end = at + len(piece.text)
        place = next((i for i, (first, last) in enumerate(places) if at < last and end > first), None)
        if groups and groups[-1][0] == place:
            groups[-1][1].append(piece)
        else:
            groups.append((place, [piece]))
        at = end
    return groups


def level(score: float) -> int:
    """The colour step of a score, −4 … 4: 0 near 0, ±4 beyond ±2.1 (2% of unmarked tokens on each side)."""
    if not math.isfinite(score):
        return 0
    return max(-LEVELS, min(LEVELS, round(score / _STEP)))
