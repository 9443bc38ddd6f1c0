"""Attention to growing texts leaves out the kernels that plan each new length."""

from __future__ import annotations

import pytest
import torch
import transformers

from dewmark.hosts.transformers import decoding_loop
from dewmark.models.devices import growing_attention


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
