"""The inverse root by products of matrices, against eigenvalues in float64."""

from __future__ import annotations

import math

import pytest
import torch

from dewmark.dew.noise import InverseRoot


def grams(kind: str, n: int) -> torch.Tensor:
    """Gram matrices (20, n, n) of unit vectors, float64."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(20, n, 128, generator=generator, dtype=torch.float64)
    if kind == "alike":  # cosines about 0.99
        vectors = vectors[:, :1] + 0.1 * vectors
    elif kind == "equal":  # rank one
        vectors = vectors[:, :1].expand(-1, n, -1)
    elif kind == "pairs":  # every word twice
        vectors = vectors[:, : n // 2].repeat(1, 2, 1)
    vectors = torch.nn.functional.normalize(vectors, dim=-1)
    return vectors @ vectors.mT


@pytest.mark.parametrize("kind", ["random", "alike", "equal", "pairs"])
@pytest.mark.parametrize(("alpha", "n"), [(0.95, 32), (0.5, 32), (0.95, 64), (0.99, 2)])
def test_newton_schulz_finds_the_root_of_eigenvalues(kind, alpha, n) -> None:
    """Up to float32's rounding, which the root magnifies by at most √κ; κ is the condition of A."""
    A = alpha * grams(kind, n) + (1.0 - alpha) * torch.eye(n, dtype=torch.float64)
    y = torch.randn(20, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values, vectors = torch.linalg.eigh(A)
    root = (vectors * values.rsqrt().unsqueeze(1)) @ vectors.mT
    expected = (root @ y.unsqueeze(2)).squeeze(2)
    found = InverseRoot.of(alpha, n)(A.float(), y.float().unsqueeze(2)).squeeze(2).double()
    condition = (1.0 + (n - 1) * alpha) / (1.0 - alpha)
    allowed = 30.0 * torch.finfo(torch.float32).eps * math.sqrt(condition)
    assert float((found - expected).norm(dim=1).div(expected.norm(dim=1)).max()) < allowed


def test_roots_of_a_singular_matrix_stay_bounded() -> None:
    """With α = 1 a direction without variance, in which y has only rounding, is stretched 122-fold."""
    y = torch.randn(20, 32, generator=torch.Generator().manual_seed(1))
    found = InverseRoot.of(1.0, 32)(grams("equal", 32).float(), y.unsqueeze(2)).squeeze(2)
    assert float(found.norm(dim=1).div(y.norm(dim=1)).max()) < 130.0
