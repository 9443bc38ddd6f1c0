"""A keyed order of the vocabulary without a sort, and the reweightings that cut it.

After a context each token falls into one of 4,096 slots by its keyed word; the slots in their order stand
for a random permutation of the vocabulary, in which the tokens of one slot stay together. Let m_s be the
probability of slot s, F_s that of all slots up to it, and the share of s beyond a cut c

    b_s(c) = clip((F_s − c) / m_s, 0, 1).

A reweighting multiplies the tokens of slot s by a factor f_s, with Σ m_s f_s = 1:

    DiP   f_s = b_s(α) + b_s(1 − α)
    γ     DiP with α = 1/2: the upper half of the order, doubled
    δ     f_s = 1 / m_s for the slot that holds a keyed uniform number, else 0

All leave E_key[f] = 1 for every token. DiP: the reversed order is as likely, in it b_s(c) becomes
1 − b_s(1 − c), and the two factors of s add up to 2. δ: slot s is the one with probability m_s. A true
permutation is the case of infinitely many slots; with finitely many, tokens that share the slot at the cut
share its factor, which costs some of the mark and none of the exactness.

Boundary: torch functions of probabilities (batch, m) and words (batch, m); no scheme.

What schemes that reweight the next-token distribution share on the scoring side.

Such a scheme turns the host's final distribution P after a context into a keyed Q with E_key[Q] = P. That
holds for one step. A context that comes back brings the same key material back, so the text as a whole keeps
the host's distribution only if a context is marked once per text: ``repeats="skip"`` leaves later occurrences
to the host's own sampling, and scoring then counts first occurrences alone. ``repeats="keep"`` marks every
occurrence (a stronger mark, texts that tend to loop), and scoring counts each distinct pair once.

Boundary: numpy only; `_reweight_session` marks.

Marking by reweighting: contexts seen before in a text, and the tokens that can be chosen at all.

Boundary: what is common to these schemes' sessions; a scheme gives `reweight`. All of them see the host's
final distribution, so top-k and top-p have often left few tokens, and only those are hashed.

Marking by slots (DiPmark, UnbiasedWM): logits plus the logarithm of each token's factor.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch

from dewmark.arrays import F64
from dewmark.baselines.token_schemes import TokenBound, TokenScheme, TokenSession
from dewmark.text.windows import windows_of
from dewmark.workspace import HostInfo, Tokenized

__all__ = [
    "SLOTS",
    "Repeats",
    "ReweightBound",
    "ReweightSession",
    "SlotSession",
    "delta_factors",
    "dip_factors",
    "slot_masses",
    "slots_of",
    "support",
]

_BITS = 12

SLOTS = 1 << _BITS

_TINY = 1e-300


def slots_of(words: torch.Tensor) -> torch.Tensor:
    """Words (int32) to slots (int64), the most significant bits."""
    return (words >> (32 - _BITS)).bitwise_and_(SLOTS - 1).to(torch.int64)


def slot_masses(probabilities: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """The probability of each slot, (batch, SLOTS) float64, from tokens' (batch, m)."""
    zeros = probabilities.new_zeros((len(probabilities), SLOTS))
    masses = zeros.scatter_add_(1, slots, probabilities).double()
    return masses / masses.sum(dim=1, keepdim=True)


def dip_factors(masses: torch.Tensor, alpha: float) -> torch.Tensor:
    """The factors (batch, SLOTS) of the DiP reweighting."""
    upto, wide = masses.cumsum(dim=1), masses.clamp(min=_TINY)
    beyond = [((upto - cut) / wide).clamp_(0.0, 1.0) for cut in (alpha, 1.0 - alpha)]
    return beyond[0] + beyond[1]


def delta_factors(masses: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The factors (batch, SLOTS) of the δ reweighting, uniforms (batch, 1) being keyed by the context."""
    chosen = (masses.cumsum(dim=1) <= uniforms).sum(dim=1, keepdim=True)  # the first slot beyond
    return torch.zeros_like(masses).scatter_(1, chosen, 1.0 / masses.gather(1, chosen))


Repeats = Literal["skip", "keep"]


class ReweightBound(TokenBound):
    """A reweighting scheme with its secret and a vocabulary."""

    def __init__(
        self,
        scheme: TokenScheme,
        host: HostInfo,
        fingerprint: str,
        *,
        secret: bytes,
        prefix: int,
        repeats: Repeats,
    ) -> None:
        super().__init__(scheme, host, fingerprint, secret=secret)
        self.width = prefix
        self.repeats = repeats

    def position_weights(
        self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]
    ) -> Iterator[F64 | None]:
        """0 where a context was marked no more because it had occurred in the text before."""
        for text, prompt in zip(texts, prompts, strict=True):
            yield None if self.repeats == "keep" else self.first_contexts(text, prompt)

    def first_contexts(self, text: Tokenized, prompt: Tokenized) -> F64:
        """1 where a token's context occurs for the first time in the text, else 0: (L,)."""
        before = prompt.ids[-self.width :]
        windows = windows_of(before + text.ids, k=self.width, host=self.host)[len(before) :]
        first = np.zeros(len(text.ids))
        first[np.unique(windows, axis=0, return_index=True)[1]] = 1.0
        return first


_MINUS_INF = -float("inf")

_STRIDE = 64

_FEW = 8  # a support below one eighth of the vocabulary is worth picking out


class ReweightSession(TokenSession):
    """Reweights rows whose context is new and leaves the others' logits as they are.

    ``memory`` is the number of steps for which a context counts as seen; None means the whole text.
    """

    def __init__(
        self,
        bound: ReweightBound,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        memory: int | None = None,
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._hash = bound.vocabulary
        self._skip = bound.repeats == "skip"
        self._memory = memory
        self._last_seen: list[dict[tuple[int, ...], int]] = [{} for _ in range(len(prompt_ids))]
        self._step = 0

    @abstractmethod
    def reweight(
        self, contexts: torch.Tensor, logits: torch.Tensor, candidates: torch.Tensor | None
    ) -> torch.Tensor:
        """Contexts (batch, h) and float32 logits (batch, m) of the candidates to new logits, same shape.

        ``candidates`` (batch, m) are token ids; None means the whole vocabulary.
        """

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Windows (batch, h) and logits (batch, vocab) to marked logits, same shape."""
        logits = scores.float()
        if scores.device.type == "mps":  # Metal knows no float64
            windows, logits = windows.cpu(), logits.cpu()
        candidates = support(logits)
        if candidates is None:
            marked = self.reweight(windows, logits, None)
        else:
            few = self.reweight(windows, logits.gather(1, candidates), candidates)
            marked = torch.full_like(logits, _MINUS_INF).scatter_(1, candidates, few)
        marked = marked.to(scores)
        repeated = self._repeated(windows) if self._skip else []
        if any(repeated):
            marked = torch.where(torch.tensor(repeated, device=scores.device).unsqueeze(1), scores, marked)
        return marked

    def _repeated(self, windows: torch.Tensor) -> list[bool]:
        """For each row whether its context was seen before; remembers it."""
        self._step += 1
        repeated = []
        for seen, window in zip(self._last_seen, windows.tolist(), strict=True):
            last = seen.get(context := tuple(window))
            repeated.append(last is not None and (self._memory is None or self._step - last <= self._memory))
            seen[context] = self._step
        return repeated


def support(scores: torch.Tensor) -> torch.Tensor | None:
    """Ids (batch, m) that include all tokens which have a chance, where these are few; else None."""
    vocab = scores.shape[1]
    # a look at some tokens tells a full distribution from one that was cut
    if vocab < _STRIDE or float(torch.isfinite(scores[:, ::_STRIDE]).float().mean()) > 1.0 / _FEW:
        return None
    width = int(torch.isfinite(scores).sum(dim=1).max())
    return scores.topk(width, dim=1).indices if 0 < width <= vocab // _FEW else None


Factors = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class SlotSession(ReweightSession):
    """A step is one pass to hash, one to add up the slots and one to look up their factors.

    ``factors`` makes the slots' factors (batch, SLOTS) of their masses, same shape, and contexts (batch, h).
    """

    def __init__(
        self,
        bound: ReweightBound,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        factors: Factors,
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._factors = factors

    def reweight(
        self, contexts: torch.Tensor, logits: torch.Tensor, candidates: torch.Tensor | None
    ) -> torch.Tensor:
        """Logits (batch, m) of the reweighted distribution."""
        slots = slots_of(self._hash.words(contexts, candidates))
        factors = self._factors(slot_masses(logits.softmax(dim=1), slots), contexts)
        return logits + factors.log().float().gather(1, slots)
