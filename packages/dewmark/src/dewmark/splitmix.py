"""SplitMix64: the constants that numpy, torch and the kernels share, and the hash that they make."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["GOLDEN", "MIX_1", "MIX_2", "mixed"]

GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mixed(codes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A 64-bit hash of each code, same shape."""
    z = codes + np.uint64(GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
    return z ^ (z >> np.uint64(31))
