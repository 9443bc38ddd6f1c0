"""One key's projections of both embeddings, folded: the paper's numbers in a quarter of the memory.

With unit rows ê, the projected cosine is

    p_T·p_C = ê_T R_T R_Cᵀ ê_Cᵀ / (‖ê_T R_T‖ ‖ê_C R_C‖),

so three small matrices, R_T R_Cᵀ, R_T R_Tᵀ and G = R_C R_Cᵀ, replace P_T (|V| x n):

    Q = diag(1/‖ê_T R_T‖) Ê_T (R_T R_Cᵀ),   u = √n Q[x]·ê_C / √(ê_C G ê_Cᵀ).

A full key matrix W (`dewmark.core.projections`) takes the place of R_T R_Cᵀ, and nothing is normalised:
Q = Ê_T W, u = Q[x]·ê_C.

Detection computes rows of Q on demand (a text has a few hundred distinct tokens), marking computes all of
them at once. The matrices are as secret as the key.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F16, F32, I64
from dewmark.core.keys import Key
from dewmark.core.projections import Kind, draw_matrix, draw_projections
from dewmark.encoders.contexts import SummedContexts
from dewmark.encoders.token_tables import rows_of

if TYPE_CHECKING:
    import torch

__all__ = ["Fold", "FoldedRows", "scale_contexts"]


_BLOCK = 8192
_CACHE_BYTES = 32 << 20  # bytes of rows of Q


class Fold:
    """R_T R_Cᵀ (d_T, d_C), R_T R_Tᵀ (d_T, d_T), G = R_C R_Cᵀ (d_C, d_C), and n.

    For host tokens a stored detector holds the norms ‖ê_T R_T‖ (|V|,) instead of R_T R_Tᵀ. For a full key
    matrix there is only the product W; G is None.
    """

    def __init__(
        self, product: F32, gram: F32 | None, G: F32 | None, n: int, *, norms: F32 | None = None
    ) -> None:
        self._product = product
        self._gram = gram
        self._norms = norms
        self.G = G
        self.n = n

    @classmethod
    def of(cls, key: Key, *, d_T: int, d_C: int, kind: Kind, n: int) -> Fold:
        """Draw a key's projections and fold them."""
        if kind == "full":
            return cls(draw_matrix(key, d_T=d_T, d_C=d_C).astype(np.float32), None, None, n)
        projections = draw_projections(key, d_T=d_T, d_C=d_C, kind=kind, n=n)
        R_T, R_C = projections.R_T, projections.R_C
        product, gram, G = (matrix.astype(np.float32) for matrix in (R_T @ R_C.T, R_T @ R_T.T, R_C @ R_C.T))
        return cls(product, gram, G, projections.n)

    @classmethod
    def of_matrix(cls, W: F32) -> Fold:
        """The fold of a full key matrix W (d_T, d_C)."""
        return cls(W, None, None, max(W.shape))

    @classmethod
    def stored(cls, arrays: Mapping[str, NDArray[Any]], n: int) -> Fold:
        """Restore a fold from `arrays`; large arrays stay in the mapped file."""
        product = arrays["fold_product"]
        if "fold_G" not in arrays:
            return cls(np.array(product, dtype=np.float32), None, None, n)
        G = np.array(arrays["fold_G"], dtype=np.float32)
        if "token_norms" in arrays:
            return cls(product, None, G, n, norms=arrays["token_norms"])
        return cls(product, arrays["fold_gram"], G, n)

    @property
    def product(self) -> F32:
        """R_T R_Cᵀ, or W (d_T, d_C)."""
        return self._product

    @property
    def width(self) -> int:
        """d_C."""
        return int(self._product.shape[1])

    def arrays(self, token_rows: F16 | None = None) -> dict[str, NDArray[Any]]:
        """Arrays for a stored detector, of words or of the tokens of Ê_T (|V|, d_T). As secret as the key."""
        if self.G is None:
            return {"fold_product": self._product}
        stored: dict[str, NDArray[Any]] = {"fold_product": self._product, "fold_G": self.G}
        if token_rows is None:
            assert self._gram is not None
            return {**stored, "fold_gram": self._gram}
        if self._norms is not None:
            return {**stored, "token_norms": self._norms}
        blocks = (rows_of(token_rows, ids) for ids in _blocks(len(token_rows)))
        return {**stored, "token_norms": np.concatenate([self._norms_of(rows, None) for rows in blocks])}

    def rows(self, tokens: F32, *, ids: I64 | None = None) -> F32:
        """Rows ê_T (N, d_T) to rows of Q (N, d_C); the zero rows of unmarkable tokens stay zero.

        ``ids`` (N,) are their row numbers in Ê_T, which a stored detector of host tokens needs.
        """
        folded: F32 = tokens @ self._product
        if self.G is None:
            return folded
        norms = self._norms_of(tokens, ids)[:, None]
        unit: F32 = np.divide(folded, norms, out=np.zeros_like(folded), where=norms > 0.0)
        return unit

    def _norms_of(self, tokens: F32, ids: I64 | None) -> F32:
        """‖ê_T R_T‖ of rows ê_T (N, d_T), (N,)."""
        if self._norms is not None and ids is not None:
            return np.asarray(self._norms[ids])
        assert self._gram is not None
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", tokens @ self._gram, tokens)))

    def table(self, token_rows: F16, *, source: I64 | None = None) -> F32:
        """Q (|V|, d_C) of the whole vocabulary; ``source`` (|V|,) is the row of Ê_T that each token uses."""
        Q = np.empty((len(token_rows), self._product.shape[1]), dtype=np.float32)
        for ids in _blocks(len(token_rows)):
            used = ids if source is None else source[ids]
            Q[ids] = self.rows(rows_of(token_rows, used), ids=used)
        return Q

    def contexts(self, c: F32, *, parts: SummedContexts | None = None) -> F32:
        """Unit contexts c (N, d_C) to √n c/‖c R_C‖, so that u is a plain dot product with rows of Q.

        ``parts`` makes it cheaper where contexts are sums of a few vectors each.
        """
        if self.G is None:
            return c
        squares = np.einsum("ij,ij->i", c @ self.G, c) if parts is None else parts.squares(self.G)
        norms = np.sqrt(np.maximum(squares, 0.0))
        factors = np.divide(math.sqrt(self.n), norms, out=np.zeros_like(norms), where=norms > 0.0)
        return np.asarray(c * factors[:, None])


class FoldedRows:
    """A thread-safe cache of rows of Q by row number in Ê_T, emptied when it is full."""

    def __init__(self, fold: Fold, size: int) -> None:
        width = fold.width
        self._fold = fold
        self._places = np.full(size, -1, dtype=np.int32)
        self._rows: F32 = np.empty((min(_CACHE_BYTES // (4 * width), size), width), dtype=np.float32)
        self._used = 0
        self._lock = threading.Lock()

    def rows(self, tokens: F32, ids: I64) -> F32:
        """Rows of Q (N, d_C) for rows ê_T (N, d_T) with these distinct ids (N,)."""
        if len(ids) > len(self._rows):
            return self._fold.rows(tokens, ids=ids)
        with self._lock:
            new = np.flatnonzero(self._places[ids] < 0)
            if self._used + len(new) > len(self._rows):
                self._places[:] = -1
                self._used, new = 0, np.arange(len(ids))
            if len(new):
                end = self._used + len(new)
                self._rows[self._used : end] = self._fold.rows(tokens[new], ids=ids[new])
                self._places[ids[new]] = np.arange(self._used, end)
                self._used = end
            return self._rows[self._places[ids]]


def _blocks(size: int) -> Iterator[I64]:
    for i in range(0, size, _BLOCK):
        yield np.arange(i, min(i + _BLOCK, size))


def scale_contexts(c: torch.Tensor, G: torch.Tensor, n: int) -> torch.Tensor:
    """`Fold.contexts` in torch: (B, d_C) to (B, d_C); empty contexts stay zero."""
    squares = ((c @ G) * c).sum(-1, keepdim=True)
    return c * (math.sqrt(n) * squares.clamp_min(1e-20).rsqrt())
