"""Kernels and captured graphs for CUDA devices, and the constants that they share with the torch step."""

from __future__ import annotations

from collections import Counter

__all__ = ["fallbacks"]

fallbacks = Counter[str]()
"""How often torch replaced the kernels in this process, by reason; each is a warning, too."""
