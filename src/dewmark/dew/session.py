"""Marking (Algorithm 1, batched): one call per generation step, for all rows at once.

With composed contexts a step is one gather of k token vectors, one d_C x d_C product, the top-m of the
logits, one gather of m rows and one dot product, all on the logits' device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from dewmark.dew.folded import scale_contexts_torch
from dewmark.embeddings.contexts import ABSENT, ComposedContexts
from dewmark.errors import NumericalError, VocabularyError
from dewmark.scheme import Session

if TYPE_CHECKING:
    from dewmark.dew.bound import BoundDEW

__all__ = ["DewSession"]


class DeviceTables:
    """A bound scheme's tables on one device, shared by all its sessions there."""

    def __init__(self, bound: BoundDEW, device: torch.device) -> None:
        self.Q = torch.from_numpy(np.ascontiguousarray(bound.folded_rows)).to(device)
        self.G = torch.from_numpy(np.ascontiguousarray(bound.table.G)).to(device)
        special = torch.zeros(bound.host.vocab_size + 1, dtype=torch.bool)
        special[[i for i in bound.host.tokenizer.special_ids if i < bound.host.vocab_size]] = True
        special[-1] = True
        self.special = special.to(device)
        self.context_rows = None
        if isinstance(bound.contexts, ComposedContexts):
            rows = torch.from_numpy(
                np.array(bound.contexts.table)
            )  # a copy: the table may be a read-only map
            self.context_rows = torch.cat((rows, rows.new_zeros(1, rows.shape[1]))).to(device)

    @classmethod
    def of(cls, bound: BoundDEW, device: torch.device) -> DeviceTables:
        """The tables of ``bound`` on ``device``, made once."""
        cache: dict[torch.device, DeviceTables] = bound.__dict__.setdefault("_device_tables", {})
        if device not in cache:
            cache[device] = cls(bound, device)
        return cache[device]


class DewSession(Session):
    """Adds b = λ tanh(γu) to the candidates of each row. Keeps no state but where each row's text begins."""

    def __init__(
        self, bound: BoundDEW, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> None:
        self._bound = bound
        self._scheme = bound.scheme
        self._absent = bound.host.vocab_size  # the extra, empty row of the tables
        if attention_mask is None:
            pad = bound.host.tokenizer.pad_id
            attention_mask = (prompt_ids != pad) if pad is not None else torch.ones_like(prompt_ids)
        # argmax finds the first True: the length of the leading run of padding
        padding = (
            attention_mask.to(torch.int8).argmax(dim=1) if prompt_ids.shape[1] else prompt_ids.new_zeros(1)
        )
        self._padding = padding.unsqueeze(1)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) to marked logits, same shape."""
        if scores.shape[1] != self._bound.host.vocab_size:
            raise VocabularyError(
                f"the host gives {scores.shape[1]} logits, "
                f"the watermark was made for {self._bound.host.vocab_size}"
            )
        if scores.device.type == "cpu" and bool(torch.isnan(scores).any()):
            raise NumericalError("the host's logits hold NaN; load it in float32 or check its weights")
        tables = DeviceTables.of(self._bound, scores.device)
        contexts = self._contexts(self._windows(input_ids.to(scores.device), tables), tables)
        candidates, kept = self._candidates(scores)
        scaled = scale_contexts_torch(contexts, tables.G, self._bound.table.n)
        u = (tables.Q[candidates] @ scaled.unsqueeze(-1)).squeeze(-1)
        bias = self._scheme.lambda_ * torch.tanh(self._scheme.gamma * u)
        if kept is not None:
            bias = bias * kept
        return scores.scatter_add(1, candidates, bias.to(scores.dtype))

    def _windows(self, ids: torch.Tensor, tables: DeviceTables) -> torch.Tensor:
        """The last k ids of each row (batch, k); padding and special tokens become the empty row."""
        k, length = self._scheme.k, ids.shape[1]
        if length < k:
            ids = torch.nn.functional.pad(ids, (k - length, 0), value=self._absent)
        first = torch.arange(length - k, length, device=ids.device).unsqueeze(0)
        window = ids[:, -k:]
        window = window.masked_fill(first < self._padding.to(ids.device), self._absent)
        return window.masked_fill(tables.special[window], self._absent)

    def _contexts(self, windows: torch.Tensor, tables: DeviceTables) -> torch.Tensor:
        """ê_C (batch, d_C), float32."""
        if tables.context_rows is not None:
            total = tables.context_rows[windows].float().sum(dim=1)
            return torch.nn.functional.normalize(total, dim=-1, eps=1e-12)
        ids = windows.cpu().numpy().astype(np.int64)
        vectors = self._bound.contexts.vectors(np.where(ids == self._absent, ABSENT, ids))
        return torch.from_numpy(vectors).to(windows.device)

    def _candidates(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Candidate ids (batch, m) and, for a nucleus, which of them belong to it (batch, m)."""
        if self._scheme.nucleus is None:
            return scores.topk(min(self._scheme.m, scores.shape[1]), dim=-1).indices, None
        probabilities, order = scores.float().softmax(dim=-1).sort(dim=-1, descending=True)
        before = probabilities.cumsum(dim=-1) - probabilities
        inside = before < self._scheme.nucleus
        width = int(inside.sum(dim=-1).max())
        return order[:, :width], inside[:, :width]
