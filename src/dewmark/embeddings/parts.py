"""Contexts that are sums of a few vectors: the vectors of a window's tokens, or of its words.

A batch has far fewer distinct tokens than windows. A product that is linear in the context is therefore taken
once per token and summed per window: with s = Σ_j x_j the quadratic form s G sᵀ is s · Σ_j (x_j G).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from dewmark.arrays import F32, I64

__all__ = ["Parts"]


@dataclass(frozen=True)
class Parts:
    """W contexts as sums of P vectors: ``rows`` (P, d), ``index`` (W, k) with -1 where nothing stands."""

    rows: F32
    index: I64

    @property
    def vectors(self) -> F32:
        """Unit rows (W, d); a sum of (nearly) zero length gives exactly zero."""
        return self._normalised[0]

    @functools.cached_property
    def _normalised(self) -> tuple[F32, F32]:
        """Unit rows (W, d), and what each sum was divided by, (W,): infinity for an empty one."""
        sums = self.sums(self.rows)
        lengths = np.linalg.norm(sums, axis=1)
        lengths[lengths <= 1e-12] = np.inf
        sums /= lengths[:, None]
        return sums, lengths

    def sums(self, rows: F32) -> F32:
        """Σ_j rows[index_j], (W, d), for any rows (P, d) that stand for the parts."""
        extended = np.concatenate((rows, np.zeros((1, rows.shape[1]), dtype=np.float32)))  # -1 takes the last
        if not self.index.shape[1]:
            return np.zeros((len(self.index), rows.shape[1]), dtype=np.float32)
        total = extended[self.index[:, 0]]
        for column in self.index.T[1:]:
            total += extended[column]
        return total

    def squares(self, G: F32) -> F32:
        """c G cᵀ of each unit context c, (W,); G (d, d) symmetric."""
        vectors, lengths = self._normalised
        return np.asarray(np.einsum("ij,ij->i", vectors, self.sums(self.rows @ G)) / lengths)
