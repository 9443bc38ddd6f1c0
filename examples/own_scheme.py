"""A scheme of one's own: the key and the previous token pick half of the vocabulary, which becomes likelier.

    python examples/own_scheme.py

runs the contract suite on it and prints the outcome of every check.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from dewmark.baselines.keyed_words import VocabularyHash
from dewmark.baselines.token_schemes import TokenBound, TokenScheme, TokenSession
from dewmark.errors import ConfigError
from dewmark.scheme import Session
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic, key_test
from dewmark.testing import check_scheme
from dewmark.workspace import HostInfo, Workspace


@dataclass(frozen=True)
class Halves(TokenScheme):
    """The configuration: a frozen dataclass whose fields are the parameters, each with a default."""

    name: ClassVar[str] = "halves"
    summary: ClassVar[str] = "the half of the vocabulary that key and previous token pick becomes likelier"

    strength: float = 2.0
    """What is added to the logits of the picked half."""

    def validate(self) -> None:
        """Refuse values out of range."""
        if not self.strength > 0.0:
            raise ConfigError(f"strength must be positive, got {self.strength}")

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> TokenBound:
        """With a secret that belongs to one key and this scheme."""
        return BoundHalves(self, host, fingerprint, secret=secret)


class BoundHalves(TokenBound):
    """The scheme with a key and a vocabulary: a pair (previous token, token) scores +1 if picked, else -1."""

    tests = ("key",)
    width = 1

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking prompts (batch, length)."""
        return HalvesSession(self, prompt_ids, attention_mask)

    def pair_scores(self, contexts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Contexts (N, 1) and tokens (N,) to scores (N,), of mean 0 and variance 1 over keys."""
        return np.where(self.hash.words(contexts, tokens) % 2, 1.0, -1.0)

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """A pair counts once, however often it occurs: the sum of N pairs has variance N."""
        return key_test(evidence)


class HalvesSession(TokenSession):
    """Marks one batch of texts; what a scheme must remember of them belongs here."""

    def __init__(self, bound: BoundHalves, prompts: torch.Tensor, mask: torch.Tensor | None) -> None:
        super().__init__(bound, prompts, mask)
        self._words = VocabularyHash(bound.hash).words
        self._strength = bound.scheme.strength

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Windows (batch, 1) and logits (batch, vocab) to marked logits: the words that detection reads."""
        return scores + self._strength * (self._words(windows) % 2)


if __name__ == "__main__":
    print(check_scheme(Halves()))
