"""Attacks on words alone, with no model: nothing at all, deletion, truncation.

A word is what stands between white space. Boundary: texts in, texts out; only truncation by tokens looks at
a host, and there at its tokenizer.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from dewmark.attacks.base import Attack, check_least, check_share
from dewmark.workspace import Progress

if TYPE_CHECKING:
    from dewmark.workspace import HostInfo

__all__ = ["Delete", "Identity", "Truncate", "words"]

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
