"""An encoder on a CUDA device as CUDA graphs: a batch of short texts is one launch, on a stream of its own.

Run eagerly, an encoder of twelve layers costs the CPU a few hundred launches, a third of what a language
model costs it for a token. Captured once for each shape it costs one, and the device computes it beside the
language model. Shapes are few: rows are padded to a power of two, tokens to a multiple of eight.
Boundary: texts in, rows on the device out; nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["GraphedEncoder"]

_MULTIPLE = 8
_MOST_ROWS = 256


class _Shape:
    """The graph of one shape (rows, tokens), and the buffers that it reads and writes."""

    def __init__(self, model: Any, rows: int, tokens: int, stream: torch.cuda.Stream) -> None:  # noqa: ANN401
        device = model.device
        self.ids = torch.zeros(rows, tokens, dtype=torch.long, device=device)
        self.mask = torch.ones(rows, tokens, dtype=torch.long, device=device)

        def work() -> torch.Tensor:
            features: Any = {"input_ids": self.ids, "attention_mask": self.mask}
            for module in model:
                features = module(features)
            found: torch.Tensor = features["sentence_embedding"]
            return found

        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(3):  # what is allocated or chosen at a first call must not be captured
                work()
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            self.rows = work()


class GraphedEncoder:
    """A sentence-transformers model on a CUDA device; ``prefix`` goes before each text."""

    def __init__(self, model: Any, *, prefix: str = "") -> None:  # noqa: ANN401 - a SentenceTransformer
        self._model = model
        self._prefix = prefix
        self._shapes: dict[tuple[int, int], _Shape] = {}
        self.stream: torch.cuda.Stream = torch.cuda.Stream(model.device)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        """N texts to (N, dim), float32 on the device, computed on `stream`: wait for it before reading."""
        found = [self._encode(texts[i : i + _MOST_ROWS]) for i in range(0, len(texts), _MOST_ROWS)]
        with torch.cuda.stream(self.stream):
            return torch.cat(found)

    def _encode(self, texts: Sequence[str]) -> torch.Tensor:
        model = self._model
        cut = model.tokenizer(
            [self._prefix + text for text in texts],
            truncation=True,
            max_length=model.max_seq_length,
            padding=True,
            pad_to_multiple_of=_MULTIPLE,
            return_tensors="pt",
        )
        ids, mask = cut["input_ids"], cut["attention_mask"]
        rows = 1 << (len(texts) - 1).bit_length()
        shape = self._shapes.get((rows, ids.shape[1]))
        if shape is None:
            shape = self._shapes[rows, ids.shape[1]] = _Shape(model, rows, ids.shape[1], self.stream)
        with torch.cuda.stream(self.stream):
            shape.ids[: len(ids)].copy_(ids.pin_memory(), non_blocking=True)
            shape.mask[: len(ids)].copy_(mask.pin_memory(), non_blocking=True)
            shape.graph.replay()
            return shape.rows[: len(texts)].float().clone()
