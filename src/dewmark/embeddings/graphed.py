"""An encoder on a CUDA device as CUDA graphs: a batch of short texts is one launch, on a stream of its own.

Run eagerly, an encoder of twelve layers costs the CPU a few hundred launches, a third of what a language
model costs it for a token. Captured once for each shape it costs one, and the device computes it beside the
language model. Shapes are few: rows are padded to a power of two, tokens to a multiple of eight.
Boundary: texts in, rows on the device out; nothing waits for the device.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import torch

__all__ = ["Graphable", "GraphedEncoder", "SentenceTransformerParts"]

_MULTIPLE = 8
_MOST_ROWS = 256


class Graphable(Protocol):
    """An encoder in two parts: what the CPU does with texts, and what the device does with ids."""

    device: torch.device

    def tokenize(self, texts: Sequence[str], *, multiple: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and mask (N, T) of N texts, int64 on the CPU; T is a multiple of ``multiple``."""

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Ids and mask (N, T) on the device to rows (N, dim) on it, without a look at the values."""


class SentenceTransformerParts:
    """A sentence-transformers model as a `Graphable`; ``prefix`` goes before each text."""

    def __init__(self, model: Any, *, prefix: str = "") -> None:  # noqa: ANN401 - a SentenceTransformer
        self._model = model
        self._prefix = prefix
        self.device: torch.device = model.device
        self._cutter = _cutter(model)

    def tokenize(self, texts: Sequence[str], *, multiple: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and mask (N, T), each text cut at the model's own maximal length."""
        texts, tokenizer = [self._prefix + text for text in texts], self._model.tokenizer
        if self._cutter is not None:
            rows = [found.ids for found in self._cutter.encode_batch_fast(texts)]
            width, fill = -(-max(map(len, rows)) // multiple) * multiple, tokenizer.pad_token_id
            ids = torch.tensor([row + [fill] * (width - len(row)) for row in rows])
            return ids, torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        cut = tokenizer(
            texts,
            truncation=True,
            max_length=self._model.max_seq_length,
            padding=True,
            pad_to_multiple_of=multiple,
            return_tensors="pt",
        )
        return cut["input_ids"], cut["attention_mask"]

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Ids and mask (N, T) to rows (N, dim), in the model's precision."""
        features: Any = {"input_ids": ids, "attention_mask": mask}
        for module in self._model:
            features = module(features)
        found: torch.Tensor = features["sentence_embedding"]
        return found


def _cutter(model: Any) -> Any:  # noqa: ANN401 - a SentenceTransformer, a Tokenizer of tokenizers or None
    """A copy of the model's tokenizer that cuts long texts and pads none, if it is one of the usual kind.

    What transformers puts around it costs as much again as the tokenizer itself, and every step waits for it.
    """
    tokenizer, longest = model.tokenizer, model.max_seq_length
    usual = (
        getattr(tokenizer, "is_fast", False)
        and tokenizer.padding_side == tokenizer.truncation_side == "right"
    )
    if not usual or longest is None or tokenizer.pad_token_id is None:
        return None
    cutter = copy.deepcopy(tokenizer.backend_tokenizer)
    cutter.no_padding()
    cutter.enable_truncation(longest)
    return cutter


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
        self.ids = torch.zeros(rows, tokens, dtype=torch.long, device=model.device)
        self.mask = torch.ones(rows, tokens, dtype=torch.long, device=model.device)
        stream.wait_stream(torch.cuda.current_stream(model.device))
        with torch.cuda.stream(stream):
            for _ in range(3):  # what is allocated or chosen at a first call must not be captured
                model(self.ids, self.mask)
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, stream=stream):
            self.rows = model(self.ids, self.mask)


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
            return torch.cat(found)

    def _encode(self, texts: Sequence[str]) -> torch.Tensor:
        ids, mask = self._model.tokenize(texts, multiple=_MULTIPLE)
        at = 1 << (len(texts) - 1).bit_length(), ids.shape[1]
        if at not in self._shapes:
            self._shapes[at] = _Shape(self._model, *at, stream=self.stream, pool=self._pool)
        shape = self._shapes[at]
        with torch.cuda.stream(self.stream):
            shape.ids[: len(ids)].copy_(ids.pin_memory(), non_blocking=True)
            shape.mask[: len(ids)].copy_(mask.pin_memory(), non_blocking=True)
            shape.graph.replay()
            return shape.rows[: len(texts)].float().clone()
