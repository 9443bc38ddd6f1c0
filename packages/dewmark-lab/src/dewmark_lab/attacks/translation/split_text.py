"""Translating texts sentence by sentence: splitting, sorting out duplicates, and putting texts back together.

A text is split at line breaks and sentence ends, and a sentence that is too long near its middle, at a comma
if possible. Every distinct sentence is translated once and put back into the original white space. A sentence
that a translator turns into nothing stays unchanged. Boundary: strings; translators see only sentences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from dewmark_lab.sentences import sentences

OnProgress = Callable[[int, int], None]
Span = tuple[int, int]

_LINE = re.compile(r"[^\n\r\x0b\x0c\x85\u2028\u2029]+")
_PAUSE = re.compile(r"(?<=[,;:])\s+|(?<=[，；：、])")
_SPACE = re.compile(r"\s+")


def translate_texts(
    texts: Sequence[str],
    *,
    too_long: Callable[[str], bool],
    translate: Callable[[list[str]], list[str]],
) -> list[str]:
    """Translate texts by a function that translates distinct sentences, none of which is ``too_long``."""
    texts = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]  # removes lone surrogates
    spans = [list(_spans(text, too_long)) for text in texts]
    distinct = list(dict.fromkeys(text[a:b] for text, own in zip(texts, spans, strict=True) for a, b in own))
    written = translate(distinct)
    made = {old: new.strip() or old for old, new in zip(distinct, written, strict=True)}
    return [_replace(text, own, made) for text, own in zip(texts, spans, strict=True)]


def batches_of(order: Sequence[int], sizes: Sequence[int], *, room: int) -> Iterator[list[int]]:
    """Consecutive items whose number times the last, largest size stays within ``room``."""
    batch: list[int] = []
    for i in order:
        if batch and (len(batch) + 1) * sizes[i] > room:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _spans(text: str, too_long: Callable[[str], bool]) -> Iterator[Span]:
    """The spans of a text's sentences; long sentences are split."""
    for line in _LINE.finditer(text):
        for sentence in sentences(line.group()):
            yield from _split(text, line.start() + sentence.start, line.start() + sentence.end, too_long)


def _split(text: str, start: int, end: int, too_long: Callable[[str], bool]) -> Iterator[Span]:
    if not too_long(text[start:end]):
        yield start, end
        return
    left, right = _halves(text[start:end])
    yield from _split(text, start, start + left, too_long)
    yield from _split(text, start + right, end, too_long)


def _replace(text: str, spans: Sequence[Span], made: dict[str, str]) -> str:
    """The text with its sentences replaced and everything between them kept."""
    parts, at = [], 0
    for start, end in spans:
        parts += [text[at:start], made[text[start:end]]]
        at = end
    return "".join([*parts, text[at:]])


def _halves(sentence: str) -> Span:
    """Where the first half ends and the second begins: at the pause or else space nearest the middle."""
    size = len(sentence)
    for pattern in (_PAUSE, _SPACE):
        places = [m.span() for m in pattern.finditer(sentence) if size // 4 < m.start() <= size - size // 4]
        if places:
            return min(places, key=lambda place: abs(place[0] - size // 2))
    return size // 2, size // 2
