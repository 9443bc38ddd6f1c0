"""An encoder on a CUDA device as CUDA graphs: a batch of short texts is one launch, on a stream of its own.

Run eagerly, an encoder of twelve layers costs the CPU a few hundred launches, a third of what a language
model costs it for a token. Captured once for each shape it costs one, and the device computes it beside the
language model. Shapes are few: rows are padded to a power of two, tokens to a multiple of eight.
Boundary: texts in, rows on the device out; nothing waits for the device. Whoever encodes holds the encoder's
lock, is on its stream, and copies what it gives before the next call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from dewmark.cuda.short_bert import short_bert
from dewmark.text.windows import (
    WindowTokenizer,
    fast_word_tokenizer,
    ids_and_mask,
    pad_rows,
    window_texts,
    window_tokenizer,
)
from dewmark.workspace import Tokenizer

__all__ = ["Cut", "Graphable", "GraphedEncoder", "SentenceTransformerParts"]

Cut = Callable[[Sequence[Any]], torch.Tensor]
"""N texts, or N windows of a host's ids, to ids (N, T), int32 on the CPU, -1 where none is."""

_MULTIPLE = 8
_MOST_ROWS = 256


class Graphable(Protocol):
    """An encoder in two parts: what the CPU does with texts, and what the device does with ids.

    The id ``fill`` stands where a row has ended.
    """

    device: torch.device
    fill: int

    def tokenize(self, texts: Sequence[str], *, multiple: int) -> torch.Tensor:
        """Ids (N, T) of N texts, int32 on the CPU, -1 where none is; T is a multiple of ``multiple``."""

    def of_windows(self, tokenizer: Tokenizer) -> WindowTokenizer | None:
        """The rows of windows of a host's ids, -1 where none is, if there is a faster way than by texts."""

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Ids and mask (N, T), int64 on the device, to rows (N, dim) on it, without a look at the values."""


class SentenceTransformerParts:
    """A sentence-transformers model as a `Graphable`; ``prefix`` goes before each text."""

    def __init__(self, model: Any, *, prefix: str = "") -> None:  # noqa: ANN401 - a SentenceTransformer
        self._model = model
        self._prefix = prefix
        self.device: torch.device = model.device
        self._words = fast_word_tokenizer(model.tokenizer, model.max_seq_length)
        self.fill: int = model.tokenizer.pad_token_id or 0
        first, *self._after = list(model)
        self._short = short_bert(getattr(first, "auto_model", None)) if self._after else None

    def tokenize(self, texts: Sequence[str], *, multiple: int) -> torch.Tensor:
        """Ids (N, T), each text cut at the model's own maximal length."""
        if self._prefix:
            texts = [self._prefix + text for text in texts]
        if self._words is not None:
            return pad_rows(self._words.rows(texts), multiple=multiple)
        cut = self._model.tokenizer(
            list(texts),
            truncation=True,
            max_length=self._model.max_seq_length,
            padding=True,
            pad_to_multiple_of=multiple,
            return_tensors="pt",
        )
        ids: torch.Tensor = cut["input_ids"].int().masked_fill_(cut["attention_mask"] == 0, -1)
        return ids

    def of_windows(self, tokenizer: Tokenizer) -> WindowTokenizer | None:
        """The rows of windows of a host's ids, whose tokens are cut beforehand."""
        return None if self._words is None else window_tokenizer(self._words, tokenizer, prefix=self._prefix)

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
        self.given = torch.ones(rows, tokens, dtype=torch.int32, device=model.device)
        stream.wait_stream(torch.cuda.current_stream(model.device))
        with torch.cuda.stream(stream):
            for _ in range(3):  # what is allocated or chosen at a first call must not be captured
                model(*ids_and_mask(self.given, fill=model.fill))
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, stream=stream):
            self.rows = model(*ids_and_mask(self.given, fill=model.fill)).float()


class GraphedEncoder:
    """A `Graphable` on a CUDA device; hold ``lock`` and be on ``stream`` to encode."""

    def __init__(self, model: Graphable) -> None:
        self._model = model
        self._shapes: dict[tuple[int, int], _Shape] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._cuts: dict[str, Cut] = {}
        self.lock = threading.Lock()
        self.stream: torch.cuda.Stream = torch.cuda.Stream(model.device)  # type: ignore[no-untyped-call]

    def of_windows(self, tokenizer: Tokenizer) -> Cut:
        """How `encode` cuts windows of a host's ids."""
        with self.lock:
            if tokenizer.identity not in self._cuts:
                self._cuts[tokenizer.identity] = self._cut_of(tokenizer)
            return self._cuts[tokenizer.identity]

    def _cut_of(self, tokenizer: Tokenizer) -> Cut:
        rows = self._model.of_windows(tokenizer)
        if rows is None:
            return lambda windows: self._of_texts(window_texts(tokenizer, windows))
        return lambda windows: pad_rows(rows(windows), multiple=_MULTIPLE)

    def encode(self, given: Sequence[Any], cut: Cut | None = None) -> torch.Tensor:
        """N texts, or what ``cut`` takes, to (N, dim), float32 on the device, computed on `stream`.

        The next call overwrites them.
        """
        cut = cut or self._of_texts
        if len(given) <= _MOST_ROWS:
            return self._encode(cut(given))
        parts = (given[i : i + _MOST_ROWS] for i in range(0, len(given), _MOST_ROWS))
        return torch.cat([self._encode(cut(part)).clone() for part in parts])

    def _of_texts(self, texts: Sequence[str]) -> torch.Tensor:
        return self._model.tokenize(texts, multiple=_MULTIPLE)

    def _encode(self, ids: torch.Tensor) -> torch.Tensor:
        rows, tokens = ids.shape
        at = 1 << (rows - 1).bit_length(), tokens
        shape = self._shapes.get(at)
        if shape is None:
            shape = self._shapes[at] = _Shape(self._model, *at, stream=self.stream, pool=self._pool)
        # the driver has taken up memory that is not pinned when it returns, and the device copies it later
        given, found = (shape.given, shape.rows) if rows == at[0] else (shape.given[:rows], shape.rows[:rows])
        given.copy_(ids, non_blocking=True)
        shape.graph.replay()
        return found
