"""One key's projections of both embeddings, folded: the paper's numbers in a quarter of the memory.

With unit rows ê, the projected cosine is

    p_T·p_C = ê_T R_T R_Cᵀ ê_Cᵀ / (‖ê_T R_T‖ ‖ê_C R_C‖),

so three small matrices, R_T R_Cᵀ, R_T R_Tᵀ and G = R_C R_Cᵀ, replace P_T (|V| x n):

    Q = diag(1/‖ê_T R_T‖) Ê_T (R_T R_Cᵀ),   u = √n Q[x]·ê_C / √(ê_C G ê_Cᵀ).

Detection computes rows of Q on demand (a text has a few hundred distinct tokens), marking computes all of
them at once. The matrices are as secret as the key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F16, F32, I64
from dewmark.core.keys import Key
from dewmark.core.projections import Kind, draw_projections
from dewmark.encoders.token_tables import rows_of

if TYPE_CHECKING:
    import torch


_BLOCK = 8192


class Fold:
    """R_T R_Cᵀ (d_T, d_C), R_T R_Tᵀ (d_T, d_T), G = R_C R_Cᵀ (d_C, d_C), and n."""

    def __init__(self, product: F32, gram: F32, G: F32, n: int) -> None:
        self._product, self._gram, self.G, self.n = product, gram, G, n

    @classmethod
    def of(cls, key: Key, *, d_T: int, d_C: int, kind: Kind, n: int | None) -> Fold:
        """Draw a key's projections and fold them."""
        R_T, R_C = draw_projections(key, d_T=d_T, d_C=d_C, kind=kind, n=n)
        product, gram, G = (matrix.astype(np.float32) for matrix in (R_T @ R_C.T, R_T @ R_T.T, R_C @ R_C.T))
        return cls(product, gram, G, R_T.shape[1])

    @classmethod
    def of_matrix(cls, W: F32) -> Fold:
        """A fold with u = ê_T W ê_C for unit contexts, for a matrix W (d_T, d_C) that is no product."""
        d_T, d_C = W.shape
        return cls(W, np.eye(d_T, dtype=np.float32), np.eye(d_C, dtype=np.float32), n=1)

    @classmethod
    def stored(cls, arrays: Mapping[str, NDArray[Any]], n: int) -> Fold:
        """Restore a fold from `arrays`; the large ones stay in the mapped file."""
        G = np.array(arrays["fold_G"], dtype=np.float32)
        return cls(arrays["fold_product"], arrays["fold_gram"], G, n)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays for a stored detector. As secret as the key."""
        return {"fold_product": self._product, "fold_gram": self._gram, "fold_G": self.G}

    def rows(self, tokens: F32) -> F32:
        """Rows ê_T (N, d_T) to rows of Q (N, d_C); the zero rows of unmarkable tokens stay zero."""
        folded: F32 = tokens @ self._product
        norms = np.sqrt(np.einsum("ij,ij->i", tokens @ self._gram, tokens))[:, None]
        unit: F32 = np.divide(folded, norms, out=np.zeros_like(folded), where=norms > 0.0)
        return unit

    def table(self, token_rows: F16, *, source: I64 | None = None) -> F32:
        """Q (|V|, d_C) of the whole vocabulary; ``source`` (|V|,) is the row of Ê_T that each token uses."""
        Q = np.empty((len(token_rows), self._product.shape[1]), dtype=np.float32)
        for i in range(0, len(Q), _BLOCK):
            ids = np.arange(i, min(i + _BLOCK, len(Q)))
            Q[ids] = self.rows(rows_of(token_rows, ids if source is None else source[ids]))
        return Q

    def contexts(self, c: F32) -> F32:
        """Unit contexts c (N, d_C) to √n c/‖c R_C‖, so that u is a plain dot product with rows of Q."""
        squares = np.einsum("ij,ij->i", c @ self.G, c)
        norms = np.sqrt(np.maximum(squares, 0.0))
        factors = np.divide(math.sqrt(self.n), norms, out=np.zeros_like(norms), where=norms > 0.0)
        return np.asarray(c * factors[:, None])


def scale_contexts(c: torch.Tensor, G: torch.Tensor, n: int) -> torch.Tensor:
    """`Fold.contexts` in torch: (B, d_C) to (B, d_C); empty contexts stay zero."""
    squares = ((c @ G) * c).sum(-1, keepdim=True)
    return c * (math.sqrt(n) * squares.clamp_min(1e-20).rsqrt())
