"""The evidence in one text, in the form that every test over random keys uses.

Fix the text and let the key be random: each distinct (context, unit) pair of the text has a score of mean 0,
and the covariance of two scores depends on the text alone. It gives the variance of any weighted sum of
scores, and with it tests, scans and retention for every scheme.

Boundary: arrays and their meaning; the statistics are in the other modules of `dewmark.stats`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F64, I64, Mask

__all__ = ["Evidence"]

Factor = NDArray[np.floating] | NDArray[np.integer]


@dataclass(frozen=True)
class Evidence:
    """The N distinct pairs of one text of L units.

    ``scores`` (N,) are the terms of the scheme's sum: mean 0 over keys, larger if marked. ``alignments`` (N,)
    are the same on a standard normal scale, for display. ``weights`` (N,) count how often each pair occurs,
    and ``positions`` (L,) hold the pair of each unit of the text, or -1 if the unit is not scored.

    The covariance of two scores over keys is f(ρ_ij) with f(ρ) = kernel[0] ρ + kernel[1] ρ² + … and
    ρ_ij = T_ij C_ij. ``T`` and ``C`` hold each factor either as unit rows (N, d), T_ij = ⟨t_i, t_j⟩, or as
    integer labels (N,), T_ij = 1 if they are equal, else 0. ``comparable`` says that the factors of two texts
    mean the same, so that the covariance of their scores is known too. ``own`` (N,) are variances that pairs
    have besides, each independent of all else; None if there are none.

    The last ``extra`` pairs belong to no unit: terms that a scheme adds to the sum, with weights of any sign.
    If f is linear, rows need not be unit vectors (``unit_rows`` false): a unit with short rows weighs less.
    A scheme's own kind of evidence names in ``of_pairs`` its arrays with a row for each pair. ``whole`` is
    what a scheme's test knows of a whole text beyond its pairs; a passage of it has None.
    """

    of_pairs: ClassVar[tuple[str, ...]] = ()

    scores: F64
    alignments: NDArray[np.floating]
    weights: F64
    positions: I64
    T: Factor
    C: Factor
    kernel: tuple[float, ...]
    comparable: bool = True
    extra: int = 0
    unit_rows: bool = True
    own: F64 | None = None
    whole: Any = None

    @classmethod
    def independent(
        cls,
        scores: NDArray[np.floating],
        weights: NDArray[np.floating],
        positions: I64,
        *,
        variance: float = 1.0,
        labels: I64 | None = None,
    ) -> Evidence:
        """Scores (N,) that are independent over keys, each with the given variance.

        ``labels`` (N,) identify the pairs: two texts with the same label have the same score there.
        """
        values = np.asarray(scores, dtype=np.float64)
        return cls(
            scores=values,
            alignments=values / np.sqrt(variance),
            weights=np.asarray(weights, dtype=np.float64),
            positions=positions,
            T=np.arange(len(values)) if labels is None else labels,
            C=np.zeros(len(values), dtype=np.int64),
            kernel=(variance,),
            comparable=labels is not None,
        )

    @property
    def length(self) -> int:
        """The number of scored units, including repetitions."""
        return round(float(self.weights[: self.pairs].sum()))

    @property
    def total(self) -> float:
        """The sum of all scores, including repetitions."""
        return float(self.weights @ self.scores)

    @property
    def variance(self) -> float:
        """The variance over keys of one score that has none of its own, f(1)."""
        return float(sum(self.kernel))

    @property
    def pairs(self) -> int:
        """The number of distinct pairs of the text."""
        return len(self.weights) - self.extra

    @property
    def sizes(self) -> F64:
        """The variances of the pairs' scores relative to f(1), (pairs,): 1 for unit rows and labels."""
        squares = np.ones(self.pairs)
        if not self.unit_rows:
            for factor in (self.T, self.C):
                rows = factor[: self.pairs]
                squares *= np.einsum("ij,ij->i", rows, rows)
        return squares if self.own is None else squares + self.own[: self.pairs] / self.variance

    @property
    def shown(self) -> tuple[F64, Mask]:
        """What is shown of each unit, (L,): its alignment, and whether it is scored."""
        scored = self.positions >= 0
        return np.append(self.alignments, 0.0)[self.positions], scored

    def effective_length(self, variance: float) -> float:
        """L_eff of a sum of scores with this variance; at most the number of distinct pairs.

        A pair whose rows are short counts as the fraction of a pair that it weighs.
        """
        if variance <= 0.0:
            return 0.0
        sizes = self.sizes
        total = float(self.weights[: self.pairs] @ np.sqrt(sizes))
        return min(total**2 * self.variance / variance, float(sizes.sum()))

    def __len__(self) -> int:
        return len(self.weights)
