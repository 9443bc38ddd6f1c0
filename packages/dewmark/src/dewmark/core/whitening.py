"""Whitening: a linear map after which embeddings have mean 0 and no preferred direction.

W = U diag(1/√(λ + ε)) Uᵀ with Σ = U diag(λ) Uᵀ the covariance (ZCA). Among all whitening maps this is the one
that does not depend on the signs or the order of eigenvectors, so every linear-algebra library gives the same
map, and a key gives the same mark on every machine. ε is a fraction of the mean eigenvalue: it bounds the
scale of directions in which the data hardly varies (a singular covariance, fewer samples than dimensions).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F32
from dewmark.errors import InputError, NumericalError

__all__ = ["Whitening", "normalize_rows"]


_BLOCK = 8192


def normalize_rows(x: NDArray[np.floating]) -> F32:
    """Rows (N, d) to unit length, float32; rows of (nearly) zero length become exactly zero."""
    x = np.asarray(x, dtype=np.float32)
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    unit: F32 = np.divide(x, norms, out=np.zeros_like(x), where=norms > 1e-12)
    return unit


@dataclass(frozen=True)
class Whitening:
    """The fitted map x ↦ (x − mean) matrix; ``mean`` (d,), ``matrix`` (d, d) symmetric."""

    mean: F32
    matrix: F32

    @property
    def dim(self) -> int:
        """The dimension of the vectors it maps."""
        return int(self.mean.shape[0])

    @classmethod
    def fit(
        cls, blocks: Iterable[NDArray[np.floating]] | NDArray[np.floating], *, ridge: float = 1e-3
    ) -> Whitening:
        """Fit on rows (N, d), or on blocks of rows (N_b, d); ``ridge`` is ε over the mean eigenvalue."""
        if isinstance(blocks, np.ndarray):
            whole = blocks
            blocks = (whole[i : i + _BLOCK] for i in range(0, len(whole), _BLOCK))
        count, total, outer = 0, None, None
        for block in blocks:
            x = np.asarray(block, dtype=np.float64)
            if total is None or outer is None:
                total, outer = np.zeros(x.shape[1]), np.zeros((x.shape[1], x.shape[1]))
            count += len(x)
            total += x.sum(axis=0)
            outer += x.T @ x
        if total is None or outer is None or count < 2:
            raise InputError(f"whitening needs at least 2 vectors to fit on, got {count}")
        mean = total / count
        covariance = outer / count - np.outer(mean, mean)
        if not np.isfinite(covariance).all():
            raise NumericalError("cannot fit whitening: the embeddings contain NaN or infinite values")
        values, vectors = np.linalg.eigh(covariance)
        scale = float(values.mean())
        if scale <= 0.0:
            raise NumericalError("cannot fit whitening: all embeddings are identical")
        roots = 1.0 / np.sqrt(np.clip(values, 0.0, None) + ridge * scale)
        return cls(mean.astype(np.float32), ((vectors * roots) @ vectors.T).astype(np.float32))

    def apply(self, x: NDArray[np.floating]) -> F32:
        """Map rows (N, d) to whitened rows (N, d)."""
        return np.asarray((np.asarray(x, dtype=np.float32) - self.mean) @ self.matrix, dtype=np.float32)
