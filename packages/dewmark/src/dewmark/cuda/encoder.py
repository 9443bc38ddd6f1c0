"""Encoders as CUDA graphs: a batch of short texts is one launch, on a stream of its own.

Run eagerly, an encoder with twelve layers costs the CPU a few hundred launches, a third of a language model's
for one token. Captured once per shape, it costs one launch and runs beside the language model. There are few
shapes: rows are padded to a power of two, tokens to a multiple of eight. Nothing here waits for the device.
Callers hold the encoder's lock, are on its stream, and copy its output before the next call.
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

__all__ = ["Graphable", "GraphedEncoder", "SentenceTransformerParts", "Tokenize"]

Tokenize = Callable[[Sequence[Any]], torch.Tensor]
"""Tokenizes N texts, or N windows of a host's ids, to ids (N, T), int32 on the CPU, padded with -1."""

_MULTIPLE = 8
_MOST_ROWS = 256


class Graphable(Protocol):
    """An encoder in two parts: tokenization on the CPU, and a forward pass on the device.

    ``fill`` is the padding id of the forward pass.
    """

    device: torch.device
    fill: int

    def tokenize(self, texts: Sequence[str], *, multiple: int) -> torch.Tensor:
        """Ids (N, T) of N texts, int32 on the CPU, padded with -1 to a multiple of ``multiple``."""

    def window_tokenizer(self, tokenizer: Tokenizer) -> WindowTokenizer | None:
        """A tokenizer of windows of a host's ids, if there is a faster way than through their texts."""

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Ids and mask (N, T), int64 on the device, to rows (N, dim), without reading values on the CPU."""


class SentenceTransformerParts:
    """A sentence-transformers model as a `Graphable`; each text gets the ``prefix``."""

    def __init__(self, model: Any, *, prefix: str = "") -> None:  # noqa: ANN401 - a SentenceTransformer
        self._model = model
        self._prefix = prefix
        self.device: torch.device = model.device
        self._words = fast_word_tokenizer(model.tokenizer, model.max_seq_length)
        self.fill: int = model.tokenizer.pad_token_id or 0
        first, *self._after = list(model)
        self._short = short_bert(getattr(first, "auto_model", None)) if self._after else None

    def tokenize(self, texts: Sequence[str], *, multiple: int) -> torch.Tensor:
        """Ids (N, T), each text truncated to the model's maximum length."""
        if self._prefix:
            texts = [self._prefix + text for text in texts]
        if self._words is not None:
            return pad_rows(self._words.rows(texts), multiple=multiple)
        encoded = self._model.tokenizer(
            list(texts),
            truncation=True,
            max_length=self._model.max_seq_length,
            padding=True,
            pad_to_multiple_of=multiple,
            return_tensors="pt",
        )
        ids: torch.Tensor = encoded["input_ids"].int().masked_fill_(encoded["attention_mask"] == 0, -1)
        return ids

    def window_tokenizer(self, tokenizer: Tokenizer) -> WindowTokenizer | None:
        """A tokenizer of windows that looks up the pieces of each host token."""
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


class _CapturedShape:
    """The graph of one shape (rows, tokens) with its buffers.

    All graphs share one memory ``pool``: they run one after another on one stream, and the output of each is
    copied before the next one runs.
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
        pool: Any,  # noqa: ANN401 - torch does not export the type
    ) -> None:
        self.ids = torch.ones(rows, tokens, dtype=torch.int32, device=model.device)
        stream.wait_stream(torch.cuda.current_stream(model.device))
        with torch.cuda.stream(stream):
            for _ in range(3):  # first calls allocate and choose algorithms, which cannot be captured
                model(*ids_and_mask(self.ids, fill=model.fill))
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, stream=stream):
            self.rows = model(*ids_and_mask(self.ids, fill=model.fill)).float()


class GraphedEncoder:
    """A `Graphable` in CUDA graphs; hold ``lock`` and be on ``stream`` to encode."""

    def __init__(self, model: Graphable) -> None:
        self._model = model
        self._shapes: dict[tuple[int, int], _CapturedShape] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._tokenizers: dict[str, Tokenize] = {}
        self.lock = threading.Lock()
        self.stream: torch.cuda.Stream = torch.cuda.Stream(model.device)  # type: ignore[no-untyped-call]

    def for_windows(self, tokenizer: Tokenizer) -> Tokenize:
        """The ``tokenize`` argument of `encode` for windows of a host's ids."""
        with self.lock:
            if tokenizer.identity not in self._tokenizers:
                self._tokenizers[tokenizer.identity] = self._tokenize_windows(tokenizer)
            return self._tokenizers[tokenizer.identity]

    def _tokenize_windows(self, tokenizer: Tokenizer) -> Tokenize:
        rows = self._model.window_tokenizer(tokenizer)
        if rows is None:
            return lambda windows: self._tokenize_texts(window_texts(tokenizer, windows))
        return lambda windows: pad_rows(rows(windows), multiple=_MULTIPLE)

    def encode(self, texts: Sequence[Any], tokenize: Tokenize | None = None) -> torch.Tensor:
        """N texts, or the inputs of ``tokenize``, to (N, dim), float32 on the device, computed on `stream`.

        The next call overwrites the result.
        """
        tokenize = tokenize or self._tokenize_texts
        if len(texts) <= _MOST_ROWS:
            return self._encode(tokenize(texts))
        parts = (texts[i : i + _MOST_ROWS] for i in range(0, len(texts), _MOST_ROWS))
        return torch.cat([self._encode(tokenize(part)).clone() for part in parts])

    def _tokenize_texts(self, texts: Sequence[str]) -> torch.Tensor:
        return self._model.tokenize(texts, multiple=_MULTIPLE)

    def _encode(self, ids: torch.Tensor) -> torch.Tensor:
        rows, tokens = ids.shape
        padded = 1 << (rows - 1).bit_length()
        shape = self._shapes.get((padded, tokens))
        if shape is None:
            shape = _CapturedShape(self._model, padded, tokens, stream=self.stream, pool=self._pool)
            self._shapes[padded, tokens] = shape
        # unpinned memory: the driver has read it when this returns, though the device copies it later
        shape.ids[:rows].copy_(ids, non_blocking=True)
        shape.graph.replay()
        return shape.rows[:rows]
