"""The share of the commonest words as a statistic of a key's texts, and margins by name."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from dewmark.errors import UnknownNameError
from dewmark_lab.evaluation.quality import content_words
from dewmark_lab.metrics import mean_interval
from dewmark_lab.quality.measuring import PROSE, Suite, margins_of, top_shares

KEYS, PROMPTS = 3, 30
WORDS = [
    "".join(each) for each in itertools.islice(itertools.product("bdgkmprstvz", "aeiou", "lnrs", "o"), 200)
]


def rounds(rng: np.random.Generator) -> list[list[dict[str, str]]]:
    """Texts of 40 words by Zipf's law, all keys alike."""
    chances = 1.0 / np.arange(2, len(WORDS) + 2)
    drawn = rng.choice(WORDS, size=(KEYS, PROMPTS, 40), p=chances / chances.sum())
    return [[{"text": " ".join(text)} for text in texts] for texts in drawn]


def test_pseudo_values_average_to_the_share_of_each_key():
    texts = rounds(np.random.default_rng(0))
    counts = [Counter(form for row in rows for form in content_words(row["text"])) for rows in texts]
    shares = [sum(n for _, n in each.most_common(50)) / each.total() for each in counts]
    assert top_shares(texts).mean(axis=1) == pytest.approx(shares)


def test_intervals_of_the_share_hold_a_difference_of_nothing():
    rng, number = np.random.default_rng(1), 40
    found = [mean_interval(top_shares(rounds(rng)) - top_shares(rounds(rng))) for _ in range(number)]
    held = sum(each.low <= 0.0 <= each.high for each in found)
    assert held / number > 0.95 - 3 * (0.95 * 0.05 / number) ** 0.5
    # and they are as wide as the estimates vary: Student's interval is 2 to 4.5 standard errors either way
    spread = np.std([each.value for each in found])
    assert 1.5 < np.median([(each.high - each.low) / 2 for each in found]) / spread < 5.0


def test_margins_are_set_by_name_also_those_of_tasks():
    suites = [Suite(PROSE, []), Suite("own", [])]
    found = margins_of({"nats": "0.5", "own": "0.1"}, suites)
    assert (found["nats"].margin, found["own"].margin, found["distinct"].margin) == (0.5, 0.1, 0.02)
    with pytest.raises(UnknownNameError, match="did you mean 'own'"):
        margins_of({"owm": "1"}, suites)
