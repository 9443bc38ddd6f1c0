"""The strength of a mark, measured on marked texts: how many of a given length are found.

In effective tokens z_i = m_i √L + e with m_i ~ N(mean, spread²) and e ~ N(0, 1), so that the share of marked
texts found is Φ((mean √L − z_α) / √(1 + spread² L)), z_α = −Φ⁻¹(fpr). `dewmark power` measures it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import ndtr, ndtri

from dewmark.types import Plain


@dataclass(frozen=True, slots=True)
class Strength(Plain):
    """m ~ N(``mean``, ``spread``²) per effective token, measured on ``texts`` marked texts."""

    mean: float
    spread: float
    texts: int

    def found(self, effective_length: float, *, fpr: float) -> float:
        """The share of marked texts of this effective length with p < ``fpr``."""
        L = max(effective_length, 0.0)
        return float(ndtr((self.mean * math.sqrt(L) + ndtri(fpr)) / math.sqrt(1.0 + self.spread**2 * L)))
