"""Measures of wording: on texts whose values can be counted by hand, and on drawn ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dewmark_lab.quality.texts import distinct_words, doubled, identical_pairs, loops, self_bleu


def test_doubled_neighbours_are_counted_per_100_words():
    text = "Brazen brazen devices, 7 7 times; had had: a brazen end."  # 11 words, two repeated
    assert doubled(text) == pytest.approx(100 * 2 / 11)  # numbers may repeat
    assert doubled("one word after another") == 0.0
    assert doubled("…") is None


def test_distinct_words_do_not_depend_on_length():
    rng = np.random.default_rng(0)
    stock = np.array([f"w{i}" for i in range(500)])
    chances = 1.0 / np.arange(1, 501)
    drawn = [str(w) for w in rng.choice(stock, size=4000, p=chances / chances.sum())]
    short = np.mean([distinct_words(" ".join(drawn[i : i + 100])) for i in range(0, 4000, 100)])
    long = distinct_words(" ".join(drawn))
    assert long is not None
    # 50 words have a standard deviation of about 3 distinct ones; 80 windows that do not overlap
    assert abs(short - long) < 4 * 3 / 50 / math.sqrt(80)
    assert distinct_words("a b a b a b", window=4) == 0.5
    assert distinct_words("a b c") == 1.0


def test_a_loop_is_a_phrase_three_times_in_a_row():
    assert loops("in an una una una upon")
    assert not loops("in an una una upon una")
    phrase = " ".join(f"word{i}" for i in range(12))
    assert not loops(f"so {phrase} {phrase} then {phrase}")
    assert loops(f"so {phrase} {phrase} {phrase} then")
    long = " ".join(f"word{i}" for i in range(40))
    assert not loops(f"{long} {long} {long}")
    assert loops(f"{long} {long} {long}", longest=40)


def test_self_bleu_by_hand():
    first, second = "the cat sat on the mat", "the cat ate on a mat today"
    # of first: the (once in second) cat on mat = 4 of 6; "the cat" = 1 of 5; no 3-gram, no 4-gram.
    one = math.exp(1 - 7 / 6) * (4 / 6 * 1 / 5 * 0.1 / 4 * 0.1 / 3) ** 0.25
    # of second: the cat on mat = 4 of 7; "the cat" = 1 of 6; longer than its reference: no penalty.
    two = (4 / 7 * 1 / 6 * 0.1 / 5 * 0.1 / 4) ** 0.25
    assert self_bleu([first, second]) == pytest.approx(50 * (one + two))
    assert self_bleu([first] * 4) == pytest.approx(100)
    assert self_bleu(["yes", "Yes."]) == pytest.approx(100)
    assert self_bleu([first, ""]) == 0.0
    assert self_bleu([first]) is None


def test_self_bleu_does_not_depend_on_the_order_and_takes_the_nearest_reference():
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(list("abcdefgh"), size=n)) for n in (9, 14, 20, 20, 31)]
    found = self_bleu(texts)
    assert found == pytest.approx(self_bleu(texts[::-1]))
    assert self_bleu([*texts, texts[0]]) > found  # a copy
    assert self_bleu(["a b c d", "a b c d e f g h", "a b c d"]) == pytest.approx(
        (100 + 100 + 100 * (4 / 8 * 3 / 7 * 2 / 6 * 1 / 5) ** 0.25) / 3
    )


def test_identical_pairs_are_a_share_of_all_pairs():
    assert identical_pairs(["a", "a ", "b", "b", "b"]) == pytest.approx((1 + 3) / 10)
    assert identical_pairs(["a", "A"]) == 0.0
    assert identical_pairs(["a"]) is None
