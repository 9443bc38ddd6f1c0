"""Kernels and captured graphs for CUDA devices, and the constants that they share with the torch step."""

from __future__ import annotations

from collections import Counter

__all__ = ["MAX_COUNT", "fallbacks"]

MAX_COUNT = 100
"""How far a word's occurrences are counted: no limit reaches it."""

fallbacks = Counter[str]()
"""How often torch replaced the kernels in this process, by reason; each is a warning, too."""
