from __future__ import annotations

import numpy as np
import pytest

from dewmark.core.whitening import Whitening, normalize_rows
from dewmark.errors import InputError, NumericalError


def correlated(count: int, d: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, d)) @ rng.normal(size=(d, d)) + 5.0


def test_whitened_data_is_white() -> None:
    x = correlated(4000, 10)
    y = Whitening.fit(x, ridge=1e-9).apply(x)
    np.testing.assert_allclose(y.mean(axis=0), 0.0, atol=1e-3)
    np.testing.assert_allclose(np.cov(y.T), np.eye(10), atol=2e-3)


def test_blocks_equal_whole() -> None:
    x = correlated(1000, 6)
    whole, blocks = Whitening.fit(x), Whitening.fit(x[i : i + 137] for i in range(0, 1000, 137))
    np.testing.assert_allclose(whole.matrix, blocks.matrix, rtol=1e-4, atol=1e-6)


def test_the_map_is_symmetric_and_unique() -> None:
    """ZCA commutes with a rotation of the data, so it cannot depend on eigenvector signs or order."""
    x = correlated(3000, 8)
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(8, 8)))[0]
    plain, turned = Whitening.fit(x), Whitening.fit(x @ rotation)
    np.testing.assert_allclose(plain.matrix, plain.matrix.T, atol=1e-5)
    np.testing.assert_allclose(turned.apply(x @ rotation), plain.apply(x) @ rotation, atol=2e-3)


def test_singular_covariance_stays_bounded() -> None:
    x = correlated(20, 50)  # fewer samples than dimensions
    x[:, 7] = 3.0  # and one that never varies
    whitening = Whitening.fit(x)
    assert np.isfinite(whitening.matrix).all()
    assert np.linalg.norm(whitening.apply(x + 1e-4) - whitening.apply(x)) < 10.0


def test_bad_data_is_rejected() -> None:
    with pytest.raises(InputError, match="at least 2"):
        Whitening.fit(np.ones((1, 4)))
    with pytest.raises(NumericalError, match="NaN"):
        Whitening.fit(np.full((5, 4), np.nan))
    with pytest.raises(NumericalError, match="identical"):
        Whitening.fit(np.ones((5, 4)))


def test_normalize_rows_keeps_empty_rows_empty() -> None:
    rows = normalize_rows(np.array([[3.0, 4.0], [0.0, 0.0]]))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0.0, 0.0]], atol=1e-7)
