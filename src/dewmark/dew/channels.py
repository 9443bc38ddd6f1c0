"""How a mark reads a batch of texts while they grow: each candidate's alignment u with what came before.

A `Channel` belongs to one session. `TokenChannel` reads the host's tokens: with composed contexts a step is
one gather of k token vectors, one d_C x d_C product, one gather of m rows and one dot product, all on the
logits' device. `dewmark.dew.word_channel` reads words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import torch

from dewmark.dew.folded import scale_contexts_torch
from dewmark.dew.reading import TokenReader
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


class DeviceTables:
    """A bound scheme's tables on one device, shared by all its sessions there."""

    def __init__(self, bound: BoundDEW, reader: TokenReader, device: torch.device) -> None:
        self.Q = torch.from_numpy(bound.fold.table(reader.token_rows, source=bound.source)).to(device)
        self.G = torch.from_numpy(np.ascontiguousarray(bound.fold.G)).to(device)
        special = torch.zeros(bound.host.vocab_size + 1, dtype=torch.bool)
        special[[i for i in bound.host.tokenizer.special_ids if i < bound.host.vocab_size]] = True
        special[-1] = True
        self.special = special.to(device)
        self.context_rows = None
        if isinstance(reader.contexts, ComposedContexts):
            rows = torch.from_numpy(np.array(reader.contexts.table))  # a copy: it may be a read-only map
            self.context_rows = torch.cat((rows, rows.new_zeros(1, rows.shape[1]))).to(device)


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
        self._tables = bound.shared(
            f"tables on {prompt_ids.device}", lambda: DeviceTables(bound, reader, prompt_ids.device)
        )
        self._k = reader.k
        self._absent = bound.host.vocab_size  # the extra, empty row of the tables
        self._padding = padding_of(bound.host.tokenizer, prompt_ids, attention_mask)

    def alignments(self, ids: torch.Tensor, candidates: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """u of the candidates (batch, m)."""
        contexts = self._context_rows(self._windows(ids))
        scaled = scale_contexts_torch(contexts, self._tables.G, self._bound.fold.n)
        return (self._tables.Q[candidates] @ scaled.unsqueeze(-1)).squeeze(-1)

    def repeated(self, ids: torch.Tensor) -> torch.Tensor:
        """Whether each row's window occurred earlier in that row, (batch, 1)."""
        if ids.shape[1] <= self._k:
            return torch.zeros((len(ids), 1), dtype=torch.bool, device=ids.device)
        windows = ids.unfold(1, self._k, 1)
        return (windows[:, :-1] == windows[:, -1:]).all(dim=-1).any(dim=-1, keepdim=True)

    def _windows(self, ids: torch.Tensor) -> torch.Tensor:
        """The last k ids of each row (batch, k); padding and special tokens become the empty row."""
        k, length = self._k, ids.shape[1]
        if length < k:
            ids = torch.nn.functional.pad(ids, (k - length, 0), value=self._absent)
        first = torch.arange(length - k, length, device=ids.device).unsqueeze(0)
        window = ids[:, -k:]
        window = window.masked_fill(first < self._padding, self._absent)
        return window.masked_fill(self._tables.special[window], self._absent)

    def _context_rows(self, windows: torch.Tensor) -> torch.Tensor:
        """ê_C (batch, d_C), float32."""
        if self._tables.context_rows is not None:
            total = self._tables.context_rows[windows].float().sum(dim=1)
            return torch.nn.functional.normalize(total, dim=-1, eps=1e-12)
        assert self._contexts is not None
        ids = windows.cpu().numpy().astype(np.int64)
        vectors = self._contexts.vectors(np.where(ids == self._absent, ABSENT, ids))
        return torch.from_numpy(vectors).to(windows.device)
