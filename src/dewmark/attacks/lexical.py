"""Attacks on words alone, with no model: nothing at all, deletion, truncation.

A word is what stands between white space. Boundary: texts in, texts out; only truncation by tokens looks at
a host, and there at its tokenizer.

Copy-paste: pieces of the text put into somebody else's, with the length kept.

Of a text's W words the share s stays, in k pieces; between and around the pieces stand W − s·W words of a
human text. Pieces and places are drawn by the seed; the order of the pieces stays.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from dewmark import storage
from dewmark.attacks.base import Attack, check_least, check_share
from dewmark.errors import ConfigError, InputError
from dewmark.workspace import Progress

if TYPE_CHECKING:
    from dewmark.workspace import HostInfo

__all__ = ["CopyPaste", "Delete", "Identity", "Truncate", "words"]

_WORD = re.compile(r"\S+")


def words(text: str) -> list[re.Match[str]]:
    """The words of a text, each with its place."""
    return list(_WORD.finditer(text))


@dataclass(frozen=True)
class Identity(Attack):
    """Leaves every text as it is: the clean row of a table."""

    name: ClassVar[str] = "none"
    summary: ClassVar[str] = "nothing: the clean texts"

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        """The texts themselves."""
        return list(texts)


@dataclass(frozen=True)
class Delete(Attack):
    """Deletes each word with probability ``r``, independently; the space after it goes too.

    A text never loses its last word: where all fall, one of them, chosen by the seed, stays.
    """

    name: ClassVar[str] = "delete"
    summary: ClassVar[str] = "deletes each word with probability r"
    r: float = 0.3

    def validate(self) -> None:
        """r is a probability."""
        check_share("r", self.r)

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        """Each text with fewer words."""
        return [self._thinned(text, seed) for text, seed in zip(texts, seeds, strict=True)]

    def _thinned(self, text: str, seed: int) -> str:
        rng, found = random.Random(seed), words(text)
        kept = [i for i in range(len(found)) if rng.random() >= self.r] or [rng.randrange(len(found))]
        after = [word.start() for word in found[1:]]  # a word owns the space after it; the last one has none
        body = "".join(text[found[i].start() : after[i]] for i in kept[:-1]) + found[kept[-1]].group()
        return text[: found[0].start()] + body + text[found[-1].end() :]


@dataclass(frozen=True)
class Truncate(Attack):
    """Keeps the first ``n`` words, or the first ``n`` tokens of a host's tokenizer."""

    name: ClassVar[str] = "truncate"
    summary: ClassVar[str] = "keeps the first n words or tokens"
    n: int = 100
    unit: Literal["words", "tokens"] = "words"
    host: str = "smollm2-135m"

    def validate(self) -> None:
        """Something must remain."""
        check_least("n", self.n, 1)

    def identity(self) -> dict[str, object]:
        """A host decides only where tokens are counted, and there by its tokenizer."""
        host: dict[str, object] = {} if self.unit == "words" else {"host": self._info.tokenizer.identity}
        return {"name": self.name, "n": self.n, "unit": self.unit, **host}

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        """The beginning of each text."""
        if self.unit == "words":
            ends = [[word.end() for word in words(text)] for text in texts]
        else:
            ends = [[end for _, end in cut.offsets] for cut in self._info.tokenizer.encode(texts)]
        return [text[: max(end[: self.n], default=0)] for text, end in zip(texts, ends, strict=True)]

    @functools.cached_property
    def _info(self) -> HostInfo:
        from dewmark.hosts import host_info

        return host_info(self.host)


@dataclass(frozen=True)
class CopyPaste(Attack):
    """Keeps ``share`` of a text's words in ``segments`` pieces and fills up with words of ``human`` texts.

    ``human`` names a JSONL file with a ``text`` in each line, or one plain text.
    """

    name: ClassVar[str] = "copy-paste"
    summary: ClassVar[str] = "puts pieces of the text into human text of the same total length"
    human: str = ""
    share: float = 0.25
    segments: int = 1

    def validate(self) -> None:
        """There must be human texts to put the pieces into."""
        check_share("share", self.share)
        check_least("segments", self.segments, 1)
        if not self.human:
            raise ConfigError("copy-paste needs human texts to paste into: give human=FILE.jsonl")

    def identity(self) -> dict[str, object]:
        """The human texts count by what they say, not by where they lie."""
        human = {"human": f"sha256:{_digest(Path(self.human))}"}
        return {"name": self.name, "share": self.share, "segments": self.segments, **human}

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        """Each text's pieces among human words."""
        return [self._mixed(text, seed) for text, seed in zip(texts, seeds, strict=True)]

    def _mixed(self, text: str, seed: int) -> str:
        rng = random.Random(seed)
        own = [word.group() for word in words(text)]
        kept = max(1, round(self.share * len(own)))
        if kept == len(own):
            return text
        pieces = min(self.segments, kept)
        foreign = self._passage(rng, len(own) - kept)
        # before, between and after the pieces: in the text what is left out, in the result what is put in
        lengths = _parts(rng, kept, pieces, least=1)
        skipped = _parts(rng, len(own) - kept, pieces + 1, least=0)
        filled = _parts(rng, len(foreign), pieces + 1, least=0)
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
        """That many consecutive words of a human text; a short text is followed by others."""
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
            found = [(str(path), _read(path))]
        texts = []
        for where, text in found:
            if not isinstance(text, str):
                raise InputError(f'{where} has no "text": copy-paste needs human texts')
            if split := text.split():
                texts.append(split)
        if not texts:
            raise InputError(f"{path} holds no words: copy-paste needs human texts")
        return texts


def _parts(rng: random.Random, total: int, count: int, *, least: int) -> list[int]:
    """``count`` whole numbers of at least ``least`` with the given sum, every such list equally likely."""
    free = total - least * count
    cuts = sorted(rng.sample(range(free + count - 1), count - 1))  # bars among stars
    edges = [-1, *cuts, free + count - 1]
    return [b - a - 1 + least for a, b in itertools.pairwise(edges)]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text: convert it first") from None


def _digest(path: Path) -> str:
    try:
        return storage.sha256_file(path)[:16]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
