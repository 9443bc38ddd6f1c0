"""Configuration as data: frozen dataclasses to and from plain values, ``name=value`` settings, hashes.

A scheme's fields are its configuration. A field whose name in the paper is a Python keyword has a trailing
underscore (``lambda_``), which is dropped outside Python (``--set lambda=2.5``).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dewmark.errors import ConfigError
from dewmark.registry import unknown_name

__all__ = ["cache_dir", "check_rules", "config_hash", "parse_settings", "replace"]

T = TypeVar("T")


def cache_dir() -> Path:
    """The folder of downloaded and derived files: ``$DEWMARK_CACHE``, else in the user's cache folder."""
    explicit = os.environ.get("DEWMARK_CACHE")
    if explicit:
        return Path(explicit).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "dewmark"


def check_rules(*rules: tuple[bool, str, str, object]) -> None:
    """Raise `ConfigError` for the first rule that fails; a rule is (holds, name, requirement, value)."""
    for holds, name, requirement, value in rules:
        if not holds:
            raise ConfigError(f"{name} must {requirement}, got {value}")


def to_dict(config: object) -> dict[str, Any]:
    """The fields of a config dataclass under their public names."""
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise TypeError(f"not a config: {config!r}")
    return {f.name.rstrip("_"): getattr(config, f.name) for f in dataclasses.fields(config)}


def replace(config: T, values: Mapping[str, Any]) -> T:
    """A copy of ``config`` with ``values`` (by public name), each converted to its field's type."""
    fields = {f.name.rstrip("_"): f.name for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(type(config))
    changes = {}
    for name, value in values.items():
        public = name.rstrip("_")
        if public not in fields:
            raise unknown_name("parameter", name, fields)
        changes[fields[public]] = _coerce(public, value, hints[fields[public]])
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def coerced(config: object) -> dict[str, Any]:
    """The fields of a config dataclass by attribute name, each converted to its declared type and in range.

    A range is a note on the type: ``Annotated[int, "at least 1"]``, ``"positive"`` or ``"in (0, 1]"``.
    """
    hints = typing.get_type_hints(type(config))
    noted = typing.get_type_hints(type(config), include_extras=True)
    found: dict[str, Any] = {}
    for f in dataclasses.fields(config):  # type: ignore[arg-type]
        name = f.name.rstrip("_")
        value = found[f.name] = _coerce(name, getattr(config, f.name), hints[f.name])
        for allowed in getattr(noted[f.name], "__metadata__", ()):
            if value is not None and not _allows(allowed, value):
                verb = "lie" if allowed.startswith("in") else "be"
                raise ConfigError(f"{name} must {verb} {allowed}, got {value}")
    return found


def _allows(allowed: str, value: float) -> bool:
    """Whether a number is in the range that a note on a field's type allows."""
    if allowed == "positive":
        return value > 0
    if allowed.startswith("at least "):
        return value >= float(allowed.removeprefix("at least "))
    low, high = (float(end) for end in allowed.removeprefix("in ")[1:-1].split(", "))
    above = low <= value if "[" in allowed else low < value
    return above and (value <= high if "]" in allowed else value < high)


def parse_settings(settings: Iterable[str]) -> dict[str, str]:
    """``["k=5", "alpha=0.9"]`` to a mapping; `replace` converts the values from text."""
    parsed = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"a setting must have the form name=value, got {setting!r}")
        parsed[name.strip()] = value.strip()
    return parsed


def config_hash(*parts: object) -> str:
    """16 hex digits of the SHA-256 of the parts' canonical JSON."""
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _coerce(name: str, value: Any, hint: Any) -> Any:  # noqa: ANN401 - any field type
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = typing.get_args(hint) if union else (hint,)
    if type(None) in options and (value is None or str(value).lower() in {"none", "null"}):
        return None
    for option in options:
        if option is type(None):
            continue
        try:
            return _convert(value, option)
        except ValueError:
            continue
    kinds = " or ".join(_describe(option) for option in options if option is not type(None))
    raise ConfigError(f"{name} must be {kinds}, got {value!r}")


def _convert(value: Any, hint: Any) -> Any:  # noqa: ANN401 - any field type
    if typing.get_origin(hint) is typing.Literal:
        if value in typing.get_args(hint):
            return value
        raise ValueError(value)
    if hint is bool:
        if isinstance(value, bool):
            return value
        truth = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(value).lower() in truth:
            return truth[str(value).lower()]
        raise ValueError(value)
    if hint is int:
        if isinstance(value, str):
            return int(value)
        number = _number(value)
        if not number.is_integer():
            raise ValueError(value)
        return int(value)
    if hint is float:
        return _number(value)
    if hint is str:
        if not isinstance(value, str):
            raise ValueError(value)
        return value
    raise TypeError(f"no conversion to {hint}")


def _number(value: Any) -> float:  # noqa: ANN401 - any value
    """Text or a number, numpy's included, as a finite float; ValueError for anything else."""
    if isinstance(value, bool) or not (isinstance(value, str) or hasattr(value, "__float__")):
        raise ValueError(value)
    try:
        number = float(value)
    except (OverflowError, TypeError):
        raise ValueError(value) from None
    if not math.isfinite(number):  # range checks miss NaN, and no parameter is infinite
        raise ValueError(value)
    return number


def _describe(hint: Any) -> str:  # noqa: ANN401 - any field type
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(str(option) for option in typing.get_args(hint))
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[hint]
