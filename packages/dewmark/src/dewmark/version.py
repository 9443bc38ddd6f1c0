"""The version of the package, importable without the rest of it."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
