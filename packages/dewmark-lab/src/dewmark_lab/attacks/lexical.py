"""Attacks on words that need no model: none, deletion, truncation and copy-paste.

A word is a maximal run of non-space characters. Copy-paste keeps a share s of a text's W words, in k segments
in their original order, and fills up with (1 − s)·W words of a human text around them; the seed draws the
segments and their positions.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from dewmark import storage
from dewmark.errors import ConfigError, InputError
from dewmark.workspace import Progress
from dewmark_lab.attacks.base import Attack
from dewmark_lab.prompt_sources import read_text


def words(text: str) -> list[re.Match[str]]:
    """The words of a text with their positions."""
    return list(re.finditer(r"\S+", text))


@dataclass(frozen=True)
class Identity(Attack):
    """Returns every text unchanged: the clean row of a table."""

    name: ClassVar[str] = "none"
    summary: ClassVar[str] = "no attack: the clean texts"

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        return list(texts)


@dataclass(frozen=True)
class Delete(Attack):
    """Deletes words, each with probability ``r``; the seed picks one that stays if all would go."""

    name: ClassVar[str] = "delete"
    summary: ClassVar[str] = "deletes each word with probability r"
    r: Annotated[float, "in [0, 1]"] = 0.3

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        return [self._delete_words(text, seed) for text, seed in zip(texts, seeds, strict=True)]

    def _delete_words(self, text: str, seed: int) -> str:
        rng, found = random.Random(seed), words(text)
        kept = [i for i in range(len(found)) if rng.random() >= self.r] or [rng.randrange(len(found))]
        after = [word.start() for word in found[1:]]  # a word owns the space after it
        body = "".join(text[found[i].start() : after[i]] for i in kept[:-1]) + found[kept[-1]].group()
        return text[: found[0].start()] + body + text[found[-1].end() :]


@dataclass(frozen=True)
class Truncate(Attack):
    """Keeps the first ``n`` words."""

    name: ClassVar[str] = "truncate"
    summary: ClassVar[str] = "keeps the first n words"
    n: Annotated[int, "at least 1"] = 100

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        return [text[: words(text)[: self.n][-1].end()] for text in texts]


@dataclass(frozen=True)
class CopyPaste(Attack):
    """Keeps ``share`` of a text's words in ``segments`` segments, among words of ``human`` texts.

    ``human`` is a JSONL file with a ``text`` field per line, or a plain text file.
    """

    name: ClassVar[str] = "copy-paste"
    summary: ClassVar[str] = "pastes segments of the text into human text of the same total length"
    human: str = ""
    share: Annotated[float, "in [0, 1]"] = 0.25
    segments: Annotated[int, "at least 1"] = 1

    def validate(self) -> None:
        if not self.human:
            raise ConfigError("copy-paste needs human texts to paste into: set human=FILE.jsonl")

    def identity(self) -> dict[str, object]:
        """Human texts count by content, not by path."""
        human = {"human": f"sha256:{_digest(Path(self.human))}"}
        return {"name": self.name, "share": self.share, "segments": self.segments, **human}

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        return [self._paste(text, seed) for text, seed in zip(texts, seeds, strict=True)]

    def _paste(self, text: str, seed: int) -> str:
        rng = random.Random(seed)
        own = [word.group() for word in words(text)]
        kept = max(1, round(self.share * len(own)))
        if kept == len(own):
            return text
        segments = min(self.segments, kept)
        foreign = self._passage(rng, len(own) - kept)
        # words before, between and after the segments: skipped in the text, filled in in the result
        lengths = random_partition(rng, kept, segments, least=1)
        skipped = random_partition(rng, len(own) - kept, segments + 1, least=0)
        filled = random_partition(rng, len(foreign), segments + 1, least=0)
        out: list[str] = []
        at = used = 0
        for i, length in enumerate(lengths):
            out += foreign[used : used + filled[i]]
            used += filled[i]
            at += skipped[i]
            out += own[at : at + length]
            at += length
        return " ".join(out + foreign[used:])

    def _passage(self, rng: random.Random, length: int) -> list[str]:
        """``length`` consecutive words of a human text; if it is too short, others follow."""
        texts = self._texts
        chosen = texts[rng.randrange(len(texts))]
        start = rng.randrange(max(1, len(chosen) - length + 1))
        passage = list(chosen[start : start + length])
        while len(passage) < length:
            passage += texts[rng.randrange(len(texts))][: length - len(passage)]
        return passage

    @functools.cached_property
    def _texts(self) -> list[list[str]]:
        path = Path(self.human)
        if path.suffix == ".jsonl":
            found = [(f"{path}, line {number}", row.get("text")) for number, row in storage.read_jsonl(path)]
        else:
            found = [(str(path), read_text(path))]
        texts = []
        for where, text in found:
            if not isinstance(text, str):
                raise InputError(f'{where} has no "text" string: copy-paste needs human texts')
            if split := text.split():
                texts.append(split)
        if not texts:
            raise InputError(f"{path} contains no words: copy-paste needs human texts")
        return texts


def random_partition(rng: random.Random, total: int, count: int, *, least: int) -> list[int]:
    """``count`` integers of at least ``least`` that sum to ``total``, all such lists equally likely."""
    free = total - least * count
    cuts = sorted(rng.sample(range(free + count - 1), count - 1))  # stars and bars
    edges = [-1, *cuts, free + count - 1]
    return [b - a - 1 + least for a, b in itertools.pairwise(edges)]


def _digest(path: Path) -> str:
    try:
        return storage.sha256_file(path)[:16]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
