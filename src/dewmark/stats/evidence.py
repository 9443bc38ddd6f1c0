"""The evidence that one text carries, in the form that every test over random keys needs.

Fix the text and let the key be random: each distinct (context, unit) pair of the text has a score of mean 0,
and two scores have a covariance that depends on the text alone. With it one has the variance of any weighted
sum of scores, and so tests, scans and retention, for every scheme alike.

Boundary: arrays and their meaning; the statistics are in `dewmark.stats`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Evidence", "Factor"]

Factor = NDArray[np.floating] | NDArray[np.integer]


@dataclass(frozen=True)
class Evidence:
    """N distinct pairs of one text of L units.

    ``scores`` (N,) are what the scheme sums, of mean 0 over keys, larger means more marked. ``alignments``
    (N,) show the same on a standard normal scale, for people to look at. ``weights`` (N,) say how often each
    pair occurs, ``positions`` (L,) give for each unit of the text its pair, or -1 if it is not scored.

    The covariance of two scores over keys is f(ρ_ij), f(ρ) = kernel[0] ρ + kernel[1] ρ² + …, and
    ρ_ij = T_ij C_ij: ``T`` and ``C`` give each factor either as unit rows (N, d), T_ij = ⟨t_i, t_j⟩, or as
    integer labels (N,), T_ij = 1 if they are equal and 0 if not.
    """

    scores: NDArray[np.float64]
    alignments: NDArray[np.floating]
    weights: NDArray[np.float64]
    positions: NDArray[np.int64]
    T: Factor
    C: Factor
    kernel: tuple[float, ...]

    @classmethod
    def independent(
        cls,
        scores: NDArray[np.floating],
        weights: NDArray[np.floating],
        positions: NDArray[np.int64],
        *,
        variance: float = 1.0,
    ) -> Evidence:
        """Scores (N,) that are independent over keys, each of the given variance."""
        values = np.asarray(scores, dtype=np.float64)
        return cls(
            scores=values,
            alignments=values / np.sqrt(variance),
            weights=np.asarray(weights, dtype=np.float64),
            positions=positions,
            T=np.arange(len(values)),
            C=np.zeros(len(values), dtype=np.int64),
            kernel=(variance,),
        )

    @property
    def length(self) -> int:
        """How many units are scored, repetitions counted."""
        return round(float(self.weights.sum()))

    @property
    def total(self) -> float:
        """The sum of all scores, repetitions counted."""
        return float(self.weights @ self.scores)

    @property
    def variance(self) -> float:
        """The variance of one score over keys, f(1)."""
        return float(sum(self.kernel))

    def __len__(self) -> int:
        return len(self.weights)
