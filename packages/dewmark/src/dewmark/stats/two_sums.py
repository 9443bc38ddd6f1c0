"""The larger of two scores: one sum alone, or two sums together.

z and z_F are independent standard normals over keys. The verdict rests on

    m = max(z, (z + z_F)/√2),    p = P(m or more) = Φ(−m) + 2 T(m, tan(π/8)),

where T is Owen's function: the correlation of the two is 1/√2. p lies between Φ(−m) and 2Φ(−m). Results
give Φ⁻¹(1 − p) as their z, so that z and p say the same.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, ndtri_exp, owens_t

from dewmark.arrays import F64

__all__ = ["larger_of"]

_SLOPE = math.tan(math.pi / 8.0)
_FAR = 30.0  # beyond it T is Φ(−m)/2 to all digits


def larger_of(z: F64 | float, z_form: F64 | float) -> tuple[F64, F64, F64]:
    """m, the z of its p-value, and p, each in the shape of the scores.

    Where ``z_form`` is NaN there is no second sum, and the first one counts alone.
    """
    alone = np.isnan(z_form)
    m = np.where(alone, z, np.fmax(z, np.add(z, z_form) / math.sqrt(2.0)))
    near = np.minimum(m, _FAR)
    looks = np.where(m < _FAR, 2.0 * owens_t(near, _SLOPE) / np.exp(log_ndtr(-near)), 1.0)
    log_p = np.minimum(log_ndtr(-m) + np.log1p(np.where(alone, 0.0, looks)), 0.0)
    return m, np.where(alone, m, -ndtri_exp(log_p)), np.exp(log_p)
