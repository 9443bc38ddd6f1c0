"""Translating texts sentence by sentence: splitting, sorting out duplicates, and putting texts back together.

A text is split at line breaks and sentence ends, and a sentence that is too long near its middle, at a comma
if possible. Every distinct sentence is translated once and put back into the original white space. A sentence
that a translator turns into nothing stays unchanged.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from dewmark_lab.sentences import sentences

OnProgress = Callable[[int, int], None]
Span = tuple[int, int]

_LINE = re.compile(r"[^\n\r\x0b\x0c\x85\u2028\u2029]+")
_BREAK = re.compile(r"\s*\n\s*")
_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_PAUSE = re.compile(r"(?<=[,;:])\s+|(?<=[，；：、])")
_SPACE = re.compile(r"\s+")


class SentenceTranslator(ABC):
    """A translator of one direction, which sees distinct sentences of at most ``longest`` pieces.

    With ``whole_texts`` it sees texts instead, and parts of long ones.
    """

    longest: int
    whole_texts = False

    @abstractmethod
    def pieces(self, sentence: str) -> list[int]:
        """The ids of a sentence; each has at least one character."""

    @abstractmethod
    def translate_sentences(self, sentences: Sequence[str], on_progress: OnProgress) -> list[str]:
        """One translation per sentence; ``on_progress`` gets the finished sentences and all sentences."""

    def translate(self, texts: Sequence[str], *, on_progress: OnProgress) -> list[str]:
        """Translate texts."""
        texts = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]  # no lone surrogates
        spans = [list(self._spans(text)) for text in texts]
        found = (text[a:b] for text, own in zip(texts, spans, strict=True) for a, b in own)
        distinct = list(dict.fromkeys(found))
        written = self.translate_sentences(distinct, on_progress)
        made = {old: new.strip() or old for old, new in zip(distinct, written, strict=True)}
        return [_replace(text, own, made) for text, own in zip(texts, spans, strict=True)]

    def _spans(self, text: str) -> Iterator[Span]:
        """The spans of a text's sentences; long sentences are split."""
        if self.whole_texts:
            if written := text.strip():
                start = text.index(written)
                yield from self._split(text, start, start + len(written))
            return
        for line in _LINE.finditer(text):
            for sentence in sentences(line.group()):
                yield from self._split(text, line.start() + sentence.start, line.start() + sentence.end)

    def _split(self, text: str, start: int, end: int) -> Iterator[Span]:
        sentence = text[start:end]
        if len(sentence) <= self.longest or len(self.pieces(sentence)) <= self.longest:
            yield start, end
            return
        places = (_BREAK, _END, _PAUSE, _SPACE) if self.whole_texts else (_PAUSE, _SPACE)
        left, right = _halves(sentence, places)
        yield from self._split(text, start, start + left)
        yield from self._split(text, start + right, end)


def batches_of(sizes: Sequence[int], *, room: int, most: int | None = None) -> Iterator[list[int]]:
    """The places of items, small ones first, in batches of at most ``most`` that fit in ``room``."""
    batch: list[int] = []
    for place in sorted(range(len(sizes)), key=sizes.__getitem__):
        if batch and (len(batch) == most or (len(batch) + 1) * sizes[place] > room):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _replace(text: str, spans: Sequence[Span], made: dict[str, str]) -> str:
    """The text with its sentences replaced and everything between them kept."""
    parts, at = [], 0
    for start, end in spans:
        parts += [text[at:start], made[text[start:end]]]
        at = end
    return "".join([*parts, text[at:]])


def _halves(sentence: str, patterns: Sequence[re.Pattern[str]]) -> Span:
    """Where the first half ends and the second begins: at the pause or else space nearest the middle."""
    size = len(sentence)
    for pattern in patterns:
        places = [m.span() for m in pattern.finditer(sentence) if size // 4 < m.start() <= size - size // 4]
        if places:
            return min(places, key=lambda place: abs(place[0] - size // 2))
    return size // 2, size // 2
