"""How a mark reads a batch of texts while they grow: each candidate's alignment u with what came before.

A `Channel` belongs to one session. `TokenChannel` reads the host's tokens: with composed contexts a step is
one gather of k token vectors, one d_C x d_C product, one gather of m rows and one dot product, all on the
logits' device; on CUDA the bias goes through `dewmark.dew.hot`. `dewmark.dew.word_channel` reads words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch

from dewmark.dew.folded import scale_contexts_torch
from dewmark.dew.hot import Steps
from dewmark.dew.reading import TokenReader
from dewmark.dew.window_rows import Window, window_rows
from dewmark.embeddings.contexts import ABSENT, ComposedContexts
from dewmark.workspace import Tokenizer

if TYPE_CHECKING:
    from dewmark.dew.bound import BoundDEW

__all__ = ["Channel", "TokenChannel", "padding_of"]


class Channel(ABC):
    """Reads one batch of texts while they grow."""

    @abstractmethod
    def alignments(self, ids: torch.Tensor, candidates: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """u of the candidates (batch, m) for what follows ids (batch, length), float32.

        ``scores`` (batch, vocab) are the logits they were taken from. An exact 0 is a candidate, or a
        context, that carries no mark. Called once a step.
        """

    @abstractmethod
    def repeated(self, ids: torch.Tensor) -> torch.Tensor:
        """Whether each row's context (batch, 1) occurred earlier in that row; asked after `alignments`."""

    def ahead(self, ids: torch.Tensor) -> None:  # noqa: B027 - most have nothing to begin
        """Begin what the next `alignments` need of ids (batch, length), before the logits are there."""


def padding_of(
    tokenizer: Tokenizer, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
) -> torch.Tensor:
    """How many of each row's ids (batch, length) are padding on the left: (batch, 1)."""
    if attention_mask is None:
        pad = tokenizer.pad_id
        attention_mask = (prompt_ids != pad) if pad is not None else torch.ones_like(prompt_ids)
    if not prompt_ids.shape[1]:
        return prompt_ids.new_zeros(len(prompt_ids), 1)
    # argmax finds the first True: the length of the leading run of padding
    return attention_mask.to(torch.int8).argmax(dim=1).unsqueeze(1)


@dataclass(frozen=True)
class DeviceTables:
    """A bound scheme's tables on one device, shared by all its sessions there.

    Q (vocab, d_C) and G (d_C, d_C), float32. ``context_rows`` (vocab + 1, d_C) has one row more, for places
    where nothing stands; it and those of special tokens are zero. Without composed contexts there are none.
    """

    Q: torch.Tensor
    G: torch.Tensor
    context_rows: torch.Tensor | None

    @classmethod
    def of(cls, bound: BoundDEW, device: torch.device) -> DeviceTables:
        """The tables of a scheme that reads host tokens."""
        return bound.shared(f"tables on {device}", lambda: cls._made(bound, device))

    @classmethod
    def _made(cls, bound: BoundDEW, device: torch.device) -> DeviceTables:
        reader = bound.reader
        assert isinstance(reader, TokenReader)
        context_rows = None
        if isinstance(reader.contexts, ComposedContexts):
            rows = torch.from_numpy(np.array(reader.contexts.table))  # a copy: it may be a read-only map
            rows[[i for i in bound.host.tokenizer.special_ids if i < len(rows)]] = 0.0
            context_rows = torch.cat((rows, rows.new_zeros(1, rows.shape[1]))).to(device)
        return cls(
            Q=torch.from_numpy(bound.fold.table(reader.token_rows, source=bound.source)).to(device),
            G=torch.from_numpy(np.ascontiguousarray(bound.fold.G)).to(device),
            context_rows=context_rows,
        )


class TokenChannel(Channel):
    """Reads the host's tokens."""

    def __init__(
        self,
        bound: BoundDEW,
        reader: TokenReader,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
    ) -> None:
        self._bound = bound
        self._contexts = bound.hashed or reader.contexts
        self._tables = DeviceTables.of(bound, prompt_ids.device)
        self._k = reader.k
        self.absent = bound.host.vocab_size  # the extra, empty row of the tables
        self._no_text = frozenset(bound.host.tokenizer.special_ids) | {self.absent}
        self._padding = padding_of(bound.host.tokenizer, prompt_ids, attention_mask)
        self._padded = int(self._padding.max()) if len(prompt_ids) else 0  # waits for the device, once
        device, tables, contexts = prompt_ids.device, self._tables, self._contexts
        self._steps = bound.shared(f"steps on {device}", lambda: Steps(bound.scheme, tables, n=bound.fold.n))
        self._encoded = bound.shared(f"windows on {device}", lambda: window_rows(contexts, device))
        self._begun: tuple[int, torch.Tensor] | None = None  # a length, and the contexts at its end

    def alignments(self, ids: torch.Tensor, candidates: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """u of the candidates (batch, m)."""
        return self._aligned(self._after(ids), candidates)

    def ahead(self, ids: torch.Tensor) -> None:
        """Begin to encode the windows at the end of ids (batch, length)."""
        if self._encoded is not None:
            self._begun = (ids.shape[1], self._encoded.begin(self._listed(self._windows(ids))))

    def of_windows(self, windows: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """u of the candidates (batch, m) after windows (batch, k) of ids; `absent` stands where none is."""
        return self._aligned(self._contexts_of(windows), candidates)

    def _aligned(self, contexts: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        scaled = scale_contexts_torch(contexts, self._tables.G, self._bound.fold.n)
        return (torch.nn.functional.embedding(candidates, self._tables.Q) @ scaled.unsqueeze(-1)).squeeze(-1)

    def biased(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with the bias added, where `can_fuse` says so."""
        composed = self._tables.context_rows is not None
        return self._steps(self._windows(ids) if composed else self._after(ids), scores)

    def biased_after(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The same after windows (batch, k) of ids."""
        composed = self._tables.context_rows is not None
        return self._steps(windows if composed else self._contexts_of(windows), scores)

    def repeated(self, ids: torch.Tensor) -> torch.Tensor:
        """Whether each row's window occurred earlier in that row, (batch, 1)."""
        if ids.shape[1] <= self._k:
            return torch.zeros((len(ids), 1), dtype=torch.bool, device=ids.device)
        windows = ids.unfold(1, self._k, 1)
        return (windows[:, :-1] == windows[:, -1:]).all(dim=-1).any(dim=-1, keepdim=True)

    def _windows(self, ids: torch.Tensor) -> torch.Tensor:
        """The last k ids of each row (batch, k); padding becomes the empty row."""
        k, length = self._k, ids.shape[1]
        if length >= self._padded + k:  # no padding is in sight
            return ids[:, -k:]
        if length < k:
            ids = torch.nn.functional.pad(ids, (k - length, 0), value=self.absent)
        first = torch.arange(length - k, length, device=ids.device).unsqueeze(0)
        return ids[:, -k:].masked_fill(first < self._padding, self.absent)

    def _listed(self, windows: torch.Tensor) -> list[Window]:
        """Windows (batch, k) on the CPU, without special tokens, which stand for no text."""
        columns, none = windows.t().tolist(), self._no_text
        if not none.isdisjoint(chain.from_iterable(columns)):
            columns = [[ABSENT if i in none else i for i in column] for column in columns]
        return list(zip(*columns, strict=True))

    def _after(self, ids: torch.Tensor) -> torch.Tensor:
        """e_C (batch, d_C) of what follows ids (batch, length): begun ahead, or computed now."""
        if self._encoded is not None and self._begun is not None and self._begun[0] == ids.shape[1]:
            return self._encoded.ready(self._begun[1])
        return self._contexts_of(self._windows(ids))

    def _contexts_of(self, windows: torch.Tensor) -> torch.Tensor:
        """e_C (batch, d_C) of windows (batch, k), float32, of any length."""
        if self._tables.context_rows is not None:
            return self._tables.context_rows[windows].float().sum(dim=1)
        listed = self._listed(windows)
        if self._encoded is not None:
            return self._encoded.ready(self._encoded.begin(listed))
        assert self._contexts is not None
        vectors = self._contexts.vectors(np.array(listed, dtype=np.int64).reshape(windows.shape))
        return torch.from_numpy(vectors).to(windows.device)
