"""A scheme of your own: the key and the previous token pick half of the vocabulary, which becomes likelier.

    python examples/own_scheme.py

runs the contract suite on it and prints the outcome of every check.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from dewmark_lab.schemes.token_schemes import PromptBatch, TokenBound, TokenScheme, TokenSession
from dewmark_lab.testing import check_scheme


class BoundHalves(TokenBound):
    """The bound scheme: a pair (previous token, token) scores +1 if the token is picked, else -1.

    A pair counts once, however often it occurs, so N pairs have variance N, as the key test takes it.
    """

    tests = ("key",)
    width = 1

    def start_session(self, prompts: PromptBatch) -> TokenSession:
        """Start marking a batch of prompts."""
        return HalvesSession(prompts, self)

    def pair_scores(self, contexts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Contexts (N, 1) and tokens (N,) to scores (N,), of mean 0 and variance 1 over keys."""
        return np.where(self.pair_hash.words(contexts, tokens) % 2, 1.0, -1.0)


@dataclass(frozen=True)
class Halves(TokenScheme):
    """The configuration: a frozen dataclass whose fields are the parameters, each with a default."""

    name: ClassVar[str] = "halves"
    summary: ClassVar[str] = "the half of the vocabulary that key and previous token pick becomes likelier"
    bound = BoundHalves

    strength: Annotated[float, "positive"] = 2.0
    """What is added to the logits of the picked half; the range stands on the type."""


class HalvesSession(TokenSession):
    """Marks one batch of texts; anything that a scheme must remember about them belongs here."""

    def __init__(self, prompts: PromptBatch, bound: BoundHalves) -> None:
        super().__init__(prompts, bound)
        self._strength = bound.scheme.strength

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Windows (batch, 1) and logits (batch, vocab) to marked logits, by the words that detection uses."""
        return scores + self._strength * (self._hash.words(windows) % 2)


if __name__ == "__main__":
    print(check_scheme(Halves()))
