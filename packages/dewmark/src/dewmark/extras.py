"""Optional libraries, imported where they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from dewmark.errors import MissingExtraError

__all__ = ["require"]


_HOST = frozenset({"accelerate", "gguf", "safetensors", "torch", "transformers"})


def require(module: str, *, extra: str, package: str = "dewmark") -> ModuleType:
    """Import ``module``, or raise an error that names the extra of a package of ours that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtraError(
            f"{module.split('.')[0]} is not installed; install it with: pip install '{package}[{extra}]'"
        ) from error


def import_part(module: str) -> ModuleType:
    """Import a module of ours; if the libraries for models are missing, the error says so."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in _HOST:
            raise
        raise MissingExtraError(
            f"{error.name} is not installed; install it with: pip install 'dewmark[host]'"
        ) from error
