"""A host run over given texts: the logits that detectors with ``host_at_detection`` read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

import dewmark
from dewmark.errors import InputError, NumericalError, VocabularyError
from dewmark.hosts.fake import FakeHost, tiny_model
from dewmark.registry import SCHEMES
from dewmark.scheme import BoundScheme, Needs, Scheme, State

PROMPTS = ["the old bridge", "the", "", "water and light of the day"]
TEXTS = [" over the river", "", " sea wind rain sun", " the city the town the road"]


@pytest.fixture(scope="module")
def host():
    return FakeHost(padded_vocab=8)


def completions(host):
    return [tokenized.ids for tokenized in host.tokenizer.encode(TEXTS)]


def test_each_row_is_what_the_model_predicts_alone(host):
    for prompt, ids, logits in zip(
        PROMPTS, completions(host), host.next_logits(PROMPTS, completions(host)), strict=True
    ):
        assert logits.shape == (len(ids), host.info.vocab_size)
        assert logits.dtype == torch.float32
        start = host.tokenizer.encode_prompts([prompt])[0]
        with torch.inference_mode():
            expected = host.model(torch.tensor([[*start, *ids]])).logits[0, len(start) - 1 : -1]
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_batches_are_bounded_and_change_nothing(host, monkeypatch):
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


def test_the_likelihood_is_that_of_the_logits(host):
    sums = host.log_likelihood(PROMPTS, TEXTS)
    for (total, count), ids, logits in zip(
        sums, completions(host), host.next_logits(PROMPTS, completions(host)), strict=True
    ):
        picked = logits.log_softmax(-1)[range(len(ids)), list(ids)]
        assert (total, count) == (pytest.approx(float(picked.sum()), abs=1e-4), len(ids))


def test_logits_may_be_worked_on_in_place(host):
    for logits in host.next_logits(["the"], [[5, 6]]):
        logits.mul_(2.0)


def test_unusable_rows_are_refused_before_anything_runs():
    host = FakeHost(context=32)
    with pytest.raises(InputError, match="context of 32"):
        host.next_logits(["the"], [[5] * 40])
    with pytest.raises(InputError, match="1 prompts but 2 texts"):
        host.next_logits(["the"], [[5], [6]])
    with pytest.raises(InputError, match="token 9999"):
        host.next_logits(["the"], [[9999]])


def test_nan_is_one_clear_error():
    host = FakeHost()
    with torch.no_grad():
        host.model.lm_head.weight[5] = float("nan")
    with pytest.raises(NumericalError, match="text 0.*float32"):
        list(host.next_logits(["the"], [[7, 8]]))


@dataclass(frozen=True)
class Asking(Scheme):
    """A scheme that keeps the workspace it was bound with."""

    name: ClassVar[str] = "asking"
    summary: ClassVar[str] = "asks for a host"
    needs: ClassVar[Needs] = Needs(host_at_detection=True)

    def validate(self):
        return None

    def bind(self, key, host, workspace):
        return BoundAsking(self, host, "0123456789ab", workspace)

    def restore(self, state, host, fingerprint, workspace):
        return BoundAsking(self, host, fingerprint, workspace)


class BoundAsking(BoundScheme):
    def __init__(self, scheme, host, fingerprint, workspace):
        super().__init__(scheme, host, fingerprint)
        self.open_host = workspace.open_host

    def session(self, prompt_ids, attention_mask=None, *, seeds=None):
        raise NotImplementedError

    def detect_batch(self, texts, *, prompts=None, fpr=0.01, test=None):
        raise NotImplementedError

    def state(self):
        return State(meta={}, arrays={"nothing": np.zeros(1)})


@pytest.fixture
def asking(monkeypatch):
    monkeypatch.setitem(SCHEMES._registered, "asking", Asking)


@pytest.fixture
def folder(tmp_path):
    for name, seed in (("tiny", 4), ("other", 5)):
        model, tokenizer = tiny_model(128, seed=seed)
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    return tmp_path / "tiny"


def test_a_named_host_is_opened_once_and_when_asked_for(asking, folder, monkeypatch):
    calls = []
    load = dewmark.load_host
    monkeypatch.setattr(
        "dewmark.watermark.load_host", lambda name, **kwargs: calls.append(name) or load(name, **kwargs)
    )
    watermark = dewmark.Watermark(str(folder), key=dewmark.Key(bytes(32)), scheme="asking")
    assert calls == []
    own = watermark.scheme.open_host(None)
    assert own is watermark.scheme.open_host(None) is watermark.host
    assert calls == [str(folder)]
    (logits,) = own.next_logits(["the"], [[5, 6]])
    (others,) = watermark.scheme.open_host(str(folder.parent / "other")).next_logits(["the"], [[5, 6]])
    assert logits.shape == (2, 128)
    assert not torch.equal(logits, others)


def test_a_model_in_memory_serves_itself(asking):
    model, tokenizer = tiny_model(128)
    scheme = dewmark.load_scheme("asking", key=dewmark.Key(bytes(32)), host=model, tokenizer=tokenizer)
    assert scheme.open_host(None).model is model
    assert scheme.open_host(None) is scheme.open_host(None)


def test_an_exported_detector_opens_its_host(asking, folder, tmp_path):
    scheme = dewmark.load_scheme("asking", key=dewmark.Key(bytes(32)), host=str(folder))
    dewmark.Detector(scheme).save(tmp_path / "detector")
    detector = dewmark.Detector.load(tmp_path / "detector").scheme
    (ours,) = detector.open_host(None).next_logits(["the"], [[5, 6]])
    (theirs,) = scheme.open_host(None).next_logits(["the"], [[5, 6]])
    assert torch.equal(ours, theirs)
    model, tokenizer = tiny_model(144)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with pytest.raises(VocabularyError, match="another tokenizer"):
        dewmark.Detector.load(tmp_path / "detector").scheme.open_host(None)
