"""A host's description, from its files and from a model in memory."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from dewmark.errors import ConfigError
from dewmark.hosts import host_info, load_host
from dewmark.hosts.fake import tiny_model
from dewmark.hosts.transformers.description import info_from_model
from dewmark.hosts.transformers.tokenizer import HFTokenizer


@pytest.fixture
def folder(tmp_path):
    model, tokenizer = tiny_model(128, padded_vocab=16, seed=4)
    model.save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def test_a_folder_is_described_without_loading_its_model(folder, monkeypatch):
    loaded = load_host(str(folder), device="cpu")
    with monkeypatch.context() as without:
        without.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)
        info = host_info(str(folder))
    table = info.embeddings()
    assert (info.vocab_size, info.tokenizer.size) == (144, 128)
    assert info.identity == loaded.info.identity
    assert table.dtype == np.float32
    assert np.array_equal(table, loaded.model.get_input_embeddings().weight.detach().numpy())


def test_the_tokenizer_of_a_host_renders_conversations_as_transformers_does(tmp_path):
    model, tokenizer = tiny_model(128)
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    talk = [{"role": "user", "content": "the old bridge"}]
    expected = tokenizer.apply_chat_template(talk, tokenize=False)
    assert (
        load_host(str(tmp_path), device="cpu").tokenizer.apply_chat_template(talk, tokenize=False) == expected
    )
    HFTokenizer(tokenizer).save(tmp_path / "kept")
    with pytest.raises(ConfigError, match="load_host"):
        HFTokenizer.load(tmp_path / "kept").apply_chat_template(talk)


def test_the_identity_of_a_model_in_memory_follows_embeddings_and_tokenizer():
    model, tokenizer = tiny_model(128)
    first = info_from_model(model, tokenizer).identity
    assert info_from_model(copy.deepcopy(model), tokenizer).identity == first
    exact = copy.deepcopy(model).to(torch.bfloat16)
    assert info_from_model(exact, tokenizer).identity == info_from_model(exact.float(), tokenizer).identity
    assert info_from_model(tiny_model(128, seed=1)[0], tokenizer).identity != first
    assert info_from_model(tiny_model(129)[0], tiny_model(129)[1]).identity != first


def test_embeddings_of_a_model_in_memory_are_a_copy():
    model, tokenizer = tiny_model(128)
    info_from_model(model, tokenizer).embeddings()[:] = 0.0
    assert model.get_input_embeddings().weight.abs().max() > 0
