"""The key's matrices: W of `dew`, and R_T (d_T x n) and R_C (d_C x n) of the paper.

Gaussian (section 3.1). Entries are independent standard normals. For a fixed unit vector e the projection
eR is spherical, so after normalisation p_T·p_C has mean 0 and variance 1/n over keys; by Johnson and
Lindenstrauss angles within one space are preserved up to O(1/√n).

Orthogonal (appendix B). With n = lcm(d_T, d_C) and j = n/d blocks, each a square matrix Q_i uniform on the
orthogonal group (Haar), R = [Q_1 | … | Q_j]/√j. Rows are orthonormal, R Rᵀ = I, so inner products, norms
and angles within one space are preserved exactly.

Full (`dew`). One matrix W (d_T x d_C) of independent standard normals replaces R_T R_Cᵀ/√n, its
limit for large n. Then u = ê_T W ê_Cᵀ is exactly N(0, 1) over keys, any linear sum of u is exactly normal,
and a key takes half the numbers.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from dewmark.arrays import F32, F64
from dewmark.core.keys import Key, KeyStream
from dewmark.errors import ConfigError

__all__ = ["draw_matrix"]

Kind = Literal["gaussian", "orthogonal"]


def projection_dim(d_T: int, d_C: int, *, kind: Kind, n: int | None) -> int:
    """The dimensionality to use: ``n`` if given, else the paper's choice for this kind."""
    if kind == "orthogonal":
        least = math.lcm(d_T, d_C)
        if n is not None and n != least:
            raise ConfigError(
                f"orthogonal projections need n = lcm(d_T, d_C) = {least}, got n = {n}; leave n unset"
            )
        return least
    if n is None:
        return max(d_T, d_C)
    if n < 2:
        raise ConfigError(f"n must be at least 2, got {n}")
    return n


def draw_projections(
    key: Key, *, d_T: int, d_C: int, kind: Kind = "gaussian", n: int | None = None
) -> tuple[F64, F64]:
    """Regenerate R_T (d_T, n) and R_C (d_C, n) from the key (Algorithms 1 and 2, steps 1 and 2)."""
    n = projection_dim(d_T, d_C, kind=kind, n=n)
    drawn: list[F64] = []
    for name, d in (("R_T", d_T), ("R_C", d_C)):
        stream = key.stream(f"dew/{kind}/{name}")
        if kind == "gaussian":
            drawn.append(stream.normals(d, n))
        else:
            blocks = [haar_orthogonal(stream, d) for _ in range(n // d)]
            drawn.append(np.concatenate(blocks, axis=1) / math.sqrt(len(blocks)))
    return drawn[0], drawn[1]


def draw_matrix(key: Key, *, d_T: int, d_C: int) -> F64:
    """Regenerate W (d_T, d_C) from the key."""
    return key.stream("dew/full/W").normals(d_T, d_C)


def draw_float32_matrix(key: Key, *, d_T: int, d_C: int) -> F32:
    """W within 1e-6, much faster: for detection under many keys."""
    return key.stream("dew/full/W").float32_normals(d_T * d_C).reshape(d_T, d_C)


def haar_orthogonal(stream: KeyStream, d: int) -> F64:
    """A square orthogonal matrix, uniform on O(d): QR of a Gaussian matrix with R's diagonal made positive.

    The sign convention also makes the result unique, so that different LAPACK builds agree.
    """
    q, r = np.linalg.qr(stream.normals(d, d))
    signs = np.sign(np.diag(r))
    signs[signs == 0] = 1.0
    return np.asarray(q * signs)
