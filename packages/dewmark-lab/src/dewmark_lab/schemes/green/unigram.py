"""Unigram: one keyed green list for all contexts (Zhao et al. 2023, Provable Robust Watermarking).

Only the token decides, so each token counts once per text (the paper's test over unique tokens): further
occurrences say nothing new about the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from dewmark.config import check_rules
from dewmark.sampling import Session
from dewmark.workspace import HostInfo, Workspace
from dewmark_lab.schemes.green.green_list import GreenBound, GreenListSession, as_numbers
from dewmark_lab.schemes.token_schemes import PromptBatch, TokenScheme


@dataclass(frozen=True)
class Unigram(TokenScheme):
    """One fixed green list."""

    name: ClassVar[str] = "unigram"
    summary: ClassVar[str] = "one keyed green list for all contexts, and a bias towards it"

    gamma: float = 0.5
    """Share γ of the vocabulary that is green."""
    delta: float = 2.0
    """Bias δ added to green logits."""

    def validate(self) -> None:
        """Check that all values are in range."""
        check_rules(
            (0.0 < self.gamma < 1.0, "gamma", "lie in (0, 1)", self.gamma),
            (self.delta > 0.0, "delta", "be positive", self.delta),
        )

    def bind_secret(
        self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace
    ) -> BoundUnigram:
        """Bind Unigram to a secret and a vocabulary."""
        return BoundUnigram(self, host, fingerprint, secret=secret, gamma=self.gamma, width=0)


class BoundUnigram(GreenBound):
    """Unigram for one key and one vocabulary."""

    scheme: Unigram

    def start_session(self, prompts: PromptBatch) -> Session:
        """Start marking a batch of prompts."""
        return FixedSession(prompts, self.vocabulary_hash, self.limit, delta=self.scheme.delta)


class FixedSession(GreenListSession):
    """Looks the green list up once."""

    _bias: torch.Tensor | None = None

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with δ added to those of green tokens."""
        if self._bias is None:
            self._bias = self._delta * as_numbers(self.green(windows[:1]), scores)
        return scores + self._bias
