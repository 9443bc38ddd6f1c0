"""The forward pass without transformers gives the logits of transformers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
import transformers

from dewmark.decoding import Decoding
from dewmark.hosts import load_host
from dewmark.hosts.transformers import model_files
from dewmark.hosts.transformers.decoding_loop import CachedForward
from dewmark.hosts.transformers.plain_llama import PlainLlama
from dewmark_lab.testing.fake_host import tiny_tokenizer

SMALL = {
    "vocab_size": 96,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS = {
    "llama": lambda **more: transformers.LlamaConfig(**SMALL, **more),
    "tied": lambda **more: transformers.LlamaConfig(**SMALL, tie_word_embeddings=True, head_dim=16, **more),
    "biased": lambda **more: transformers.LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True, **more),
    "qwen2": lambda **more: transformers.Qwen2Config(**SMALL, **more),
}
PROMPTS = ["the old bridge over the river was on the hill", "the sea", ""]


def saved(folder, config):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):  # they start at zero
            torch.nn.init.normal_(weight)
    model.save_pretrained(folder)
    return model.eval()


@pytest.fixture
def gguf(tmp_path, monkeypatch):
    def convert(gguf, folder, progress, *, generation):
        saved(folder, CONFIGS["llama"]())
        tiny_tokenizer(96).save_pretrained(folder)

    monkeypatch.setenv("DEWMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(model_files, "convert_gguf", convert)
    (tmp_path / "tiny.gguf").write_bytes(b"weights")
    return str(tmp_path / "tiny.gguf")


def texts_of(host):
    settings = {"scheme": None, "decoding": Decoding(max_new_tokens=20, no_repeat_ngram=3)}
    return [row.token_ids for row in host.generate(PROMPTS, seeds=[1, 2, 3], **settings)]


@pytest.mark.parametrize("padding", [None, (0, 3, 5)])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_logits_are_equal_to_the_last_bit(name, padding, tmp_path):
    model = saved(tmp_path, CONFIGS[name]())
    assert PlainLlama.can_load(tmp_path)
    mask = None
    if padding is not None:
        mask = (torch.arange(24) >= torch.tensor(padding)[:, None]).long()
    ids = torch.randint(3, 96, (3, 24), generator=torch.Generator().manual_seed(1))
    theirs = CachedForward(model, mask)
    ours = CachedForward(PlainLlama(tmp_path, dtype=torch.float32), mask)
    with torch.inference_mode():
        for length in (9, 10, 11, 16, 24):  # a prompt, single tokens, several at once
            assert torch.equal(ours(ids[:, :length]), theirs(ids[:, :length]))


@pytest.mark.parametrize(
    "config",
    [
        CONFIGS["llama"](hidden_act="gelu"),
        CONFIGS["llama"](rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}),
        CONFIGS["qwen2"](use_sliding_window=True, sliding_window=4, max_window_layers=0),
        transformers.Qwen3Config(**SMALL),
    ],
)
def test_other_models_are_left_to_transformers(config, tmp_path):
    saved(tmp_path, config)
    assert not PlainLlama.can_load(tmp_path)


def test_a_converted_host_writes_the_same_texts_with_and_without_transformers(gguf):
    host = load_host(gguf, device="cpu")
    assert isinstance(host.writer, PlainLlama)
    ends, device, texts = host.eos_ids, host.device, texts_of(host)
    assert len(host.log_likelihood(PROMPTS[:1], PROMPTS[1:2])) == 1
    assert isinstance(host.model, transformers.LlamaForCausalLM)
    assert host.writer is host.model
    assert (host.eos_ids, host.device, texts_of(host)) == (ends, device, texts)


def test_writing_with_a_converted_host_imports_no_transformers(gguf):
    expected = texts_of(load_host(gguf, device="cpu"))
    code = f"""
import json, sys
from dewmark.decoding import Decoding
from dewmark.hosts import load_host
host = load_host({gguf!r}, device="cpu")
decoding = Decoding(max_new_tokens=20, no_repeat_ngram=3)
rows = host.generate({PROMPTS!r}, scheme=None, seeds=[1, 2, 3], decoding=decoding)
assert not [m for m in sys.modules if m.split(".")[0] in ("transformers", "accelerate", "sympy")]
print(json.dumps([row.token_ids for row in rows]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [tuple(row) for row in json.loads(done.stdout)] == expected
