"""Texts through one of Bergamot's small translators: cut into sentences, translated, put together again.

The translators know sentences. A text is cut at line breaks and at the ends of sentences, an overlong
sentence near its middle, after a comma if there is one; the sentences of all texts are sorted by length,
translated in batches and put back into the white space from which they were taken. What holds no letter
stays as it is, and so does a sentence of which the translator makes nothing.

A sentence's translation is that of the network in float64: float32 decides where it is certain
(`dewmark.attacks.bergamot`), so neither the other sentences of a batch nor the device change it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer

from dewmark.attacks.bergamot import END, Network
from dewmark.attacks.bergamot_file import MarianFile, read_marian
from dewmark.baselines._sentences import sentences
from dewmark.errors import ModelError

__all__ = ["LONGEST", "TextTranslator"]

LONGEST = 128
"""Pieces of a sentence, at most; longer ones are cut."""

Span = tuple[int, int]

_PIECES = {"cpu": 2048, "cuda": 32768}  # of a batch, with padding: what keeps the device busy
_LINE = re.compile(r"[^\n\r\x0b\x0c\x85\u2028\u2029]+")
_PAUSE = re.compile(r"(?<=[,;:])\s+")
_SPACE = re.compile(r"\s+")


class TextTranslator:
    """One direction: a folder with Marian's binary model and a ``tokenizer.json``."""

    def __init__(self, folder: Path, *, device: torch.device) -> None:
        models = sorted(folder.glob("model.*.bin"))
        if len(models) != 1:
            raise ModelError(f"{folder} holds {len(models)} models, not one: delete it and fetch it again")
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises nothing narrower
            raise ModelError(f"cannot read {folder / 'tokenizer.json'}: {error}") from error
        self._file: MarianFile = read_marian(models[0])
        self._device = device
        self._network = Network(self._file, device=device, dtype=torch.float32)

    def translate(self, texts: Sequence[str], *, tell: Callable[[int, int], None]) -> list[str]:
        """The translations; ``tell`` hears how many of how many sentences are done."""
        texts = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]  # no lone surrogates
        spans = [list(self._spans(text)) for text in texts]
        wanted = dict.fromkeys(text[a:b] for text, cut in zip(texts, spans, strict=True) for a, b in cut)
        made = dict(zip(wanted, self._sentences(list(wanted), tell), strict=True))
        return [_put(text, cut, made) for text, cut in zip(texts, spans, strict=True)]

    def _spans(self, text: str) -> Iterator[Span]:
        """Where the sentences of a text are, in parts that are short enough."""
        for line in _LINE.finditer(text):
            for sentence in sentences(line.group()):
                yield from self._short(text, line.start() + sentence.start, line.start() + sentence.end)

    def _short(self, text: str, start: int, end: int) -> Iterator[Span]:
        # a piece has a character or more, so most sentences need no counting
        if end - start <= LONGEST or len(self._tokenizer.encode(text[start:end]).ids) <= LONGEST:
            yield start, end
            return
        left, right = _halves(text[start:end])
        yield from self._short(text, start, start + left)
        yield from self._short(text, start + right, end)

    def _sentences(self, given: Sequence[str], tell: Callable[[int, int], None]) -> list[str]:
        sources = [[*cut.ids, END] for cut in self._tokenizer.encode_batch(list(given))]
        order = sorted(range(len(given)), key=lambda i: len(sources[i]))
        found: dict[int, list[int]] = {}
        unsure: list[int] = []
        for batch in self._batches(order, sources):
            for i, decoded in zip(batch, self._network.translate([sources[i] for i in batch]), strict=True):
                found[i] = decoded.ids
                if not decoded.sure:
                    unsure.append(i)
            tell(len(found) - len(unsure), len(given))
        for batch in self._batches(unsure, sources):
            for i, decoded in zip(batch, self._exact.translate([sources[i] for i in batch]), strict=True):
                found[i] = decoded.ids
        tell(len(given), len(given))
        written = self._tokenizer.decode_batch([found[i] for i in range(len(given))])
        return [new.strip() or old for old, new in zip(given, written, strict=True)]

    def _batches(self, order: Sequence[int], sources: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Sentences in the order of their lengths, as many at once as the device takes."""
        room = _PIECES.get(self._device.type, _PIECES["cpu"])
        batch: list[int] = []
        for i in order:
            if batch and (len(batch) + 1) * len(sources[i]) > room:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    @functools.cached_property
    def _exact(self) -> Network:
        return Network(self._file, device=self._device, dtype=torch.float64)


def _put(text: str, spans: Sequence[Span], made: dict[str, str]) -> str:
    """The text with its sentences replaced and all between them kept."""
    parts, at = [], 0
    for start, end in spans:
        parts += [text[at:start], made[text[start:end]]]
        at = end
    return "".join([*parts, text[at:]])


def _halves(sentence: str) -> Span:
    """Where the first half ends and the second begins: at the pause or else space nearest to the middle."""
    size = len(sentence)
    for pattern in (_PAUSE, _SPACE):
        places = [m.span() for m in pattern.finditer(sentence) if size // 4 < m.start() <= size - size // 4]
        if places:
            return min(places, key=lambda place: abs(place[0] - size // 2))
    return size // 2, size // 2
