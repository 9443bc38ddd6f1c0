"""The texts that an attacker has collected, one matrix each.

For attackers who must first find out which texts belong together (`clustering`, `signs`); one who knows that
all share a key needs only their sum (`regression`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dewmark.arrays import F32, F64
from dewmark.dew.reading import Reader
from dewmark_lab.attacks.stealing.regression import (
    Baseline,
    Moments,
    fitted_tilt,
    pairs_per_text,
    posterior_mean,
)


@dataclass(frozen=True)
class Observed:
    """N texts: ``matrices`` (N, a, b), Σ t cᵀ less its expectation, in the public eigenbases.

    ``counts`` (N,) are their pairs, ``variances`` (a, b) those of one pair.
    """

    matrices: F32
    counts: F64
    variances: F64

    def __len__(self) -> int:
        return len(self.matrices)

    @property
    def flat(self) -> F32:
        """The matrices as rows (N, a·b)."""
        return self.matrices.reshape(len(self), -1)

    def estimate(self, weights: F64) -> F64:
        """The posterior mean of one W (a, b) from texts with weights (N,)."""
        total = np.tensordot(weights, self.matrices, axes=1)
        count = float(weights @ self.counts)
        tilt = fitted_tilt(total, max(count, 1.0), self.variances)
        return posterior_mean(total, count, self.variances, tilt=tilt)


def observe(reader: Reader, texts: Sequence[str], base: Baseline) -> Observed:
    """Read texts in the coordinates of ``base`` (`Baseline.leading` keeps the memory small)."""
    moments = [Moments.of(T, C) for T, C in pairs_per_text(reader, texts)]
    matrices = [base.residual(each).astype(np.float32) for each in moments]
    counts = np.array([each.count for each in moments], dtype=np.float64)
    return Observed(np.stack(matrices), counts, base.variances)
