"""Text quality in numbers: perplexity under a judge, wording, repetition and length.

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

import functools
import math
import statistics
from collections import Counter
from collections.abc import Container, Sequence
from typing import Any

from dewmark.config import cache_dir
from dewmark.encoders.lexicon import load_lexicon
from dewmark.hosts.base import Host
from dewmark.text.words import repetition, words
from dewmark.workspace import Workspace, silent
from dewmark_audit.intervals import Interval
from dewmark_lab.metrics import mean_interval
from dewmark_lab.word_lists import word_weight

MEASURES = ("distinct_content", "unlisted", "repetition")

Words = Container[str]


@functools.cache
def listed_words() -> frozenset[str]:
    """The forms of the package's lexicon: the frequent words of twelve languages, from public counts."""
    return frozenset(load_lexicon(workspace=Workspace(cache=cache_dir(), progress=silent)).forms)


def wording(text: str, *, listed: Words | None = None) -> dict[str, float | None]:
    """The `MEASURES` of a text; ``listed`` holds the forms of a word list, without which none is unlisted."""
    return {
        "distinct_content": _share_distinct(content_words(text)),
        "unlisted": None if listed is None else unlisted(text, listed),
        "repetition": repetition(text),
    }


def unlisted(text: str, listed: Words) -> float | None:
    """Of the words written in letters, the share outside a word list."""
    forms = _spelled(text)
    outside = sum(form not in listed and form.removesuffix("'s") not in listed for form in forms)
    return outside / len(forms) if forms else None


def content_words(text: str) -> list[str]:
    """The forms of a text's content words, in order."""
    return [form for form in _spelled(text) if word_weight(form) == 1.0]  # frequent words weigh less


def wording_differences(
    marked: str, unmarked: str, *, listed: Words | None = None
) -> dict[str, float | None]:
    """Each measure of a marked text minus that of the unmarked one of the same prompt and seed."""
    left, right = wording(marked, listed=listed), wording(unmarked, listed=listed)
    content = [content_words(text) for text in (marked, unmarked)]
    both = min(map(len, content))
    pairs = {name: (left[name], right[name]) for name in MEASURES}
    mine, other = (_share_distinct(forms[:both]) for forms in content)
    pairs["distinct_content"] = mine, other
    return {name: None if a is None or b is None else a - b for name, (a, b) in pairs.items()}


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


def _share_distinct(forms: Sequence[str]) -> float | None:
    return len(set(forms)) / len(forms) if forms else None


def quality(
    judge: Host, prompts: Sequence[str], texts: Sequence[str], *, listed: Words | None = None
) -> list[dict[str, Any]]:
    """Perplexity, the judge's number of tokens and wording of completions; the judge chooses its own batches.

    A text without tokens has no perplexity. ``listed`` holds the forms of a word list, for the share of
    unlisted words.
    """
    return [
        {
            "perplexity": math.exp(-total / count) if count else None,
            "tokens": count,
            **wording(text, listed=listed),
        }
        for text, (total, count) in zip(texts, judge.log_likelihood(prompts, texts), strict=True)
    ]


def words_kept(before: str, after: str) -> float:
    """The share of a text's words that remain after an attack, in any order."""
    old, new = Counter(before.split()), Counter(after.split())
    return round((old & new).total() / max(old.total(), 1), 4)
