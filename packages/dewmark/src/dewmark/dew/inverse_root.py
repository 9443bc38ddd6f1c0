"""A^(−1/2) Y by products of matrices alone, which no device has to be waited for.

A = αK + (1−α)I, where K is a Gram matrix of n unit vectors, so its eigenvalues lie between 1−α and 1+(n−1)α.
Divided by the upper bound, they are squares σ² of numbers in [l, 1]. Each round of Newton-Schulz iteration,

    P = ρ(3 − ρ²M)/2,    Y ← P Y,    M ← P M P,    with ρ² = 3 / (1 + l + l²),

takes σ to ρσ(3 − ρ²σ²)/2, which has the same value at l and at 1 and is larger in between, at most 1: the
interval becomes [l', 1] with l' = ρl(3 − ρ²l²)/2 (the scaling of Chen and Chow). l' grows 2.6-fold at first,
and near 1 its distance from 1 is squared. Once l is 1 up to rounding, M is I and Y has become A^(−1/2) Y. The
number of rounds follows from α and n: 7 for the default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_LEAST = 1e-3  # a smallest eigenvalue to assume where α is 1; roots of smaller ones are cut
_MARGIN = 1e-3  # of the bounds, for rounding


@dataclass(frozen=True)
class InverseRoot:
    """The constants of the rounds: 1 / the upper bound, l, and their number."""

    scale: float
    least: float
    rounds: int

    @classmethod
    def of(cls, alpha: float, n: int) -> InverseRoot:
        """For A = αK + (1−α)I of n unit vectors."""
        scale = 1.0 / ((1.0 + (n - 1) * alpha) * (1.0 + _MARGIN))
        least = low = math.sqrt(max(1.0 - alpha, _LEAST) * scale) * (1.0 - _MARGIN)
        rounds = 0
        while low < 1.0 - 1e-7:
            a, b = _factors(low)
            low, rounds = low * (a + b * low * low), rounds + 1
        return cls(scale, least, rounds)

    def __call__(self, A: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
        """A^(−1/2) Y of matrices A (batch, n, n) and Y (batch, n, q), float32."""
        M, low = A * self.scale, self.least
        identity = torch.eye(A.shape[1], dtype=A.dtype, device=A.device)
        for i in range(self.rounds):
            a, b = _factors(low)
            P = torch.add(a * identity, M, alpha=b)
            Y = torch.bmm(P, Y)  # on a CPU half the time of @, which looks at shapes first
            if i + 1 < self.rounds:
                M = torch.bmm(torch.bmm(P, M), P)
            low *= a + b * low * low
        return Y * math.sqrt(self.scale)


def _factors(low: float) -> tuple[float, float]:
    """a and b of P = aI + bM."""
    square = 3.0 / (1.0 + low + low * low)
    return 1.5 * math.sqrt(square), -0.5 * math.sqrt(square) * square
