from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, ModelError, UnknownNameError, VocabularyError
from dewmark.hosts import host_info, load_host
from dewmark.hosts.fake import FakeHost, tiny_model
from dewmark.hosts.transformers import model_files as sources
from dewmark.hosts.transformers.description import info_from_model
from dewmark.hosts.transformers.model import TransformersHost
from dewmark.hosts.transformers.tokenizer import HFTokenizer
from dewmark.hosts.transformers.watermarking_config import WatermarkingConfig


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
    return host.generate(["the old bridge"], scheme=None, seeds=[3], decoding=Decoding(max_new_tokens=20))[
        0
    ].text


def test_a_local_folder_round_trips(folder):
    model, tokenizer = tiny_model(128, padded_vocab=16, seed=4)
    loaded = load_host(str(folder), device="cpu")
    assert loaded.model.dtype == torch.float32
    assert text_of(loaded) == text_of(TransformersHost(model, tokenizer))


def test_info_of_a_folder_is_that_of_its_model_without_loading_it(folder, monkeypatch):
    loaded = load_host(str(folder), device="cpu")
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)
    info = host_info(str(folder))
    table = info.embeddings()
    assert (info.vocab_size, info.tokenizer.size) == (144, 128)
    assert info.identity == loaded.info.identity
    assert table.dtype == np.float32
    assert np.array_equal(table, loaded.model.get_input_embeddings().weight.detach().numpy())


def test_embeddings_of_sharded_and_half_precision_weights(tmp_path):
    model, tokenizer = tiny_model(512)
    model = model.to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors.index.json").exists()
    table = host_info(str(tmp_path)).embeddings()
    assert np.array_equal(table, model.get_input_embeddings().weight.detach().float().numpy())


def test_embeddings_under_an_unknown_name_come_from_the_model(folder, monkeypatch):
    monkeypatch.setattr("dewmark.hosts.transformers.description._EMBEDDING_NAMES", ("no.such.name",))
    assert host_info(str(folder)).embeddings().shape == (144, 32)


def test_the_identity_of_a_folder_follows_its_files(folder):
    first = host_info(str(folder)).identity
    assert host_info(str(folder)).identity == first
    model, _ = tiny_model(128, padded_vocab=16, seed=5)
    model.save_pretrained(folder)
    assert host_info(str(folder)).identity != first


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


def test_gemma_gets_its_begin_of_text():
    model, tokenizer = tiny_model(128)
    model.config.model_type = "gemma3_text"
    host = TransformersHost(model, tokenizer)
    assert host._needs_bos
    assert text_of(host) != text_of(FakeHost(128))


def converter(tmp_path, calls):
    def convert(gguf: Path, folder: Path, progress) -> None:
        calls.append(gguf.name)
        progress("converting", 0, 1)
        model, tokenizer = tiny_model(128)
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


def test_changed_bytes_of_large_weights_are_found_when_the_weights_are_read(cache, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(sources, "convert_gguf", converter(tmp_path, calls))
    monkeypatch.setattr(sources, "_SMALL_FILE", 0)
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"weights")
    expected = host_info(str(gguf)).embeddings()
    sources._verified.clear()  # as a new process would start
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
    """A package smollm2-135m that holds the tiny model of `converter`; gives the calls of the latter."""
    calls, package = [], dataclasses.replace(sources.PACKAGED["smollm2-135m"], tokenizer=tokenizer)
    monkeypatch.setitem(sources.PACKAGED, package.name, package)
    monkeypatch.setattr(sources, "convert_gguf", converter(tmp_path, calls))
    entry = tmp_path / package.entry
    entry.parent.mkdir()
    entry.write_bytes(b"weights")
    monkeypatch.setattr(sources, "fetch", lambda name, *, progress: tmp_path)
    return calls


def test_a_packaged_host_whose_tokenizer_was_read_wrongly_is_refused(cache, tmp_path, monkeypatch):
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
        "assert info.tokenizer.identity == sys.argv[2] and info.vocab_size == 128;"
        "assert info.embeddings().shape == (128, 32)"
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
def test_names_that_lead_nowhere(name, error, message):
    with pytest.raises(error, match=message):
        host_info(name)


def test_folders_and_files_that_hold_no_model(tmp_path, folder):
    with pytest.raises(ModelError, match=r"config\.json"):
        host_info(str(tmp_path))
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelError, match="neither"):
        host_info(str(tmp_path / "notes.txt"))
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot load the host") as error:
        host_info(str(folder))
    assert "\n" not in str(error.value)


def test_a_damaged_weight_file_is_one_line(folder):
    (folder / "model.safetensors").write_bytes(b"\x00" * 64)
    with pytest.raises(ModelError, match="damaged"):
        host_info(str(folder)).embeddings()
    with pytest.raises(ModelError, match="cannot load the host") as error:
        load_host(str(folder))
    assert "\n" not in str(error.value)


def test_an_unreachable_hub_is_one_line_with_remedies(monkeypatch, tmp_path):
    def unreachable(*args, **kwargs):
        raise OSError("no route\nto the hub")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    with pytest.raises(ModelError, match="cannot reach the hub for 'owner/model'.*local folder") as error:
        load_host("owner/model")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("options", [{"device": "gpu0"}, {"dtype": "int3"}])
def test_unknown_devices_and_dtypes_are_named(folder, options):
    with pytest.raises(ConfigError, match=next(iter(options.values()))):
        load_host(str(folder), **options)


def test_importing_hosts_is_light():
    code = (
        "import sys; from dewmark.hosts import load_host, host_info, info_from_model;"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_watermarking_config_marks_in_transformers_own_generate(host, force):
    scheme = force(host.info, 9)
    config = WatermarkingConfig(scheme)
    inputs = {"input_ids": torch.tensor([[0, 4], [4, 60]]), "attention_mask": torch.tensor([[0, 1], [1, 1]])}
    options = {"do_sample": True, "top_k": 20, "max_new_tokens": 4}
    marked = host.model.generate(**inputs, **options, watermarking_config=config)
    assert marked[:, 2:].tolist() == [[9] * 4] * 2
    assert scheme.opened[0][0].tolist() == inputs["input_ids"].tolist()
    host.model.generate(**inputs, **options, watermarking_config=config)
    assert len(scheme.opened) == 2  # each call of generate opens a session of its own
    unmarked = host.model.generate(**inputs, **options)
    assert unmarked[:, 2:].tolist() != marked[:, 2:].tolist()


def test_a_scheme_is_a_logits_processor_too(host, force):
    ids = torch.tensor([[4, 60]])
    options = {"do_sample": True, "max_new_tokens": 3, "attention_mask": torch.ones_like(ids)}
    marked = host.model.generate(ids, **options, logits_processor=[force(host.info, 9).processor(ids)])
    assert marked[0, 2:].tolist() == [9, 9, 9]


def test_watermarking_config_is_not_copied_and_gives_nothing_away(host, force):
    config = WatermarkingConfig(force(host.info, 9))
    assert copy.deepcopy(config) is config
    assert set(config.to_dict()) == {"scheme", "config_hash"}
    assert "force" in repr(config)
    assert "force" in GenerationConfig(watermarking_config=config).to_json_string()
    assert dict(config) == config.to_dict()


def test_watermarking_config_refuses_another_vocabulary_and_what_is_no_scheme(force):
    other = force(FakeHost(64).info)
    model, _ = tiny_model(128)
    with pytest.raises(VocabularyError, match="64 ids"):
        model.generate(torch.tensor([[4]]), max_new_tokens=1, watermarking_config=WatermarkingConfig(other))
    with pytest.raises(ConfigError, match="load_scheme"):
        WatermarkingConfig("dew").validate()


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
