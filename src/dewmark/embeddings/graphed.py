"""An encoder on a CUDA device as CUDA graphs: a batch of short texts is one launch, on a stream of its own.

Run eagerly, an encoder of twelve layers costs the CPU a few hundred launches, a third of what a language
model costs it for a token. Captured once for each shape it costs one, and the device computes it beside the
language model. Shapes are few: rows are padded to a power of two, tokens to a multiple of eight.
Boundary: texts in, rows on the device out; nothing waits for the device.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch

from dewmark.embeddings.cutting import cutter_of
from dewmark.embeddings.short_bert import short_bert

__all__ = ["Graphable", "GraphedEncoder", "SentenceTransformerParts", "padded"]

_MULTIPLE = 8
_MOST_ROWS = 256


class Graphable(Protocol):
    """An encoder in two parts: what the CPU does with texts, and what the device does with ids."""

    device: torch.device

    def tokenize(self, texts: Sequence[str], *, multiple: int) -> torch.Tensor:
        """Ids and mask (2, N, T) of N texts, int64 on the CPU; T is a multiple of ``multiple``."""

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Ids and mask (N, T) on the device to rows (N, dim) on it, without a look at the values."""


class SentenceTransformerParts:
    """A sentence-transformers model as a `Graphable`; ``prefix`` goes before each text."""

    def __init__(self, model: Any, *, prefix: str = "") -> None:  # noqa: ANN401 - a SentenceTransformer
        self._model = model
        self._prefix = prefix
        self.device: torch.device = model.device
        self._cutter = cutter_of(model.tokenizer, model.max_seq_length)
        first, *self._after = list(model)
        self._short = short_bert(getattr(first, "auto_model", None)) if self._after else None

    def tokenize(self, texts: Sequence[str], *, multiple: int) -> torch.Tensor:
        """Ids and mask (2, N, T), each text cut at the model's own maximal length."""
        texts, tokenizer = [self._prefix + text for text in texts], self._model.tokenizer
        if self._cutter is not None:
            return padded(self._cutter.rows(texts), multiple=multiple, fill=tokenizer.pad_token_id)
        cut = tokenizer(
            texts,
            truncation=True,
            max_length=self._model.max_seq_length,
            padding=True,
            pad_to_multiple_of=multiple,
            return_tensors="pt",
        )
        return torch.stack((cut["input_ids"], cut["attention_mask"]))

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Ids and mask (N, T) to rows (N, dim), in the model's precision."""
        features: Any = {"input_ids": ids, "attention_mask": mask}
        modules = self._model
        if self._short is not None and ids.shape[1] <= self._short.longest:
            features["token_embeddings"], modules = self._short(ids, mask), self._after
        for module in modules:
            features = module(features)
        found: torch.Tensor = features["sentence_embedding"]
        return found


def padded(rows: Sequence[Sequence[int]], *, multiple: int = 1, fill: int = 0) -> torch.Tensor:
    """Rows of ids as ids and mask (2, N, T), ``fill`` where none is; T is a multiple of ``multiple``."""
    lengths = np.array(list(map(len, rows)))
    tokens = -(-int(lengths.max()) // multiple) * multiple
    given = np.full((2, len(rows), tokens), fill, dtype=np.int64)
    there = np.arange(tokens) < lengths[:, None]
    given[0][there] = list(chain.from_iterable(rows))
    given[1] = there
    return torch.from_numpy(given)


class _Shape:
    """The graph of one shape (rows, tokens), and the buffers that it reads and writes.

    All graphs work in one ``pool`` of memory: they run one after another on one stream, and what a graph
    gives is copied before the next one runs.
    """

    def __init__(
        self,
        model: Graphable,
        rows: int,
        tokens: int,
        *,
        stream: torch.cuda.Stream,
        pool: Any,  # noqa: ANN401 - torch does not name the type for others
    ) -> None:
        self.given = torch.ones(2, rows, tokens, dtype=torch.long, device=model.device)  # ids and mask
        stream.wait_stream(torch.cuda.current_stream(model.device))
        with torch.cuda.stream(stream):
            for _ in range(3):  # what is allocated or chosen at a first call must not be captured
                model(*self.given)
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, stream=stream):
            self.rows = model(*self.given).float()


class GraphedEncoder:
    """A `Graphable` on a CUDA device."""

    def __init__(self, model: Graphable) -> None:
        self._model = model
        self._shapes: dict[tuple[int, int], _Shape] = {}
        self._lock = threading.Lock()
        self._pool = torch.cuda.graph_pool_handle()
        self.stream: torch.cuda.Stream = torch.cuda.Stream(model.device)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        """N texts to (N, dim), float32 on the device, computed on `stream`: wait for it before reading."""
        with self._lock:  # the buffers of a shape are filled and read by one thread at a time
            found = [self._encode(texts[i : i + _MOST_ROWS]) for i in range(0, len(texts), _MOST_ROWS)]
        with torch.cuda.stream(self.stream):
            return torch.cat(found) if len(found) > 1 else found[0]

    def _encode(self, texts: Sequence[str]) -> torch.Tensor:
        given = self._model.tokenize(texts, multiple=_MULTIPLE)
        at = 1 << (len(texts) - 1).bit_length(), given.shape[2]
        if at not in self._shapes:
            self._shapes[at] = _Shape(self._model, *at, stream=self.stream, pool=self._pool)
        shape = self._shapes[at]
        with torch.cuda.stream(self.stream):
            shape.given[:, : len(texts)].copy_(given.pin_memory(), non_blocking=True)
            shape.graph.replay()
            return shape.rows[: len(texts)].clone()
