"""Text quality in numbers: perplexity under a judge, diversity, wording, repetition and length.

Perplexity is that of the completion given its prompt, under a model that did not write it. It also falls when
a text repeats itself, so it is always reported together with measures of wording
(`dewmark_lab.evaluation.wording`). Boundary: a loaded host and texts in, one `Quality` per text out.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dewmark.text.words import distinct
from dewmark_lab.evaluation.wording import Words, wording


class LikelihoodJudge(Protocol):
    """A language model that computes log-likelihoods of completions (`dewmark.hosts.base.Host`)."""

    def log_likelihood(self, prompts: Sequence[str], texts: Sequence[str]) -> list[tuple[float, int]]:
        """For each completion, the sum of its tokens' log-probabilities (nats) and their number."""


@dataclass(frozen=True, slots=True)
class Quality:
    """The measures of a text. ``tokens`` are the judge's; a text without tokens has no perplexity."""

    perplexity: float | None
    tokens: int
    distinct_1: float
    distinct_2: float
    distinct_3: float
    distinct_content: float | None
    unlisted: float | None
    repetition: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)


def quality(
    judge: LikelihoodJudge, prompts: Sequence[str], texts: Sequence[str], *, listed: Words | None = None
) -> list[Quality]:
    """The measures of completions, in order; the judge chooses its own batches.

    ``listed`` holds the forms of a word list, for the share of unlisted words.
    """
    found = []
    for text, (total, count) in zip(texts, judge.log_likelihood(prompts, texts), strict=True):
        worded = wording(text, listed=listed)
        found.append(
            Quality(
                math.exp(-total / count) if count else None,
                count,
                distinct(text, 1),
                distinct(text, 2),
                distinct(text, 3),
                worded.distinct_content,
                worded.unlisted,
                worded.repetition,
            )
        )
    return found


def words_kept(before: str, after: str) -> float:
    """The share of a text's words that remain after an attack, in any order."""
    old, new = Counter(before.split()), Counter(after.split())
    return round((old & new).total() / max(old.total(), 1), 4)
