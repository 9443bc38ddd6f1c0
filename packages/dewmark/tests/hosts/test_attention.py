"""Attention to shared keys gives what transformers gives; growing texts need no plan for each length."""

from __future__ import annotations

import pytest
import torch
import transformers

from dewmark.hosts.transformers import attention, decoding_loop
from dewmark.hosts.transformers.attention import growing_attention
from dewmark.hosts.transformers.decoding_loop import CachedForward, pad_left

SIZE = {"vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 80}
ROWS = [[4, 41, 44, 45, 9, 43], [4, 60, 70], [7]]


def model_of(config):
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def step_logits(model, *, padded):
    """The logits of four steps, (batch, vocab) each."""
    rows = ROWS if padded else ROWS[:1] * 2
    ids, mask = pad_left(rows, fill_id=0, extra=3, device=torch.device("cpu"))
    forward = CachedForward(model, mask if padded else None)
    with torch.inference_mode():
        return [forward(ids[:, :length]) for length in range(6, 10)]


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("kind", [transformers.Qwen2Config, transformers.LlamaConfig])
def test_logits_are_those_of_transformers(kind, padded, monkeypatch):
    model = model_of(kind(**SIZE, num_attention_heads=6, num_key_value_heads=2))
    before = step_logits(model, padded=padded)
    masked = []
    kernel = attention.scaled_dot_product_attention

    def counted(query, *args, **options):
        masked.append(query.shape)
        return kernel(query, *args, **options)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", counted)
    attention.share_keys(model)
    after = step_logits(model, padded=padded)
    for mine, theirs in zip(after, before, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    # three steps of two layers; without padding transformers has a fast way itself
    assert masked == ([(3, 2, 3, 8)] * 6 if padded else [])


@pytest.mark.parametrize(
    ("heads", "kernel"), [({"num_key_value_heads": 6}, "sdpa"), ({"num_key_value_heads": 2}, "eager")]
)
def test_other_models_stay_as_they_are(heads, kernel):
    model = model_of(
        transformers.LlamaConfig(**SIZE, num_attention_heads=6, **heads, attn_implementation=kernel)
    )
    attention.share_keys(model)
    assert model.config._attn_implementation == kernel


def kernels() -> tuple[bool, bool, bool]:
    backend = torch.backends.cuda
    return backend.cudnn_sdp_enabled(), backend.flash_sdp_enabled(), backend.mem_efficient_sdp_enabled()


@pytest.mark.parametrize(("device", "inside"), [("cuda", (False, True, True)), ("cpu", (True, True, True))])
def test_only_cudnn_is_left_out_and_only_on_cuda(device: str, inside: tuple[bool, bool, bool]) -> None:
    assert kernels() == (True, True, True)
    with growing_attention(torch.device(device)):
        assert kernels() == inside
    assert kernels() == (True, True, True)


def test_every_step_of_a_text_runs_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    monkeypatch.setattr(decoding_loop, "growing_attention", lambda device: growing_attention(cuda))
    size = {"vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, num_attention_heads=2)).eval()
    seen: list[tuple[bool, bool, bool]] = []
    model.register_forward_pre_hook(lambda *_: seen.append(kernels()))
    forward = decoding_loop.CachedForward(model, None)
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.inference_mode():
        for length in (2, 3, 4):
            forward(ids[:, :length])
    assert seen == [(False, True, True)] * 3
