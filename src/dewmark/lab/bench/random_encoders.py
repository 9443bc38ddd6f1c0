"""Encoders with random output, for timing: the cost of a step depends on shapes, not on values.

``random:768`` gives every text a pseudo-random vector of that dimension, at no cost. ``random:mpnet-base``
runs a transformer with random weights in the shape of the paper's context encoder.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dewmark.arrays import F32
from dewmark.encoders.base import Encoder
from dewmark.models.devices import same_device, torch_device
from dewmark.registry import unknown_name
from dewmark.text.windows import ids_and_mask, pack_ids, pad_rows
from dewmark.workspace import Progress, silent

if TYPE_CHECKING:
    import torch

    from dewmark.cuda.encoder import GraphedEncoder
    from dewmark.workspace import Tokenizer

__all__ = ["RandomTransformer", "RandomVectors", "random_encoder"]

_SHAPE: dict[str, Any] = {
    "vocab_size": 250_002,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
}
_BATCH = 512


def random_encoder(kind: str, *, progress: Progress = silent, device: str = "auto") -> Encoder:
    """The encoder ``random:<kind>``, where ``kind`` is a dimension or ``mpnet-base``."""
    if kind == "mpnet-base":
        return RandomTransformer(device=device)
    if not (kind.isdigit() and int(kind) > 1):
        raise unknown_name("encoder", f"random:{kind}", ["random:768", "random:mpnet-base"])
    return RandomVectors(int(kind))


class RandomVectors(Encoder):
    """A vector per text, from the hash of its bytes."""

    def __init__(self, dim: int) -> None:
        super().__init__(device="cpu")
        self.name = self.identity = f"random:{dim}"
        self._dim = dim

    @property
    def dim(self) -> int:
        """The dimension of the vectors."""
        return self._dim

    def encode(self, texts: Sequence[str]) -> F32:
        """N texts to (N, dim), standard normal; equal texts have equal vectors."""
        rows = np.empty((len(texts), self._dim), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
            np.random.default_rng(seed).standard_normal(out=row, dtype=np.float32)
        return rows


class RandomTransformer(Encoder):
    """XLM-RoBERTa-base with random weights, mean pooling, and ids that are hashes of words."""

    name = identity = "random:mpnet-base"

    def __init__(self, *, device: str = "auto") -> None:
        super().__init__(device=device)
        self._parts: RandomParts | None = None
        self._graphs: GraphedEncoder | None = None

    @property
    def dim(self) -> int:
        """The dimension of the vectors."""
        return int(_SHAPE["hidden_size"])

    def encode(self, texts: Sequence[str]) -> F32:
        """N texts to (N, 768)."""
        import torch

        parts = self._loaded()
        rows = np.zeros((len(texts), self.dim), dtype=np.float32)
        for i in range(0, len(texts), _BATCH):
            given = parts.tokenize(texts[i : i + _BATCH], multiple=1).to(parts.device)
            with torch.inference_mode():
                found = parts(*ids_and_mask(given, fill=parts.fill))
            rows[i : i + _BATCH] = found.float().cpu().numpy()
        return rows

    def graphed(self, device: torch.device) -> GraphedEncoder | None:
        """The encoder as CUDA graphs, if it was loaded onto this device."""
        from dewmark.cuda.encoder import GraphedEncoder

        with self._lock:
            parts = self._loaded()
            if device.type != "cuda" or not same_device(parts.device, device):
                return None
            if self._graphs is None:
                self._graphs = GraphedEncoder(parts)
            return self._graphs

    def _loaded(self) -> RandomParts:
        with self._lock:
            if self._parts is None:
                self._parts = RandomParts(torch_device(self.device))
            return self._parts


class RandomParts:
    """Texts to ids on the CPU and ids to vectors on the device, as `dewmark.cuda.encoder.Graphable`."""

    fill = 1

    def __init__(self, device: torch.device) -> None:
        import torch
        from transformers import XLMRobertaConfig, XLMRobertaModel

        from dewmark.cuda.short_bert import short_bert

        config = XLMRobertaConfig(
            **_SHAPE, intermediate_size=3072, max_position_embeddings=514, type_vocab_size=1
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model: Any = XLMRobertaModel(config, add_pooling_layer=False)  # type: ignore[no-untyped-call]
        self._model = model.eval().to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
        self._short = short_bert(self._model)
        self.device = device

    def tokenize(self, texts: Sequence[str], *, multiple: int) -> torch.Tensor:
        """Ids (N, T): one per word, between the start and end ids."""
        words = _SHAPE["vocab_size"] - 5
        rows = [[0, *(5 + zlib.crc32(word.encode()) % words for word in text.split()), 2] for text in texts]
        return pad_rows([pack_ids(row) for row in rows], multiple=multiple)

    def of_windows(self, tokenizer: Tokenizer) -> None:
        """None: words are hashed, not looked up."""

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Ids and mask (N, T) to rows (N, 768), in the model's precision."""
        if self._short is not None and ids.shape[1] <= self._short.longest:
            states = self._short(ids, mask)
        else:
            states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
        present = mask.unsqueeze(-1).to(states.dtype)
        return (states * present).sum(dim=1) / present.sum(dim=1)
