from __future__ import annotations

import numpy as np
import pytest

from dewmark.core.keys import Key
from dewmark.core.projections import draw_projections, haar_orthogonal
from dewmark.errors import ConfigError

KEY = Key(bytes(range(32)))


def test_gaussian_shapes_and_moments() -> None:
    R_T, R_C = draw_projections(KEY, d_T=60, d_C=40)
    assert (R_T.shape, R_C.shape) == ((60, 60), (40, 60))
    wide, _ = draw_projections(KEY, d_T=300, d_C=200, n=400)
    # mean of 120,000 normals: sd 0.0029; variance: sd sqrt(2/120000) = 0.0041
    assert abs(wide.mean()) < 0.012
    assert abs(wide.var() - 1) < 0.017


@pytest.mark.parametrize(("d_T", "d_C"), [(12, 8), (576, 384), (8, 12), (7, 7), (16, 8)])
def test_orthogonal_blocks_are_isometries(d_T: int, d_C: int) -> None:
    R_T, R_C = draw_projections(KEY, d_T=d_T, d_C=d_C, kind="orthogonal")
    assert R_T.shape[1] == np.lcm(d_T, d_C)
    for R in (R_T, R_C):
        np.testing.assert_allclose(R @ R.T, np.eye(len(R)), atol=1e-10)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, d_C))
    np.testing.assert_allclose((a @ R_C) @ (b @ R_C), a @ b, rtol=1e-10)


def test_haar_matrices_have_no_preferred_direction() -> None:
    """Entries have mean 0 and variance 1/d; a QR without the sign fix fails on the diagonal."""
    d, draws = 6, 4000
    stream = KEY.stream("haar")
    Q = np.stack([haar_orthogonal(stream, d) for _ in range(draws)])
    assert np.abs(Q.mean(axis=0)).max() < 4.5 / np.sqrt(d * draws)
    assert np.abs((Q**2).mean(axis=0) - 1 / d).max() < 4.5 * np.sqrt(2 / d**2 / draws)


def test_bad_dimensions() -> None:
    with pytest.raises(ConfigError, match="lcm"):
        draw_projections(KEY, d_T=4, d_C=6, kind="orthogonal", n=8)
    with pytest.raises(ConfigError, match="at least 2"):
        draw_projections(KEY, d_T=4, d_C=6, n=1)
