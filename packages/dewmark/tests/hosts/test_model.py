"""Hosts that run in transformers, loaded by name or wrapped, and the likelihoods that they give."""

from __future__ import annotations

import pytest
import torch

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, InputError, ModelError, NumericalError
from dewmark.hosts import host_info, load_host
from dewmark.hosts.transformers import likelihood
from dewmark.hosts.transformers import model as loading
from dewmark.hosts.transformers.model import TransformersHost
from dewmark.models.packaged import PACKAGED
from dewmark.registry import HOSTS
from dewmark_lab.testing.fake_host import FakeHost, tiny_model


@pytest.fixture
def folder(tmp_path):
    model, tokenizer = tiny_model(128, padded_vocab=16, seed=4)
    model.save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def text_of(host):
    return host.generate(["the old bridge"], scheme=None, seeds=[3], decoding=Decoding(max_new_tokens=20))[
        0
    ].text


def test_a_local_folder_round_trips(folder):
    model, tokenizer = tiny_model(128, padded_vocab=16, seed=4)
    loaded = load_host(str(folder), device="cpu")
    assert loaded.model.dtype == torch.float32
    assert text_of(loaded) == text_of(TransformersHost(model, tokenizer))


def test_gemma_gets_its_begin_of_text():
    model, tokenizer = tiny_model(128)
    model.config.model_type = "gemma3_text"
    host = TransformersHost(model, tokenizer)
    assert host.needs_bos
    assert text_of(host) != text_of(FakeHost(128))


@pytest.mark.parametrize("options", [{"device": "gpu0"}, {"dtype": "int3"}])
def test_unknown_devices_and_dtypes_are_named(folder, options):
    with pytest.raises(ConfigError, match=next(iter(options.values()))):
        load_host(str(folder), **options)


def test_texts_that_do_not_fit_are_an_error(monkeypatch):
    def decode(*args, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loading, "decode", decode)
    with pytest.raises(ModelError, match="out of memory for 2 texts at once .* smaller batch_size"):
        FakeHost(128).generate(["the old", "bridge"], scheme=None, seeds=[1, 2])


@pytest.mark.models
def test_the_real_default_host_writes_and_reads():
    host = load_host("smollm2-135m")
    prompts = ["The old bridge over the river", "In the beginning"]
    rows = host.generate(
        prompts, scheme=None, seeds=[1, 2], decoding=Decoding(max_new_tokens=24, no_repeat_ngram=4)
    )
    single = host.generate(
        prompts[:1], scheme=None, seeds=[1], decoding=Decoding(max_new_tokens=24, no_repeat_ngram=4)
    )
    assert single == rows[:1]
    assert all(row.tokens > 5 for row in rows)
    assert host.info.embeddings().shape == (49152, 576)
    human = ["was closed for repairs, so we took the ferry to the other side.", "xq zzv lorp tig bnn qwe"]
    scored = host.log_likelihood(["The old bridge over the river"] * 2, human)
    per_token = [total / count for total, count in scored]
    assert -5.0 < per_token[0] < -1.0
    assert per_token[1] < per_token[0] - 2.0
    assert 2 not in host.tokenizer.encode(["a text with <|im_end|> in it"])[0].ids


def test_the_registry_lists_the_packaged_hosts():
    packaged = {model.name for model in PACKAGED.values() if model.role == "host"}
    assert {name for name in HOSTS if HOSTS[name] is loading.load_host} == packaged


def test_a_registered_host_is_found_by_name(monkeypatch):
    def create(name, *, device, dtype, progress):
        return FakeHost(64 if dtype == "float32" else 80)

    monkeypatch.setitem(HOSTS.registered, "mine", create)
    assert load_host("mine", dtype="float32").info.vocab_size == 64
    assert host_info("mine").vocab_size == 80


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
