"""How good a text reads, as far as numbers tell: perplexity under a judge, diversity, repetition, length.

Perplexity is that of the completion alone, its prompt being context, under a model that did not write it. It
also falls where a text repeats itself, so it is never shown without the share of distinct runs of words.
Boundary: a host in memory and texts in, one `Quality` a text out.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

__all__ = ["Judge", "Quality", "distinct", "median_perplexity", "quality", "repetition", "words_kept"]

_RUN = 4  # words in a run that counts as repeated


class Judge(Protocol):
    """A language model that says how likely it finds completions (`dewmark.hosts.base.Host`)."""

    def log_likelihood(self, prompts: Sequence[str], texts: Sequence[str]) -> list[tuple[float, int]]:
        """For each completion the sum of its tokens' log-probabilities (nats) and their number."""


@dataclass(frozen=True, slots=True)
class Quality:
    """One text's measures. ``tokens`` are the judge's; a text without any has no perplexity."""

    perplexity: float | None
    tokens: int
    distinct_1: float
    distinct_2: float
    distinct_3: float
    repetition: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)


def quality(judge: Judge, prompts: Sequence[str], texts: Sequence[str]) -> list[Quality]:
    """The measures of completions, in their order; the judge batches by itself."""
    return [
        Quality(
            math.exp(-total / count) if count else None,
            count,
            distinct(text, 1),
            distinct(text, 2),
            distinct(text, 3),
            repetition(text),
        )
        for text, (total, count) in zip(texts, judge.log_likelihood(prompts, texts), strict=True)
    ]


def median_perplexity(found: Sequence[Quality]) -> float:
    """The median over texts that have one, as the paper reports it."""
    return float(np.median([one.perplexity for one in found if one.perplexity is not None]))


def distinct(text: str, n: int) -> float:
    """The share of a text's runs of n words that are different; 1 where it has none."""
    words = text.split()
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def repetition(text: str) -> float:
    """The share of a text's runs of four words that it had already."""
    return 1.0 - distinct(text, _RUN)


def words_kept(before: str, after: str) -> float:
    """The share of a text's words that are still there after an attack, wherever they stand."""
    old, new = Counter(before.split()), Counter(after.split())
    return round((old & new).total() / max(old.total(), 1), 4)
