"""Equivalence tests as statistics, on simulated tables, and the measures that they compare."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from dewmark.errors import ConfigError, InputError, UnknownNameError
from dewmark_lab.evaluation.quality import content_words
from dewmark_lab.metrics import mean_interval
from dewmark_lab.quality.equivalence import MarginOutcome, equivalence
from dewmark_lab.quality.measuring import PROSE, Suite, margins_of, top_shares

TABLES = 800
ERROR = math.sqrt(0.95 * 0.05 / TABLES)  # standard error of a coverage of 95%


def tables(seed: int, keys: int, prompts: int, *, of_key: float, of_prompt: float, mean: float = 0.0):
    """Differences (keys, prompts) with effects of keys and prompts, and noise of standard deviation 1."""
    rng = np.random.default_rng(seed)
    for _ in range(TABLES):
        effects = of_key * rng.normal(size=(keys, 1)) + of_prompt * rng.normal(size=(1, prompts))
        yield mean + effects + rng.normal(size=(keys, prompts))


@pytest.mark.parametrize(
    ("keys", "prompts", "of_key", "of_prompt"),
    [(1, 8, 0.0, 0.5), (4, 50, 0.3, 0.3), (4, 50, 1.0, 0.0), (4, 200, 0.1, 0.3), (16, 30, 0.2, 1.0)],
)
def test_intervals_hold_the_mean_over_prompts_and_keys(keys, prompts, of_key, of_prompt):
    found = [mean_interval(each) for each in tables(1, keys, prompts, of_key=of_key, of_prompt=of_prompt)]
    assert np.mean([each.low <= 0.0 <= each.high for each in found]) == pytest.approx(0.95, abs=3.5 * ERROR)


@pytest.mark.parametrize(("keys", "prompts"), [(2, 8), (2, 50), (8, 50)])
def test_keys_that_do_not_differ_make_intervals_wide_enough(keys, prompts):
    found = [mean_interval(each) for each in tables(2, keys, prompts, of_key=0.0, of_prompt=0.0)]
    assert np.mean([each.low <= 0.0 <= each.high for each in found]) > 0.95 - 3 * ERROR
    if keys == 8:  # and not much wider than those of one sample of all texts
        widths = [each.high - each.low for each in found]
        assert np.mean(widths) < 1.5 * 2 * 1.96 / math.sqrt(keys * prompts)


def test_resampling_keys_and_prompts_would_hold_the_mean_too_rarely():
    """The reason for mean squares: four keys that differ, resampled, show too little of their spread."""
    rng, held = np.random.default_rng(3), 0
    for table in tables(3, 4, 50, of_key=1.0, of_prompt=0.0):
        keys = rng.multinomial(4, [0.25] * 4, size=400)
        prompts = rng.multinomial(50, [0.02] * 50, size=400)
        low, high = np.quantile(((keys @ table) * prompts).sum(axis=1) / 200, [0.025, 0.975])
        held += low <= 0.0 <= high
    assert held / TABLES == pytest.approx(0.82, abs=3.5 * math.sqrt(0.82 * 0.18 / TABLES))


@pytest.mark.parametrize("rate", [0.005, 0.02, 0.1])
@pytest.mark.parametrize("clustered", [False, True])
def test_rare_events_have_intervals(rate, clustered):
    """Also where none was seen, and where all keys of a prompt agree."""
    rng, held = np.random.default_rng(4), 0
    for _ in range(TABLES):
        table = (rng.random((1 if clustered else 4, 60)) < rate) * 1.0
        found = mean_interval(np.repeat(table, 4 // len(table), axis=0), grain=1.0)
        held += found.low <= rate <= found.high
    assert held / TABLES > 0.95 - 3.5 * ERROR
    nothing = mean_interval(np.zeros((4, 60)), grain=1.0)
    assert 0.03 < nothing.high < 3.7 / 60  # below the exact bound for one share of 60


def test_a_difference_at_the_margin_is_rarely_called_within():
    """Two one-sided tests at 2.5%: a true difference of the margin passes that often at most."""
    found = [
        equivalence(each, margin=0.5).outcome
        for each in tables(5, 4, 50, of_key=0.2, of_prompt=0.3, mean=0.5)
    ]
    limit = 0.025 + 3 * math.sqrt(0.025 * 0.975 / TABLES)
    assert found.count(MarginOutcome.WITHIN) / TABLES < limit
    assert found.count(MarginOutcome.EXCEEDED) / TABLES < limit


def test_enough_texts_decide_either_way():
    near = next(tables(6, 4, 400, of_key=0.05, of_prompt=0.2))
    assert equivalence(near, margin=0.3).outcome is MarginOutcome.WITHIN
    assert equivalence(near + 1.0, margin=0.3).outcome is MarginOutcome.EXCEEDED
    assert equivalence(near - 1.0, margin=0.3).outcome is MarginOutcome.EXCEEDED
    assert equivalence(near[:, :10], margin=0.3).outcome is MarginOutcome.INCONCLUSIVE


def test_the_worst_key_is_named_with_an_interval_for_all():
    table = np.zeros((3, 100)) + np.array([[0.1], [-2.0], [0.3]])
    table += np.random.default_rng(7).normal(size=table.shape)
    found = equivalence(table, margin=1.0)
    assert found.worst == 1
    assert found.worst_difference.value == pytest.approx(table[1].mean()) == found.by_key[1]
    assert found.worst_difference.low < -2.0 < found.worst_difference.high
    assert found.worst_difference.confidence == pytest.approx(1 - 0.05 / 3)


def test_prompts_without_a_value_are_left_out():
    table = np.array([[1.0, 2.0, np.nan], [1.0, 4.0, 9.0]])
    found = equivalence(table, margin=1.0)
    assert (found.prompts, found.difference.value) == (2, 2.0)
    with pytest.raises(InputError, match="at least two prompts with texts under every key, got 1"):
        equivalence(table[:, 1:], margin=1.0)
    with pytest.raises(ConfigError, match="a margin must be a positive number, got 0"):
        equivalence(table, margin=0.0)
    flat = equivalence(np.zeros((2, 5)), margin=1.0)
    assert (flat.difference.low, flat.difference.high, flat.outcome) == (0.0, 0.0, MarginOutcome.WITHIN)


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
