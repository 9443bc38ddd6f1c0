"""Marking, one call per generation step for all rows at once: Algorithm 1 (bias), or keyed Gumbel sampling.

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

import torch

from dewmark.dew.channels import Channel, TokenChannel
from dewmark.dew.hot import can_fuse
from dewmark.errors import NumericalError, VocabularyError
from dewmark.sampling import RandomStreams, drawn_seeds, race
from dewmark.scheme import Session

if TYPE_CHECKING:
    from dewmark.dew.scheme import DEW

__all__ = ["BiasSession", "GumbelSession"]


class DewSession(Session):
    """What both samplers share."""

    def __init__(self, scheme: DEW, channel: Channel, *, vocab_size: int) -> None:
        self._scheme = scheme
        self._channel = channel
        self._vocab_size = vocab_size

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) to marked logits, same shape."""
        if scores.shape[1] != self._vocab_size:
            raise VocabularyError(
                f"the host gives {scores.shape[1]} logits, the watermark was made for {self._vocab_size}"
            )
        if scores.device.type == "cpu" and bool(torch.isnan(scores).any()):
            raise NumericalError("the host's logits hold NaN; load it in float32 or check its weights")
        return self._mark(input_ids.to(scores.device), scores)

    def ahead(self, input_ids: torch.Tensor) -> None:
        """Begin to read the contexts at the end of input_ids (batch, length)."""
        self._channel.ahead(input_ids)

    @abstractmethod
    def _mark(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Mark logits (batch, vocab) of the token after ids (batch, length)."""


class BiasSession(DewSession):
    """Adds b = λ tanh(γu) to the candidates of each row (Algorithm 1)."""

    def _mark(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if isinstance(self._channel, TokenChannel) and can_fuse(self._scheme, scores.device):
            return self._channel.biased(ids, scores)
        candidates, kept = self._candidates(scores)
        u = self._channel.alignments(ids, candidates, scores)
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
        scheme: DEW,
        channel: Channel,
        *,
        vocab_size: int,
        prompt_ids: torch.Tensor,
        seeds: Sequence[int] | None,
    ) -> None:
        super().__init__(scheme, channel, vocab_size=vocab_size)
        self._noise = RandomStreams(drawn_seeds(len(prompt_ids), seeds), device=prompt_ids.device)
        self._start = prompt_ids.shape[1]

    def _mark(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        candidates = scores.topk(min(self._scheme.candidates, scores.shape[1]), dim=-1).indices
        u = self._channel.alignments(ids, candidates, scores).to(self._noise.device, torch.float64)
        if self._scheme.fresh_on_repeat:
            u = u.masked_fill(self._channel.repeated(ids).to(u.device), 0.0)
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
