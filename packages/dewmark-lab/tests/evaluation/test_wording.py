"""Distinct content words, unlisted words and repetition, alone and paired."""

from __future__ import annotations

import pytest

from dewmark_lab.evaluation.quality import content_words, unlisted, wording, wording_differences


def test_frequent_words_and_numbers_are_no_content():
    text = "The river and the bridge: in 1954, the River rose, and Maria's bridge was gone."
    assert content_words(text) == ["river", "bridge", "river", "rose", "maria's", "bridge", "gone"]
    found = wording(text, listed={"river", "bridge", "gone", "maria"} | {"the", "and", "in", "was"})
    assert found["distinct_content"] == 5 / 7
    assert found["unlisted"] == 1 / 14  # rose; Maria's is listed as Maria, and 1954 is no word of letters
    assert wording("1954, 12") == {"distinct_content": None, "unlisted": None, "repetition": 0.0}
    assert unlisted("the river Qzxvunk's bank", {"the", "river", "bank"}) == 0.25


def test_a_shorter_text_is_not_more_varied():
    """Both texts are cut to the content words of the shorter one, so ending early gains nothing."""
    whole = "river bridge stone river bridge stone river bridge stone"
    assert wording_differences("river bridge stone", whole)["distinct_content"] == 0.0
    found = wording_differences("river river stone", whole)
    assert found["distinct_content"] == pytest.approx(-1 / 3)
