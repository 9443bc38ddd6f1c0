"""One tensor out of a host's weight files: the input embeddings, without loading the model.

Boundary: reads safetensors by name; only where that fails is the model loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM
from transformers.utils.hub import cached_file

from dewmark.errors import ModelError
from dewmark.hosts.decoding import CausalLM
from dewmark.hosts.gguf import quiet
from dewmark.hosts.sources import Source, load_error

__all__ = ["read_embeddings", "to_float32"]

_EMBEDDING_NAMES = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")


def read_embeddings(source: Source, vocab_size: int) -> NDArray[np.float32]:
    """The input-embedding table (vocab_size, d) out of the weight files, or out of the loaded model."""
    table = _read_tensor(source)
    if table is None or not table.is_floating_point() or table.dim() != 2 or table.shape[0] < vocab_size:
        try:
            with quiet():
                model: CausalLM = AutoModelForCausalLM.from_pretrained(
                    source.location, dtype="auto", **source.options
                )
        except Exception as error:
            raise load_error(source.name, error) from error
        return to_float32(model.get_input_embeddings().weight[:vocab_size])
    return to_float32(table[:vocab_size])


def _read_tensor(source: Source) -> torch.Tensor | None:
    """The embedding tensor, read by name from the one safetensors file that holds it."""
    from safetensors import SafetensorError, safe_open

    index = _file(source, "model.safetensors.index.json")
    try:
        if index is not None:
            shards: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            wanted = _embedding_name(shards)
            file = None if wanted is None else _file(source, shards[wanted])
        else:
            file = _file(source, "model.safetensors")
        if file is None:
            return None
        with safe_open(str(file), framework="pt") as tensors:
            name = _embedding_name(tensors.keys())
            return None if name is None else tensors.get_tensor(name)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ModelError(
            f"the weight files of {source.name} are damaged: fetch or save them again"
        ) from error


def _embedding_name(names: Iterable[str]) -> str | None:
    found = [n for n in names if any(n == e or n.endswith(f".{e}") for e in _EMBEDDING_NAMES)]
    return min(found, key=len, default=None)  # the shortest: inner modules repeat the name further down


def _file(source: Source, name: str) -> Path | None:
    try:
        found = cached_file(
            source.location, name, _raise_exceptions_for_missing_entries=False, **source.options
        )
    except OSError as error:
        raise load_error(source.name, error) from error
    return None if found is None else Path(found)


def to_float32(table: torch.Tensor) -> NDArray[np.float32]:
    """A table on any device and in any precision, as a float32 array (shared where it is one already)."""
    array: NDArray[np.float32] = table.detach().to("cpu", torch.float32).contiguous().numpy()
    return array
