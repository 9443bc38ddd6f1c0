"""An encoder on a CUDA device as CUDA graphs: a batch of short texts is one launch, on a stream of its own.

Run eagerly, an encoder of twelve layers costs the CPU a few hundred launches, a third of what a language
model costs it for a token. Captured once for each shape it costs one, and the device computes it beside the
language model. Shapes are few: rows are padded to a power of two, tokens to a multiple of eight.
Boundary: texts in, rows on the device out; nothing waits for the device. Whoever encodes holds the encoder's
lock, is on its stream, and copies what it gives before the next call.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from dewmark.embeddings.cutting import cutter_of
from dewmark.embeddings.packing import ids_and_mask, padded
from dewmark.embeddings.short_bert import short_bert
from dewmark.workspace import Tokenizer

__all__ = ["Graphable", "GraphedEncoder", "SentenceTransformerParts"]

_MULTIPLE = 8
_MOST_ROWS = 256
_TOKENS = 1 << 16  # of a host, learned beforehand: the frequent ones come first; a second or so


class Graphable(Protocol):
    """An encoder in two parts: what the CPU does with texts, and what the device does with ids."""

    device: torch.device

    def learn(self, texts: Sequence[str]) -> None:
        """Hear of short texts of whose words many will be made."""

    def tokenize(self, texts: Sequence[str], *, multiple: int) -> torch.Tensor:
        """Ids and mask (N, 2, T) of N texts, int32 on the CPU; T is a multiple of ``multiple``."""

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Ids and mask (N, T), int64 on the device, to rows (N, dim) on it, without a look at the values."""


class SentenceTransformerParts:
    """A sentence-transformers model as a `Graphable`; ``prefix`` goes before each text."""

    def __init__(self, model: Any, *, prefix: str = "") -> None:  # noqa: ANN401 - a SentenceTransformer
        self._model = model
        self._prefix = prefix
        self.device: torch.device = model.device
        self._cutter = cutter_of(model.tokenizer, model.max_seq_length)
        self._fill: int = model.tokenizer.pad_token_id or 0  # looked up, it takes as long as a padded batch
        first, *self._after = list(model)
        self._short = short_bert(getattr(first, "auto_model", None)) if self._after else None

    def learn(self, texts: Sequence[str]) -> None:
        """Cut the words of texts beforehand."""
        if self._cutter is not None:
            self._cutter.learn(texts)

    def tokenize(self, texts: Sequence[str], *, multiple: int) -> torch.Tensor:
        """Ids and mask (N, 2, T), each text cut at the model's own maximal length."""
        if self._prefix:
            texts = [self._prefix + text for text in texts]
        if self._cutter is not None:
            return padded(self._cutter.rows(texts), multiple=multiple, fill=self._fill)
        cut = self._model.tokenizer(
            list(texts),
            truncation=True,
            max_length=self._model.max_seq_length,
            padding=True,
            pad_to_multiple_of=multiple,
            return_tensors="pt",
        )
        return torch.stack((cut["input_ids"], cut["attention_mask"]), dim=1).int()

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


class _Shape:
    """The graph of one shape (rows, tokens), and the buffers that it reads and writes.

    All graphs work in one ``pool`` of memory: they run one after another on one stream, and what a graph
    gives is copied before the next one runs. The buffers can be written in any mode.
    """

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(
        self,
        model: Graphable,
        rows: int,
        tokens: int,
        *,
        stream: torch.cuda.Stream,
        pool: Any,  # noqa: ANN401 - torch does not name the type for others
    ) -> None:
        self.given = torch.ones(rows, 2, tokens, dtype=torch.int32, device=model.device)  # ids and mask
        stream.wait_stream(torch.cuda.current_stream(model.device))
        with torch.cuda.stream(stream):
            for _ in range(3):  # what is allocated or chosen at a first call must not be captured
                model(*ids_and_mask(self.given))
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, stream=stream):
            self.rows = model(*ids_and_mask(self.given)).float()


class GraphedEncoder:
    """A `Graphable` on a CUDA device; hold ``lock`` and be on ``stream`` to encode."""

    def __init__(self, model: Graphable) -> None:
        self._model = model
        self._shapes: dict[tuple[int, int], _Shape] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._learned: set[str] = set()
        self.lock = threading.Lock()
        self.stream: torch.cuda.Stream = torch.cuda.Stream(model.device)  # type: ignore[no-untyped-call]

    def learn(self, tokenizer: Tokenizer) -> None:
        """Hear of a host's tokens: texts will be made of them."""
        with self.lock:
            if tokenizer.identity not in self._learned:
                self._model.learn(tokenizer.decode([[i] for i in range(min(tokenizer.size, _TOKENS))]))
                self._learned.add(tokenizer.identity)

    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        """N texts to (N, dim), float32 on the device, computed on `stream`; the next call overwrites them."""
        if len(texts) <= _MOST_ROWS:
            return self._encode(texts)
        parts = (texts[i : i + _MOST_ROWS] for i in range(0, len(texts), _MOST_ROWS))
        return torch.cat([self._encode(part).clone() for part in parts])

    def _encode(self, texts: Sequence[str]) -> torch.Tensor:
        given = self._model.tokenize(texts, multiple=_MULTIPLE)
        at = 1 << (len(texts) - 1).bit_length(), given.shape[2]
        shape = self._shapes.get(at)
        if shape is None:
            shape = self._shapes[at] = _Shape(self._model, *at, stream=self.stream, pool=self._pool)
        # the driver has taken up memory that is not pinned when it returns, and the device copies it later
        shape.given[: len(texts)].copy_(given, non_blocking=True)
        shape.graph.replay()
        return shape.rows[: len(texts)]
