"""Tournament sampling (SynthID-Text) as a change of probabilities, and its session.

One layer with bits g and N leaves: of N tokens drawn independently from p one with bit 1 wins if there is
any. With G = Σ g p this multiplies a token's probability by

    1 + (1 − G) + … + (1 − G)^(N−1)   if its bit is 1 (for N = 2: 2 − G),
    (1 − G)^(N−1)                     if its bit is 0 (for N = 2: 1 − G),

and the layers follow one another. A token's factor in ten consecutive layers depends on its ten bits alone.
So ten layers are played at once between the 1,024 patterns of ten bits, each with the probability of all
tokens that show it: exactly the same numbers, with three passes over the vocabulary instead of thirty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from dewmark.arrays import F64
from dewmark.baselines._reweight_session import ReweightSession

if TYPE_CHECKING:
    from dewmark.baselines.synthid import BoundSynthID

__all__ = ["TournamentSession", "tournament"]


_AT_ONCE = 10


class TournamentSession(ReweightSession):
    """Plays the tournament in every row whose context is new."""

    def __init__(
        self, bound: BoundSynthID, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask, memory=bound.scheme.history)
        self._depth, self._leaves = bound.scheme.depth, bound.scheme.leaves

    def reweight(
        self, contexts: torch.Tensor, logits: torch.Tensor, candidates: torch.Tensor | None
    ) -> torch.Tensor:
        """Logarithms of the probabilities (batch, m) after the tournament."""
        words = self._hash.words(contexts, candidates)
        return tournament(logits.softmax(dim=1), words, depth=self._depth, leaves=self._leaves).log_()


def tournament(
    probabilities: torch.Tensor, words: torch.Tensor, *, depth: int, leaves: int = 2
) -> torch.Tensor:
    """Probabilities (batch, m) after ``depth`` layers; bit l of words (batch, m) int32 is layer l's g."""
    for start in range(0, depth, _AT_ONCE):
        layers = min(_AT_ONCE, depth - start)
        patterns = (words >> start).bitwise_and_((1 << layers) - 1).to(torch.int64)
        zeros = probabilities.new_zeros((len(probabilities), 1 << layers))
        masses = zeros.scatter_add_(1, patterns, probabilities)
        # small and sequential, so on the CPU and without torch's overhead for each step
        factors = torch.from_numpy(pattern_factors(masses.cpu().double().numpy(), leaves))
        probabilities = probabilities * factors.to(probabilities).gather(1, patterns)
    return probabilities


def pattern_factors(masses: F64, leaves: int) -> F64:
    """The factors (batch, 2^layers) of all patterns, from their probabilities (batch, 2^layers).

    Layer by layer from the lowest bit: play it, then forget it, which leaves the patterns of the bits above.
    """
    left = masses / masses.sum(axis=1, keepdims=True)
    factors = np.ones((len(masses), 1))
    while left.shape[1] > 1:
        zeros, ones = left[:, 0::2], left[:, 1::2]
        rest = np.maximum(1.0 - ones.sum(axis=1, keepdims=True), 0.0)  # 1 − G
        lose, win = rest, 1.0 + rest
        for _ in range(leaves - 2):
            lose, win = lose * rest, 1.0 + win * rest
        left = zeros * lose + ones * win
        factors = np.concatenate((factors * lose, factors * win), axis=1)  # the new bit is the highest yet
    return factors
