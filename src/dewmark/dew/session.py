"""Marking, one call per generation step for all rows at once: Algorithm 1 (bias), or keyed Gumbel sampling.

With composed contexts a step is one gather of k token vectors, one d_C x d_C product, the top-m of the
logits, one gather of m rows and one dot product, all on the logits' device.

The Gumbel sampler takes the noise of Gumbel-max sampling partly from the key. Over keys u is standard normal,
so with fresh r ~ N(0, 1) the mixture x = √α u + √(1−α) r is too, E = −log Φ(x) is Exp(1), and the token with
the largest p_i/E_i is, averaged over keys, a draw from p. α is the share of the randomness that is keyed:
with α = 0 the text is the unmarked one of the same seed.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from dewmark.dew.folded import scale_contexts_torch
from dewmark.embeddings.contexts import ABSENT, ComposedContexts
from dewmark.errors import NumericalError, VocabularyError
from dewmark.sampling import RandomStreams, drawn_seeds, race
from dewmark.scheme import Session

if TYPE_CHECKING:
    from dewmark.dew.bound import BoundDEW

__all__ = ["BiasSession", "GumbelSession"]


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
    """What both samplers share: each row's window, its context, and the alignments of its candidates."""

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
        return self._mark(input_ids.to(scores.device), scores, DeviceTables.of(self._bound, scores.device))

    @abstractmethod
    def _mark(self, ids: torch.Tensor, scores: torch.Tensor, tables: DeviceTables) -> torch.Tensor:
        """Mark logits (batch, vocab) of the token after ids (batch, length)."""

    def _alignments(self, ids: torch.Tensor, candidates: torch.Tensor, tables: DeviceTables) -> torch.Tensor:
        """u of the candidates (batch, m), float32; 0 where token or context carries no mark."""
        contexts = self._contexts(self._windows(ids, tables), tables)
        scaled = scale_contexts_torch(contexts, tables.G, self._bound.table.n)
        return (tables.Q[candidates] @ scaled.unsqueeze(-1)).squeeze(-1)

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


class BiasSession(DewSession):
    """Adds b = λ tanh(γu) to the candidates of each row (Algorithm 1)."""

    def _mark(self, ids: torch.Tensor, scores: torch.Tensor, tables: DeviceTables) -> torch.Tensor:
        candidates, kept = self._candidates(scores)
        u = self._alignments(ids, candidates, tables)
        bias = self._scheme.lambda_ * torch.tanh(self._scheme.gamma * u)
        if kept is not None:
            bias = bias * kept
        return scores.scatter_add(1, candidates, bias.to(scores.dtype))

    def _candidates(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Candidate ids (batch, m) and, for a nucleus, which of them belong to it (batch, m)."""
        if self._scheme.nucleus is None:
            return scores.topk(min(self._scheme.candidates, scores.shape[1]), dim=-1).indices, None
        probabilities, order = scores.float().softmax(dim=-1).sort(dim=-1, descending=True)
        before = probabilities.cumsum(dim=-1) - probabilities
        inside = before < self._scheme.nucleus
        width = int(inside.sum(dim=-1).max())
        return order[:, :width], inside[:, :width]


class GumbelSession(DewSession):
    """Chooses each row's token by a race whose noise is partly the key's; leaves only it finite."""

    def __init__(
        self,
        bound: BoundDEW,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        seeds: Sequence[int] | None,
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._noise = RandomStreams(drawn_seeds(len(prompt_ids), seeds), device=prompt_ids.device)
        self._start = prompt_ids.shape[1]

    def _mark(self, ids: torch.Tensor, scores: torch.Tensor, tables: DeviceTables) -> torch.Tensor:
        candidates = scores.topk(min(self._scheme.candidates, scores.shape[1]), dim=-1).indices
        u = self._alignments(ids, candidates, tables).to(self._noise.device, torch.float64)
        if self._scheme.fresh_on_repeat:
            u = u.masked_fill(self._seen_before(ids).to(u.device), 0.0)
        uniforms = self._noise.uniforms(ids.shape[1] - self._start, scores.shape[1])
        chosen = candidates.to(u.device)
        keyed = math.sqrt(self._scheme.alpha) * u + math.sqrt(1.0 - self._scheme.alpha) * torch.special.ndtri(
            uniforms.gather(1, chosen)
        )
        race_numbers = uniforms.log().neg_()
        scored = u != 0.0  # an exact 0 is a token or context without a mark: its noise stays fresh
        race_numbers.scatter_(
            1, chosen, torch.where(scored, -torch.special.log_ndtr(keyed), race_numbers.gather(1, chosen))
        )
        winner, _ = race(scores.to(race_numbers.device, torch.float64), race_numbers.clamp_min_(1e-300))
        only = torch.full_like(scores, -math.inf)
        best = scores.amax(dim=-1, keepdim=True)  # NaN and an empty row stay visible to the host
        return only.scatter(1, winner.to(scores.device).unsqueeze(1), best)

    def _seen_before(self, ids: torch.Tensor) -> torch.Tensor:
        """Whether each row's window (batch, 1) occurred earlier in that row."""
        k = self._scheme.k
        if ids.shape[1] <= k:
            return torch.zeros((len(ids), 1), dtype=torch.bool, device=ids.device)
        windows = ids.unfold(1, k, 1)
        return (windows[:, :-1] == windows[:, -1:]).all(dim=-1).any(dim=-1, keepdim=True)
