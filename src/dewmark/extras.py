"""Optional libraries, imported where they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from dewmark.errors import MissingExtraError

__all__ = ["require"]


def require(module: str, *, extra: str) -> ModuleType:
    """Import ``module``, or raise an error that names the extra of dewmark that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtraError(
            f"{module.split('.')[0]} is not installed; install it with: pip install 'dewmark[{extra}]'"
        ) from error
