"""Perplexity and kept words."""

from __future__ import annotations

import math

import pytest

from dewmark.hosts.fake import FakeHost
from dewmark_lab.evaluation.quality import quality, words_kept


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
