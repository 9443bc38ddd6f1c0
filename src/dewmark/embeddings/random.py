"""Encoders that mean nothing, for timing: what a step costs depends on shapes, not on what vectors say.

``random:768`` gives every text a pseudo-random vector of that width, at no cost. ``random:mpnet-base`` runs a
transformer with random weights in the shape of the paper's context encoder.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dewmark.embeddings.encoders import Encoder
from dewmark.registry import unknown_name

__all__ = ["PREFIX", "random_encoder"]

PREFIX = "random:"
_SHAPE: dict[str, Any] = {
    "vocab_size": 250_002,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
}
_BATCH = 512

F32 = NDArray[np.float32]


def random_encoder(name: str, *, device: str) -> Encoder:
    """The encoder that ``random:WIDTH`` or ``random:mpnet-base`` names."""
    kind = name.removeprefix(PREFIX)
    if kind == "mpnet-base":
        return RandomTransformer(name, device=device)
    if not (kind.isdigit() and int(kind) > 1):
        raise unknown_name("encoder", name, [f"{PREFIX}768", f"{PREFIX}mpnet-base"])
    return RandomVectors(name, dim=int(kind))


class RandomVectors(Encoder):
    """A vector per text, from the hash of its bytes."""

    def __init__(self, name: str, *, dim: int) -> None:
        super().__init__(name, identity=name)
        self._dim = dim

    @property
    def dim(self) -> int:
        """The width of the vectors."""
        return self._dim

    def encode(self, texts: Sequence[str]) -> F32:
        """N texts to (N, dim), standard normal; equal texts have equal vectors."""
        rows = np.empty((len(texts), self._dim), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
            np.random.default_rng(seed).standard_normal(out=row, dtype=np.float32)
        return rows


class RandomTransformer(Encoder):
    """XLM-RoBERTa-base with random weights; words are ids by their hash, the mean state is the vector."""

    def __init__(self, name: str, *, device: str) -> None:
        super().__init__(name, identity=name)
        self._device = device
        self._model: Any = None

    @property
    def dim(self) -> int:
        """The width of the vectors."""
        return int(_SHAPE["hidden_size"])

    def encode(self, texts: Sequence[str]) -> F32:
        """N texts to (N, 768)."""
        import torch

        model = self._loaded()
        rows = []
        for i in range(0, len(texts), _BATCH):
            pieces = [
                [5 + zlib.crc32(word.encode()) % (_SHAPE["vocab_size"] - 5) for word in text.split()]
                for text in texts[i : i + _BATCH]
            ]
            width = max(map(len, pieces), default=0) + 2
            ids = torch.tensor(
                [[0, *row, 2] + [1] * (width - len(row) - 2) for row in pieces], device=model.device
            )
            mask = ids != 1
            with torch.inference_mode():
                states = model(input_ids=ids, attention_mask=mask).last_hidden_state * mask.unsqueeze(-1)
            rows.append((states.sum(dim=1) / mask.sum(dim=1, keepdim=True)).float().cpu().numpy())
        return np.concatenate(rows) if rows else np.zeros((0, self.dim), dtype=np.float32)

    def _loaded(self) -> Any:  # noqa: ANN401 - transformers types little
        import torch
        from transformers import XLMRobertaConfig, XLMRobertaModel

        with self._lock:
            if self._model is None:
                cuda = self._device == "auto" and torch.cuda.is_available()
                target = torch.device("cuda" if cuda else "cpu" if self._device == "auto" else self._device)
                config = XLMRobertaConfig(
                    **_SHAPE, intermediate_size=3072, max_position_embeddings=514, type_vocab_size=1
                )
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(0)
                    model: Any = XLMRobertaModel(config, add_pooling_layer=False)  # type: ignore[no-untyped-call]
                kind = torch.bfloat16 if target.type == "cuda" else torch.float32
                self._model = model.eval().to(target, kind)
            return self._model
