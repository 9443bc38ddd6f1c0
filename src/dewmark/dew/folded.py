"""The folded table: the paper's numbers from a quarter of the memory.

With unit rows ê, the projected cosine is

    p_T·p_C = ê_T R_T R_Cᵀ ê_Cᵀ / (‖ê_T R_T‖ ‖ê_C R_C‖),

so instead of P_T (|V| x n) it is enough to keep Q (|V| x d_C) and G (d_C x d_C),

    Q = diag(1/‖ê_T R_T‖) Ê_T (R_T R_Cᵀ),   G = R_C R_Cᵀ,   u = √n Q[x]·ê_C / √(ê_C G ê_Cᵀ).

Rows of Q are made on demand for detection (a text has a few hundred distinct tokens) and all at once for
marking. Q and G are as secret as the key.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dewmark.core.projections import Projections

if TYPE_CHECKING:
    import torch

__all__ = ["Fold", "FoldedTable", "StoredTable", "scale_contexts", "scale_contexts_torch"]

F16 = NDArray[np.float16]
F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

_BLOCK = 8192


class StoredTable:
    """A folded table that was computed before: Q (|V|, d_C), G (d_C, d_C), n."""

    def __init__(self, Q: F32, G: F32, n: int) -> None:
        self._Q = Q
        self.G = G
        self.n = n

    def rows(self, ids: I64) -> F32:
        """Q[ids], (N, d_C); zero rows for tokens that carry no mark."""
        return np.asarray(self._Q[ids], dtype=np.float32)

    def all_rows(self) -> F32:
        """Q, (|V|, d_C)."""
        return self._Q


class FoldedTable:
    """A folded table that computes its rows from Ê_T (|V|, d_T) and the key's projections."""

    def __init__(self, token_rows: F16, projections: Projections, *, source: I64 | None = None) -> None:
        """``source`` (|V|,) gives for each token the row of Ê_T to use (an ablation permutes them)."""
        self._token_rows = token_rows
        self._source = source
        self._fold = (projections.R_T @ projections.R_C.T).astype(np.float32)
        self._norm = (projections.R_T @ projections.R_T.T).astype(np.float32)
        self.G: F32 = (projections.R_C @ projections.R_C.T).astype(np.float32)
        self.n = projections.n

    def rows(self, ids: I64) -> F32:
        """Q[ids], (N, d_C); zero rows for tokens that carry no mark."""
        rows = np.asarray(
            self._token_rows[ids if self._source is None else self._source[ids]], dtype=np.float32
        )
        norms = np.sqrt(np.einsum("ij,ij->i", rows @ self._norm, rows))[:, None]
        folded = rows @ self._fold
        unit: F32 = np.divide(folded, norms, out=np.zeros_like(folded), where=norms > 0.0)
        return unit

    def all_rows(self) -> F32:
        """Q, (|V|, d_C)."""
        size = len(self._token_rows)
        Q = np.empty((size, self.G.shape[0]), dtype=np.float32)
        for i in range(0, size, _BLOCK):
            ids = np.arange(i, min(i + _BLOCK, size))
            Q[ids] = self.rows(ids)
        return Q


Fold = FoldedTable | StoredTable


def scale_contexts(c: F32, G: F32, n: int) -> F32:
    """Unit contexts c (N, d_C) to √n c/‖c R_C‖, so that u is a plain dot product with rows of Q."""
    norms = np.sqrt(np.einsum("ij,ij->i", c @ G, c))[:, None]
    scaled: F32 = np.divide(math.sqrt(n) * c, norms, out=np.zeros_like(c), where=norms > 0.0)
    return scaled


def scale_contexts_torch(c: torch.Tensor, G: torch.Tensor, n: int) -> torch.Tensor:
    """`scale_contexts` on a device: (B, d_C) to (B, d_C); empty contexts stay zero."""
    squares = ((c @ G) * c).sum(-1, keepdim=True)
    return c * (math.sqrt(n) * squares.clamp_min(1e-20).rsqrt())
