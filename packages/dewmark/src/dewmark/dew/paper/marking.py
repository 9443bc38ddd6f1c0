"""Algorithm 1 of the paper: a bias of λ tanh(γu) on the logits of the likeliest tokens.

With composed contexts a step is one gather of k token vectors, one d_C x d_C product, one gather of m rows
and one dot product, all on the logits' device. Contexts of other kinds are computed on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from dewmark.dew.paper.projection import Fold, scale_contexts
from dewmark.dew.paper.reading import TokenReader
from dewmark.encoders.contexts import Contexts
from dewmark.mark import Session
from dewmark.sampling import check_logits, left_padding, likeliest
from dewmark.text.windows import ABSENT

__all__ = ["Bias", "BiasSession"]

Alignments = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From ids (batch, length) of texts and candidates (batch, m) to u (batch, m) of the candidates."""


@dataclass(frozen=True)
class Bias:
    """λ and γ; the ``m`` likeliest tokens get the bias."""

    strength: float
    gamma: float
    m: int

    def __call__(
        self, scores: torch.Tensor, alignments: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Logits (batch, vocab) plus the bias; ``alignments`` gives u of candidates (batch, m)."""
        values, candidates = likeliest(scores, self.m)
        bias = self.strength * torch.tanh(self.gamma * alignments(candidates))
        bias = bias.masked_fill(values == -math.inf, 0.0)  # ids of value -inf may be listed twice
        return scores.scatter_add(1, candidates, bias.to(scores.dtype))


class BiasSession(Session):
    """Adds a bias to the logits of a batch."""

    def __init__(self, bias: Bias, alignments: Alignments, *, vocab_size: int) -> None:
        self._bias, self._alignments, self._vocab_size = bias, alignments, vocab_size

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) to marked logits, same shape."""
        check_logits(scores, self._vocab_size)
        ids = input_ids.to(scores.device)
        return self._bias(scores, lambda candidates: self._alignments(ids, candidates))


class TokenAligner:
    """Scores the host's tokens under one key, on one device."""

    def __init__(
        self,
        reader: TokenReader,
        fold: Fold,
        contexts: Contexts,
        device: torch.device,
        *,
        source: np.ndarray | None = None,
    ) -> None:
        special = reader.host.tokenizer.special_ids
        self.k = reader.k
        self.absent = reader.host.vocab_size  # the id of the extra, empty context row
        self._pad_id = reader.host.tokenizer.pad_id
        self._no_text = [*special, self.absent]
        self._contexts = contexts
        self._n = fold.n
        self._Q = torch.from_numpy(fold.table(reader.token_rows, source=source)).to(device)
        self._G = torch.from_numpy(np.ascontiguousarray(fold.G)).to(device)
        self._context_rows = None
        if contexts.table is not None:
            rows = torch.from_numpy(np.array(contexts.table))  # a copy: the table may be a read-only map
            rows[[i for i in special if i < len(rows)]] = 0.0
            self._context_rows = torch.cat((rows, rows.new_zeros(1, rows.shape[1]))).to(device)

    def follow(self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> Alignments:
        """The alignments of texts that begin with prompts (batch, length)."""
        padding = left_padding(prompt_ids, attention_mask, pad_id=self._pad_id)
        most = int(padding.max()) if len(prompt_ids) else 0  # waits for the device, once

        def alignments(ids: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
            k, length = self.k, ids.shape[1]
            if length < most + k:  # padding in reach becomes the empty row
                ids = torch.nn.functional.pad(ids, (max(k - length, 0), 0), value=self.absent)
                first = torch.arange(length - k, length, device=ids.device).unsqueeze(0)
                ids = ids[:, -k:].masked_fill(first < padding, self.absent)
            return self.alignments(ids[:, -k:], candidates)

        return alignments

    def alignments(self, windows: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """u of candidates (batch, m) after windows (batch, k) of ids or `absent`."""
        if self._context_rows is not None:
            contexts = self._context_rows[windows].float().sum(dim=1)
        else:
            listed = windows.cpu().numpy()
            listed = np.where(np.isin(listed, self._no_text), ABSENT, listed)
            contexts = torch.from_numpy(self._contexts.vectors(listed)).to(windows.device)
        scaled = scale_contexts(contexts, self._G, self._n)
        return (torch.nn.functional.embedding(candidates, self._Q) @ scaled.unsqueeze(-1)).squeeze(-1)
