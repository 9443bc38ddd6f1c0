"""Text quality in numbers: perplexity under a judge, diversity, wording, repetition and length.

Perplexity is that of the completion given its prompt, under a model that did not write it. It also falls when
a text repeats itself or drops rare words, so it is always reported together with measures of wording, which
need no model and move in one direction only:

- *distinct content words*: of the text's content words, the share of distinct ones. A content word is written
  in letters and is none of the 120 or so most frequent words of its language (``data/frequent.txt``).
- *unlisted words*: of the words written in letters, the share that a public word list does not have. The
  default list is the package's lexicon; any other will do.
- *repetition*: of the 4-grams of words, the share that repeat an earlier one.

A marked text is compared with the unmarked text of the same prompt and seed, both truncated to the number of
content words of the shorter one, because longer texts repeat more words. Intervals are over prompts; a
prompt's texts under several keys count as one. Boundary: a loaded host and texts in, numbers out.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dewmark.config import cache_dir
from dewmark.encoders.lexicon import load_lexicon
from dewmark.stats.rates import Interval
from dewmark.text.words import distinct, repetition, words
from dewmark.workspace import Workspace, silent
from dewmark_lab.metrics import mean_interval
from dewmark_lab.word_lists import word_weight

MEASURES = ("distinct_content", "unlisted", "repetition")

Words = Container[str]


@dataclass(frozen=True, slots=True)
class Wording:
    """The measures of a text; a share of no words is None."""

    content_words: int
    distinct_content: float | None
    unlisted: float | None
    repetition: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)


@functools.cache
def listed_words() -> frozenset[str]:
    """The forms of the package's lexicon: the frequent words of twelve languages, from public counts."""
    return frozenset(load_lexicon(workspace=Workspace(cache=cache_dir(), progress=silent)).forms)


def wording(text: str, *, listed: Words | None = None) -> Wording:
    """The measures of a text; ``listed`` holds the forms of a word list, without which none is unlisted."""
    forms = _spelled(text)
    content = [form for form in forms if _is_content(form)]
    unlisted = None
    if listed is not None and forms:
        unlisted = sum(_is_unlisted(form, listed) for form in forms) / len(forms)
    return Wording(len(content), _share_distinct(content), unlisted, repetition(text))


def content_words(text: str) -> list[str]:
    """The forms of a text's content words, in order."""
    return [form for form in _spelled(text) if _is_content(form)]


@dataclass(frozen=True, slots=True)
class TextPair:
    """A marked text and the unmarked one of the same prompt and seed; ``prompt`` identifies the prompt."""

    prompt: str
    marked: str
    unmarked: str

    def differences(self, *, listed: Words | None = None) -> dict[str, float | None]:
        """Each measure of the marked text minus that of the unmarked one."""
        mine, other = content_words(self.marked), content_words(self.unmarked)
        both = min(len(mine), len(other))
        left, right = wording(self.marked, listed=listed), wording(self.unmarked, listed=listed)
        return {
            "distinct_content": _minus(_share_distinct(mine[:both]), _share_distinct(other[:both])),
            "unlisted": _minus(left.unlisted, right.unlisted),
            "repetition": _minus(left.repetition, right.repetition),
        }


def prompt_interval(values: Sequence[tuple[str, float | None]]) -> Interval | None:
    """The mean over prompts of their mean values, with its interval; None with fewer than two prompts."""
    by_prompt: dict[str, list[float]] = {}
    for prompt, value in values:
        if value is not None:
            by_prompt.setdefault(prompt, []).append(value)
    if len(by_prompt) < 2:
        return None
    return mean_interval([statistics.fmean(each) for each in by_prompt.values()])


def _spelled(text: str) -> list[str]:
    """The forms of the words that are written in letters."""
    return [word.form for word in words(text) if word.form.replace("'", "").isalpha()]


def _is_content(form: str) -> bool:
    return word_weight(form) == 1.0  # frequent words weigh less


def _is_unlisted(form: str, listed: Words) -> bool:
    return form not in listed and form.removesuffix("'s") not in listed


def _share_distinct(forms: Sequence[str]) -> float | None:
    return len(set(forms)) / len(forms) if forms else None


def _minus(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


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
