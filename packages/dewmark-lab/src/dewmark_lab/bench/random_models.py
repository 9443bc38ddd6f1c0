"""Hosts and encoders with random weights: the cost of a step depends on shapes, not on weights.

``random:llama-3.2-3b`` is a host in the shape of that model, with a byte-level tokenizer of the same
vocabulary size. The encoder ``random:768`` gives every text a pseudo-random vector of that dimension, at no
cost.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dewmark.arrays import F32
from dewmark.encoders.base import Encoder
from dewmark.errors import ModelError
from dewmark.hosts.transformers.description import info_from_model
from dewmark.hosts.transformers.model import TransformersHost, load_host
from dewmark.models.devices import torch_device, torch_dtype
from dewmark.registry import unknown_name
from dewmark.workspace import Progress, silent
from dewmark_lab.testing.fake_host import tiny_tokenizer

RANDOM = "random:"

_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads")  # fmt: skip

SHAPES: dict[str, dict[str, Any]] = {
    name: dict(zip(_SIZES, sizes, strict=True))
    for name, sizes in {
        "llama-3.2-3b": (128_256, 3072, 8192, 28, 24, 8),
        "llama-3.2-1b": (128_256, 2048, 8192, 16, 32, 8),
        "smollm2-135m": (49_152, 576, 1536, 30, 9, 3),
        "tiny": (1024, 32, 64, 2, 4, 2),
    }.items()
}


def open_host(
    name: str, *, device: str = "auto", dtype: str = "auto", progress: Progress | None = None
) -> TransformersHost:
    """A host by its name, or ``random:SHAPE`` (see `SHAPES`)."""
    if not name.startswith(RANDOM):
        return load_host(name, device=device, dtype=dtype, progress=progress)
    shape = name.removeprefix(RANDOM)
    if shape not in SHAPES:
        raise unknown_name("shape", shape, SHAPES)
    target = torch_device(device)
    return _random_host(SHAPES[shape], name=name, device=target, dtype=torch_dtype(dtype, target))


def _random_host(
    shape: dict[str, Any], *, name: str, device: torch.device, dtype: torch.dtype
) -> TransformersHost:
    """A Llama of this shape with random weights."""
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
        raise ModelError(f"{name} does not fit in the memory of {device}: use a smaller shape") from None
    finally:
        torch.set_default_dtype(before)
    tokenizer = tiny_tokenizer(shape["vocab_size"], kind="bytes")
    info = dataclasses.replace(info_from_model(model, tokenizer), name=name)
    return TransformersHost(model, tokenizer, info=info)


def random_encoder(kind: str, *, progress: Progress = silent, device: str = "auto") -> Encoder:
    """The encoder ``random:<kind>``, where ``kind`` is a dimension."""
    if not (kind.isdigit() and int(kind) > 1):
        raise unknown_name("encoder", f"random:{kind}", ["random:768"])
    return RandomVectors(int(kind))


class RandomVectors(Encoder):
    """A vector per text, seeded by the hash of its bytes."""

    def __init__(self, dim: int) -> None:
        super().__init__(device="cpu")
        self.name = self.identity = f"random:{dim}"
        self._dim = dim

    @property
    def dim(self) -> int:
        return self._dim

    def encode(self, texts: Sequence[str]) -> F32:
        """N texts to (N, dim), standard normal; equal texts have equal vectors."""
        rows = np.empty((len(texts), self._dim), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
            np.random.default_rng(seed).standard_normal(out=row, dtype=np.float32)
        return rows
