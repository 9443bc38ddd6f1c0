"""What one key does to embeddings, folded: the paper's numbers from a quarter of the memory.

With unit rows ê, the projected cosine is

    p_T·p_C = ê_T R_T R_Cᵀ ê_Cᵀ / (‖ê_T R_T‖ ‖ê_C R_C‖),

so instead of P_T (|V| x n) it is enough to know three small matrices, R_T R_Cᵀ, R_T R_Tᵀ and G = R_C R_Cᵀ:

    Q = diag(1/‖ê_T R_T‖) Ê_T (R_T R_Cᵀ),   u = √n Q[x]·ê_C / √(ê_C G ê_Cᵀ).

Rows of Q are made on demand for detection (a text has a few hundred distinct tokens) and all at once for
marking. The matrices are as secret as the key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dewmark.core.projections import Projections

if TYPE_CHECKING:
    import torch

__all__ = ["Fold", "scale_contexts_torch"]

F16 = NDArray[np.float16]
F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

_BLOCK = 8192


class Fold:
    """R_T R_Cᵀ (d_T, d_C), R_T R_Tᵀ (d_T, d_T), G = R_C R_Cᵀ (d_C, d_C), and n."""

    def __init__(self, product: F32, gram: F32, G: F32, n: int) -> None:
        self._product = product
        self._gram = gram
        self.G = G
        self.n = n

    @classmethod
    def of(cls, projections: Projections) -> Fold:
        """Fold a key's projections."""
        R_T, R_C = projections.R_T, projections.R_C
        product, gram, G = (matrix.astype(np.float32) for matrix in (R_T @ R_C.T, R_T @ R_T.T, R_C @ R_C.T))
        return cls(product, gram, G, projections.n)

    @classmethod
    def stored(cls, arrays: Mapping[str, NDArray[Any]], n: int) -> Fold:
        """A fold that `arrays` gave, read again."""
        product, gram, G = (
            np.array(arrays[name], dtype=np.float32) for name in ("fold_product", "fold_gram", "fold_G")
        )
        return cls(product, gram, G, n)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a detector stores. As secret as the key."""
        return {"fold_product": self._product, "fold_gram": self._gram, "fold_G": self.G}

    def rows(self, tokens: F32) -> F32:
        """Rows ê_T (N, d_T) to rows of Q (N, d_C); zero rows, of tokens that carry no mark, stay zero."""
        norms = np.sqrt(np.einsum("ij,ij->i", tokens @ self._gram, tokens))[:, None]
        folded = tokens @ self._product
        unit: F32 = np.divide(folded, norms, out=np.zeros_like(folded), where=norms > 0.0)
        return unit

    def table(self, token_rows: F16, *, source: I64 | None = None) -> F32:
        """Q (|V|, d_C) of a whole vocabulary; ``source`` (|V|,) gives the row of Ê_T that each token uses."""
        size = len(token_rows)
        Q = np.empty((size, self.G.shape[0]), dtype=np.float32)
        for i in range(0, size, _BLOCK):
            ids = np.arange(i, min(i + _BLOCK, size))
            Q[ids] = self.rows(np.asarray(token_rows[ids if source is None else source[ids]], np.float32))
        return Q

    def contexts(self, c: F32) -> F32:
        """Unit contexts c (N, d_C) to √n c/‖c R_C‖, so that u is a plain dot product with rows of Q."""
        norms = np.sqrt(np.einsum("ij,ij->i", c @ self.G, c))[:, None]
        scaled: F32 = np.divide(math.sqrt(self.n) * c, norms, out=np.zeros_like(c), where=norms > 0.0)
        return scaled


def scale_contexts_torch(c: torch.Tensor, G: torch.Tensor, n: int) -> torch.Tensor:
    """`Fold.contexts` on a device: (B, d_C) to (B, d_C); empty contexts stay zero."""
    squares = ((c @ G) * c).sum(-1, keepdim=True)
    return c * (math.sqrt(n) * squares.clamp_min(1e-20).rsqrt())
