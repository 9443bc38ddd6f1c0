"""SynthID's tournament in closed form, over keyed bits of any origin.

In one layer with N leaves, of N tokens drawn independently from p, one with bit 1 wins if there is any. With
G = Σ g p this multiplies a token's probability by

    1 + (1 − G) + … + (1 − G)^(N−1)   if its bit is 1 (for N = 2: 2 − G),
    (1 − G)^(N−1)                     if its bit is 0 (for N = 2: 1 − G),

and the layers are applied in turn. A token's factor over ten consecutive layers depends on its ten bits
alone, so ten layers are played at once between the 1,024 patterns of ten bits, each with the total
probability of its tokens: the same numbers exactly, with three passes over the vocabulary instead of thirty.
"""

from __future__ import annotations

import numpy as np
import torch

from dewmark.arrays import F64

__all__ = ["tournament"]

_LAYERS_AT_ONCE = 10


def tournament(
    probabilities: torch.Tensor, words: torch.Tensor, *, depth: int, leaves: int = 2
) -> torch.Tensor:
    """Probabilities (batch, m) after ``depth`` layers; bit l of words (batch, m) int32 is layer l's g."""
    for start in range(0, depth, _LAYERS_AT_ONCE):
        layers = min(_LAYERS_AT_ONCE, depth - start)
        patterns = (words >> start).bitwise_and_((1 << layers) - 1).to(torch.int64)
        zeros = probabilities.new_zeros((len(probabilities), 1 << layers))
        masses = zeros.scatter_add_(1, patterns, probabilities)
        # small and sequential: numpy on the CPU avoids torch's overhead at each step
        factors = torch.from_numpy(pattern_factors(masses.cpu().double().numpy(), leaves))
        probabilities = probabilities * factors.to(probabilities).gather(1, patterns)
    return probabilities


def pattern_factors(masses: F64, leaves: int) -> F64:
    """The factors (batch, 2^layers) of all patterns, from their probabilities (batch, 2^layers).

    Layer by layer from the lowest bit: play it, then sum it out, which leaves the patterns of the higher
    bits.
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
        factors = np.concatenate((factors * lose, factors * win), axis=1)  # the new bit is the highest so far
    return factors
