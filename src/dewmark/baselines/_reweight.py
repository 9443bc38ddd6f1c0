"""What schemes that reweight the next-token distribution share on the scoring side.

Such a scheme turns the host's final distribution P after a context into a keyed Q with E_key[Q] = P. That
holds for one step. A context that comes back brings the same key material back, so the text as a whole keeps
the host's distribution only if a context is marked once per text: ``repeats="skip"`` leaves later occurrences
to the host's own sampling, and scoring then counts first occurrences alone. ``repeats="keep"`` marks every
occurrence (a stronger mark, texts that tend to loop), and scoring counts each distinct pair once.

Boundary: numpy only; `_reweight_session` marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from dewmark.arrays import F64
from dewmark.baselines._tokens import TokenBound, TokenScheme
from dewmark.embeddings.contexts import windows_of
from dewmark.workspace import HostInfo, Tokenized

__all__ = ["Repeats", "ReweightBound"]

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
