"""Perplexity, kept words, and how varied the wording is."""

from __future__ import annotations

import math

import pytest

from dewmark_lab.evaluation.quality import (
    content_words,
    quality,
    unlisted,
    wording,
    wording_differences,
    words_kept,
)
from dewmark_lab.testing.fake_host import FakeHost


def test_perplexity_is_that_of_the_completion_alone():
    """It equals what the softmax of the model's logits gives, one text at a time."""
    import torch

    host = FakeHost()
    prompts, texts = ["the river", "old people of the town"], [" and the sea was light", " house"]
    found = quality(host, prompts, texts)
    for prompt, text, one in zip(prompts, texts, found, strict=True):
        ids = [tokenized.ids for tokenized in host.tokenizer.encode([text])]
        (logits,) = host.next_logits([prompt], ids)
        log_p = torch.log_softmax(logits.double(), dim=-1)[range(len(ids[0])), list(ids[0])]
        assert one["tokens"] == len(ids[0])
        assert one["perplexity"] == pytest.approx(math.exp(-float(log_p.mean())), rel=1e-4)


def test_a_text_without_tokens_has_no_perplexity():
    found = quality(FakeHost(), ["the river", "the sea"], ["", " the wind"])
    assert found[0]["perplexity"] is None
    assert found[1]["perplexity"] is not None


def test_kept_words_are_counted_in_any_order():
    assert words_kept("a b b c", "c b a") == 0.75
    assert words_kept("a b", "d e f") == 0.0
    assert words_kept("", "a") == 0.0


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
