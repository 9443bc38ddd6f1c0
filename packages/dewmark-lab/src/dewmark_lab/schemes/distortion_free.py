"""The base for schemes that keep the host's distribution on average over keys.

Such a scheme turns the host's final distribution P after a context into a keyed Q with E_key[Q] = P. That
holds for one step. A context that recurs brings back the same key material, so the text as a whole follows
the host's distribution only if each context is marked once per text. ``repeats="skip"`` leaves later
occurrences to the host's own sampling, and detection counts first occurrences only. ``repeats="keep"`` marks
every occurrence (a stronger mark, but texts tend to loop), and detection counts each distinct pair once.

All these schemes see the final distribution. Top-k and top-p often leave few tokens, and only those are
hashed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch

from dewmark.arrays import F64
from dewmark.workspace import Texts, Tokenized
from dewmark_lab.schemes.engines.engine_scheme import RepeatedContexts, support
from dewmark_lab.schemes.token_schemes import PromptBatch, TokenBound, TokenSession

Repeats = Literal["skip", "keep"]

_MINUS_INF = -float("inf")


class DistortionFreeBound(TokenBound):
    """Such a scheme, bound; a context counts as seen for ``memory`` steps, or in the whole text."""

    repeats: Repeats = "skip"
    memory: int | None = None

    def repeated(self, rows: int) -> RepeatedContexts | None:
        """What tells which rows' contexts are not marked because they have occurred before."""
        return RepeatedContexts(rows, memory=self.memory) if self.repeats == "skip" else None

    def position_weights(self, texts: Texts, prompts: Texts) -> Iterator[F64 | None]:
        """0 where a token was not marked because its context had occurred before in the text."""
        for text, prompt in zip(texts, prompts, strict=True):
            yield None if self.repeats == "keep" else self.first_contexts(text, prompt)

    def first_contexts(self, text: Tokenized, prompt: Tokenized) -> F64:
        """1 where a token's context occurs for the first time in the text, else 0: (L,)."""
        contexts = self.contexts_of(self.windows(text, prompt), np.array(text.ids, dtype=np.int64))
        first = np.zeros(len(text.ids))
        first[np.unique(contexts, axis=0, return_index=True)[1]] = 1.0
        return first


class ReweightingSession(TokenSession):
    """Reweights rows whose context is new and leaves the logits of the others unchanged."""

    def __init__(self, prompts: PromptBatch, bound: DistortionFreeBound) -> None:
        super().__init__(prompts, bound)
        self._repeated = bound.repeated(len(prompts))

    @abstractmethod
    def reweight(
        self, contexts: torch.Tensor, logits: torch.Tensor, candidates: torch.Tensor | None
    ) -> torch.Tensor:
        """Contexts (batch, h) and the candidates' float32 logits (batch, m) to new logits, same shape.

        ``candidates`` (batch, m) are token ids; None means the whole vocabulary.
        """

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        logits = scores.float()
        if scores.device.type == "mps":  # Metal has no float64
            windows, logits = windows.cpu(), logits.cpu()
        candidates = support(logits)
        if candidates is None:
            marked = self.reweight(windows, logits, None)
        else:
            few = self.reweight(windows, logits.gather(1, candidates), candidates)
            marked = torch.full_like(logits, _MINUS_INF).scatter_(1, candidates, few)
        marked = marked.to(scores)
        repeated = self._repeated(windows) if self._repeated is not None else []
        if any(repeated):
            marked = torch.where(torch.tensor(repeated, device=scores.device).unsqueeze(1), scores, marked)
        return marked
