"""Hosts to time: any that dewmark loads, or one with random weights in the shape of a known model.

What a step costs depends on shapes, not on what the weights are, so a model that cannot be had here is timed
as ``random:llama-3.2-3b``. Its tokenizer is byte-level, with as many pieces as the shape's vocabulary.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from dewmark.errors import ModelError
from dewmark.hosts import load_host
from dewmark.hosts.fake import tiny_tokenizer
from dewmark.hosts.transformers import TransformersHost, info_from_model, torch_device, torch_dtype
from dewmark.registry import unknown_name
from dewmark.workspace import Progress

__all__ = ["RANDOM", "SHAPES", "open_host", "random_host"]

RANDOM = "random:"

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.2-3b": {
        "vocab_size": 128_256,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
    },
    "llama-3.2-1b": {
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "smollm2-135m": {
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "tiny": {
        "vocab_size": 1024,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}


def open_host(
    name: str, *, device: str = "auto", dtype: str = "auto", progress: Progress | None = None
) -> TransformersHost:
    """A host by its name, or ``random:SHAPE``."""
    if not name.startswith(RANDOM):
        return load_host(name, device=device, dtype=dtype, progress=progress)
    shape = name.removeprefix(RANDOM)
    if shape not in SHAPES:
        raise unknown_name("shape", shape, SHAPES)
    target = torch_device(device)
    return random_host(SHAPES[shape], name=name, device=target, dtype=torch_dtype(dtype, target))


def random_host(
    shape: dict[str, Any], *, name: str, device: torch.device, dtype: torch.dtype
) -> TransformersHost:
    """A Llama of this shape whose weights are random."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **shape, max_position_embeddings=8192, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.random.fork_rng(devices=[]), device:
            torch.manual_seed(0)
            model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    except torch.OutOfMemoryError:
        raise ModelError(f"a model of this shape does not fit into the memory of {device}") from None
    finally:
        torch.set_default_dtype(before)
    tokenizer = tiny_tokenizer(shape["vocab_size"], kind="bytes")
    info = dataclasses.replace(info_from_model(model, tokenizer), name=name)
    return TransformersHost(model, tokenizer, info=info)
