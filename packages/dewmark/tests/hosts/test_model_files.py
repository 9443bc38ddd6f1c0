"""A host's files (folders, GGUF and its conversion, packages, the hub) and its description by them."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from dewmark import storage
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, ModelError, UnknownNameError
from dewmark.hosts import host_info, load_host
from dewmark.hosts.transformers import model_files as sources
from dewmark.hosts.transformers.description import info_from_model
from dewmark.hosts.transformers.tokenizer import HFTokenizer
from dewmark_lab.testing.fake_host import tiny_model


@pytest.fixture
def folder(tmp_path):
    model, tokenizer = tiny_model(128, padded_vocab=16, seed=4)
    model.save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DEWMARK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def text_of(host):
    decoding = Decoding(max_new_tokens=20)
    return host.generate(["the old bridge"], scheme=None, seeds=[3], decoding=decoding)[0].text


def test_the_identity_of_a_folder_follows_its_files(folder):
    first = host_info(str(folder)).identity
    assert host_info(str(folder)).identity == first
    model, _ = tiny_model(128, padded_vocab=16, seed=5)
    model.save_pretrained(folder)
    assert host_info(str(folder)).identity != first


def converter(tmp_path, calls):
    def convert(gguf: Path, folder: Path, progress, *, generation) -> None:
        calls.append(gguf.name)
        progress("converting", 0, 1)
        model, tokenizer = tiny_model(128)
        model.generation_config.update(**generation)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return convert


def test_a_gguf_file_is_converted_once_and_a_damaged_copy_again(cache, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(sources, "convert_gguf", converter(tmp_path, calls))
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"weights")
    seen = []
    info = host_info(str(gguf), progress=lambda *args: seen.append(args))
    text = text_of(load_host(str(gguf)))
    assert calls == ["model.gguf"]
    assert seen
    assert info.identity == load_host(str(gguf)).info.identity

    (copied,) = (cache / "hosts").iterdir()
    assert HFTokenizer(AutoTokenizer.from_pretrained(copied)).identity == info.tokenizer.identity
    damaged = copied / "config.json"
    damaged.write_text(damaged.read_text().replace("silu", "relu"))
    assert text_of(load_host(str(gguf))) == text
    assert calls == ["model.gguf"] * 2

    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    assert text_of(load_host(str(gguf))) == text
    assert calls == ["model.gguf"] * 3

    (copied / "manifest.json").write_text("[]")
    assert text_of(load_host(str(gguf))) == text
    assert calls == ["model.gguf"] * 4


def test_corrupt_large_weights_are_noticed_when_they_are_read(cache, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(sources, "convert_gguf", converter(tmp_path, calls))
    monkeypatch.setattr(storage, "SMALL_FILE", 0)
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"weights")
    expected = host_info(str(gguf)).embeddings()
    storage.verified.clear()  # as a new process would start
    (copied,) = (cache / "hosts").iterdir()
    weights = copied / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-100] ^= 255
    weights.write_bytes(data)
    info = host_info(str(gguf))
    assert len(calls) == 1
    assert np.array_equal(info.embeddings(), expected)
    assert len(calls) == 2


def test_a_failed_conversion_leaves_nothing_behind(cache, tmp_path):
    gguf = tmp_path / "broken.gguf"
    gguf.write_bytes(b"GGUF but not really")
    with pytest.raises(ModelError, match="cannot convert") as error:
        host_info(str(gguf))
    assert "\n" not in str(error.value)
    assert list((cache / "hosts").iterdir()) == []


def packaged(tmp_path, monkeypatch, *, tokenizer):
    """A package smollm2-135m with the tiny model of `converter`; returns the converter's calls."""
    calls, package = [], dataclasses.replace(sources.PACKAGED["smollm2-135m"], tokenizer=tokenizer)
    monkeypatch.setitem(sources.PACKAGED, package.name, package)
    monkeypatch.setattr(sources, "convert_gguf", converter(tmp_path, calls))
    entry = tmp_path / package.entry
    entry.parent.mkdir()
    entry.write_bytes(b"weights")
    monkeypatch.setattr(sources, "fetch", lambda name, *, progress: tmp_path)
    return calls


def test_a_packaged_host_with_a_misread_tokenizer_is_rejected(cache, tmp_path, monkeypatch):
    packaged(tmp_path, monkeypatch, tokenizer="0123456789abcdef")
    with pytest.raises(ModelError, match="expected 0123456789abcdef.*transformers>=") as error:
        host_info("smollm2-135m")
    assert "\n" not in str(error.value)


def test_a_packaged_host_is_converted_from_its_package(cache, tmp_path, monkeypatch):
    calls = packaged(tmp_path, monkeypatch, tokenizer="")
    info = host_info("smollm2-135m")
    assert info.name == "smollm2-135m"
    assert info.identity.startswith("smollm2-135m@")
    monkeypatch.setattr(sources, "fetch", None)  # the package is not needed any more
    assert load_host("smollm2-135m").info.identity == info.identity
    assert len(calls) == 1


def test_info_of_a_converted_host_needs_neither_torch_nor_transformers(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "convert_gguf", converter(tmp_path, []))
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"weights")
    expected = host_info(str(gguf))
    code = (
        "import sys; from dewmark.hosts import host_info; info = host_info(sys.argv[1]);"
        "assert not {'torch', 'transformers'} & set(sys.modules);"
        "assert info.tokenizer.identity == sys.argv[2] and info.vocab_size == 128"
    )
    subprocess.run([sys.executable, "-c", code, str(gguf), expected.tokenizer.identity], check=True)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("smollm2-135", UnknownNameError, "did you mean 'smollm2-135m'"),
        ("use-m3", ConfigError, "encoder"),
        ("./nowhere", ModelError, "no model at"),
        ("lost.gguf", ModelError, "no model at"),
    ],
)
def test_unknown_names(name, error, message):
    with pytest.raises(error, match=message):
        host_info(name)


def test_folders_and_files_without_a_model(tmp_path, folder):
    with pytest.raises(ModelError, match=r"config\.json"):
        host_info(str(tmp_path))
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelError, match="neither"):
        host_info(str(tmp_path / "notes.txt"))
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot load the host") as error:
        host_info(str(folder))
    assert "\n" not in str(error.value)


def test_a_damaged_weight_file_gives_a_one_line_error(folder):
    (folder / "model.safetensors").write_bytes(b"\x00" * 64)
    for use in (load_host, lambda name: host_info(name).embeddings()):
        with pytest.raises(ModelError, match="cannot load the host") as error:
            use(str(folder))
        assert "\n" not in str(error.value)


def test_an_unreachable_hub_gives_a_one_line_error_with_remedies(monkeypatch, tmp_path):
    def unreachable(*args, **kwargs):
        raise OSError("no route\nto the hub")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    with pytest.raises(ModelError, match="cannot reach the hub for 'owner/model'.*local folder") as error:
        load_host("owner/model")
    assert "\n" not in str(error.value)


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
