"""Models with learned positions, ALiBi, rotary embeddings and sliding windows behave alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from dewmark.decoding import Decoding
from dewmark.errors import InputError
from dewmark.hosts import host_info, load_host
from dewmark.hosts.transformers.model import TransformersHost
from dewmark_lab.testing.fake_host import tiny_tokenizer

SMALL = {"vocab_size": 96, "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **SMALL),
    "bloom": lambda: transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, **SMALL),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(max_position_embeddings=64, **LAYERS, **SMALL),
    "gemma3_text": lambda: transformers.Gemma3TextConfig(
        max_position_embeddings=64,
        num_key_value_heads=2,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"],
        **LAYERS,
        **SMALL,
    ),
    "qwen3": lambda: transformers.Qwen3Config(
        max_position_embeddings=64, num_key_value_heads=2, head_dim=8, **LAYERS, **SMALL
    ),
}
PROMPTS = ["the old bridge over the river was on the hill", "the sea", ""]


@pytest.fixture(params=list(CONFIGS))
def model(request):
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(CONFIGS[request.param]())


def test_batch_equals_single(model):
    host = TransformersHost(model, tiny_tokenizer(96))
    settings = {"scheme": None, "decoding": Decoding(max_new_tokens=20, no_repeat_ngram=3)}
    batched = host.generate(PROMPTS, seeds=[1, 2, 3], **settings)
    single = [host.generate([p], seeds=[s], **settings)[0] for p, s in zip(PROMPTS, [1, 2, 3], strict=True)]
    assert batched == single
    together = host.log_likelihood(PROMPTS, [row.text for row in batched])
    for row, (total, count) in zip(batched, together, strict=True):
        ((alone, tokens),) = host.log_likelihood([row.prompt], [row.text])
        assert count == tokens
        assert total == pytest.approx(alone, abs=1e-3)


def test_greedy_text_equals_transformers_generate(model):
    host = TransformersHost(model, tiny_tokenizer(96))
    row = host.generate(
        PROMPTS[:1], scheme=None, seeds=[0], decoding=Decoding(max_new_tokens=16, temperature=0.0)
    )[0]
    ids = torch.tensor(host.tokenizer.encode_prompts(PROMPTS[:1], needs_bos=host.needs_bos))
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 16}
    reference = model.generate(ids, **options, suppress_tokens=[0, 1, 3])[0, ids.shape[1] :]
    expected = [i for i in reference.tolist() if i not in host.tokenizer.special_ids]
    assert list(row.token_ids) == expected


def test_embeddings_are_those_of_the_model(model, tmp_path):
    model.save_pretrained(tmp_path)
    tiny_tokenizer(96).save_pretrained(tmp_path)
    table = host_info(str(tmp_path)).embeddings()
    assert np.array_equal(table, model.get_input_embeddings().weight.detach().numpy())


def test_learned_positions_end_with_the_context(tmp_path):
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS["gpt2"]())
    model.save_pretrained(tmp_path)
    tiny_tokenizer(96).save_pretrained(tmp_path)
    host = load_host(str(tmp_path))
    options = {"scheme": None, "decoding": Decoding(max_new_tokens=24), "batch_size": 1}
    assert host.generate([" the" * 40], seeds=[1], **options)[0].tokens <= 24
    with pytest.raises(InputError, match="prompt 1 .* context of 64"):
        host.generate(["sea", " the" * 41], seeds=[1, 2], **options)
