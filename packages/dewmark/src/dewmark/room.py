"""Room for a mark: how much of it the decoding leaves, measured while a text is written.

A scheme that draws puts its mark in the randomness of the draw. A token of probability p wins a race at a
time τ ~ Exp(1), whatever p is (`dewmark.sampling`), so its keyed number is e^(−pτ), and as a standard normal

    g(p) = E[Φ⁻¹(e^(−pτ))]    on average;    Σ_i p_i g(p_i) is what a step is expected to gain.

g(1) = 0: a token without a rival says nothing of the key. The g of the tokens that were drawn estimate the
sum without bias, so a text's room is the sum of g over the N steps that could carry the mark, times √α where
only the share α of the noise comes from the key. Over keys, the text is found with

    z ≈ Σ √α g(p) / √N    on average.

The default scheme has a second such sum, Σ √β g(p) over the words with h, and its verdict rests on the larger
of the first z and (z + z_F)/√2 (`dewmark.dew.reference`).

A text has no room for its mark if the z to expect is below what its level asks for, Φ⁻¹(1 − level), so that
it would be missed more often than found, or if N is too small for any verdict (`dewmark.verdict`). Such texts
are reported as ``unmarked: no_room``. p is the probability after temperature and filters. For schemes that
add a bias to the logits (the host's own, or after temperature and filters) nothing is measured: the bias
raises unlikely tokens, and marks what would be drawn without a choice, too.

Boundary: probabilities in, a number and a reason out. Which steps could carry the mark, the sessions say.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dewmark.arrays import F64
from dewmark.verdict import least_length

if TYPE_CHECKING:
    import torch

__all__ = [
    "NO_ROOM",
    "Room",
    "Written",
    "gain",
    "gain_of",
    "gains_on",
    "log_probability",
    "race_moments",
    "rooms_of",
]

NO_ROOM = "no_room"
"""Why a text carries no mark that could be found: its decoding left too little to choose."""

LEAST = -30.0
"""The logarithm of the smallest probability that is told from 0."""
POINTS = 601
_FINE = 6001


class Room(NamedTuple):
    """Σ √α g(p) over the steps of a text that could carry the mark, and their number.

    ``form`` and ``words`` are the second sum, Σ √β g(p), and its number of words.
    """

    gain: float
    steps: float
    form: float = 0.0
    words: float = 0.0

    @property
    def z(self) -> float:
        """The z to expect."""
        if not self.words:
            return self.gain / math.sqrt(self.steps) if self.steps else 0.0
        from dewmark.stats.two_sums import larger_of

        z = self.gain / math.sqrt(max(self.steps, 1.0))
        return float(larger_of(z, self.form / math.sqrt(self.words))[1])

    def suffices(self, *, fpr: float, reader: object = None) -> bool:
        """Whether a text can be found at this level, by a detector with this reader."""
        from scipy.special import ndtri

        return self.z >= -float(ndtri(fpr)) and self.steps >= least_length(reader)


def rooms_of(counted: torch.Tensor | None, rows: int) -> list[Room | None]:
    """What sessions counted (rows, 4), row by row; None where nothing is known, which is NaN in the tensor.

    Waits for the device.
    """
    if counted is None:
        return [None] * rows
    return [None if math.isnan(row[0]) else Room(*row) for row in counted.tolist()]


class Written(list[int]):
    """The ids of a completion, with the room that they left if it was measured."""

    room: Room | None = None


@functools.cache
def race_moments(points: int = POINTS) -> tuple[F64, F64]:
    """The mean g and the variance h of a winner's noise at values of log p from `LEAST` to 0."""
    from scipy.special import ndtri_exp

    nodes, weights = np.polynomial.laguerre.laggauss(96)
    x = ndtri_exp(-np.exp(np.linspace(LEAST, 0.0, points))[:, None] * nodes)
    mean = x @ weights
    return mean, np.maximum((x * x) @ weights - mean * mean, 0.0)


def gain_of(p: F64) -> F64:
    """g of probabilities, same shape."""
    grid, gains = np.linspace(LEAST, 0.0, _FINE), race_moments(_FINE)[0]
    return np.asarray(np.interp(np.log(np.maximum(p, math.exp(LEAST))), grid, gains - gains[-1]))


@functools.lru_cache(maxsize=16)
def gains_on(device: torch.device) -> torch.Tensor:
    """g at values of log p from 0 down to `LEAST`, float32."""
    import torch

    gains = race_moments(_FINE)[0][::-1]
    gains = gains - gains[0]  # which the quadrature finds 0.002 too small, like those near it
    with torch.inference_mode(False):  # kept for later calls, in any mode
        return torch.tensor(gains.copy(), dtype=torch.float32).to(device)


def gain(log_p: torch.Tensor) -> torch.Tensor:
    """g of log-probabilities, same shape; 0 where one is not a number."""
    import torch

    gains = gains_on(log_p.device)
    at = torch.nan_to_num(log_p.float(), nan=0.0).mul((_FINE - 1) / LEAST).clamp(0.0, _FINE - 1.001)
    below = at.long()
    return torch.lerp(gains[below], gains[below + 1], at - below)


def log_probability(scores: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The log-probabilities (batch,) of ids (batch,) under final logits (batch, vocab)."""
    chosen = scores.gather(1, ids.to(scores.device).unsqueeze(1))
    return (chosen - scores.logsumexp(dim=1, keepdim=True)).squeeze(1)
