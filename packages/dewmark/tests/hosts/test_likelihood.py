"""Logits and likelihoods of given texts."""

from __future__ import annotations

import pytest
import torch

from dewmark.errors import InputError, NumericalError
from dewmark.hosts.fake import FakeHost
from dewmark.hosts.transformers import likelihood

PROMPTS = ["the old bridge", "the", "", "water and light of the day"]


TEXTS = [" over the river", "", " sea wind rain sun", " the city the town the road"]


def completions(host):
    return [tokenized.ids for tokenized in host.tokenizer.encode(TEXTS)]


def test_logits_of_a_row_equal_those_of_the_row_alone(host):
    for prompt, ids, logits in zip(
        PROMPTS, completions(host), host.next_logits(PROMPTS, completions(host)), strict=True
    ):
        assert logits.shape == (len(ids), host.info.vocab_size)
        assert logits.dtype == torch.float32
        start = host.tokenizer.encode_prompts([prompt])[0]
        with torch.inference_mode():
            expected = host.model(torch.tensor([[*start, *ids]])).logits[0, len(start) - 1 : -1]
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_batches_are_limited_and_change_nothing(host, monkeypatch):
    expected = list(host.next_logits(PROMPTS, completions(host)))
    shapes = []
    forward = type(host.model).forward

    def counted(self, **inputs):
        shapes.append(tuple(inputs["input_ids"].shape))
        return forward(self, **inputs)

    monkeypatch.setattr(type(host.model), "forward", counted)
    monkeypatch.setattr("dewmark.hosts.transformers.likelihood._TOKENS_AT_ONCE", {"cpu": 20})
    rows = host.next_logits(PROMPTS, completions(host))
    assert shapes == []  # nothing runs before it is asked for
    for row, other in zip(rows, expected, strict=True):
        torch.testing.assert_close(row, other, atol=1e-4, rtol=0)
    assert len(shapes) > 1
    assert all(rows * length <= 20 or rows == 1 for rows, length in shapes)


def test_the_likelihood_agrees_with_the_logits(host):
    sums = host.log_likelihood(PROMPTS, TEXTS)
    for (total, count), ids, logits in zip(
        sums, completions(host), host.next_logits(PROMPTS, completions(host)), strict=True
    ):
        picked = logits.log_softmax(-1)[range(len(ids)), list(ids)]
        assert (total, count) == (pytest.approx(float(picked.sum()), abs=1e-4), len(ids))


def test_bad_rows_are_rejected_before_anything_runs():
    host = FakeHost(context=32)
    with pytest.raises(InputError, match="context of 32"):
        host.next_logits(["the"], [[5] * 40])
    with pytest.raises(InputError, match="1 prompts but 2 texts"):
        host.next_logits(["the"], [[5], [6]])
    with pytest.raises(InputError, match="token 9999"):
        host.next_logits(["the"], [[9999]])


def test_nan_raises_one_clear_error():
    host = FakeHost()
    with torch.no_grad():
        host.model.lm_head.weight[5] = float("nan")
    with pytest.raises(NumericalError, match="NaN.*float32"):
        list(host.next_logits(["the"], [[7, 8]]))


def test_log_likelihood_in_small_batches_is_the_same(host, monkeypatch):
    texts = [*TEXTS[:3], " the old ship was on the water when the wind and rain"]
    expected = host.log_likelihood(PROMPTS, texts)
    monkeypatch.setitem(likelihood.LOGITS_AT_ONCE, "cpu", 512 * 30)
    monkeypatch.setitem(likelihood._TOKENS_AT_ONCE, "cpu", 60)
    for (a, n), (b, m) in zip(host.log_likelihood(PROMPTS, texts), expected, strict=True):
        assert n == m
        assert a == pytest.approx(b, abs=1e-3)
