"""Keys in files and folders, and the kinds of marks that they make.

A folder of keys may hold a ``keyring.toml`` that says for its key files which marks they make, if these are
not all of one kind: one table per file, named like it without ``.key``.

    [chat]                          # chat.key
    scheme = "vllm-gumbel"
    host = "smollm2-135m"           # whose tokenizer the server has
    settings = { context_width = 4 }
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dewmark.core.keys import Key, is_engine_key
from dewmark.errors import ConfigError, KeyFileError
from dewmark.registry import SCHEMES
from dewmark.storage import read_small

__all__ = ["Kind", "read_kinds"]

_FILE = "keyring.toml"


@dataclass(frozen=True)
class Kind:
    """What marks a key makes: a scheme with its settings, on a host's tokenizer."""

    scheme: str | None = None
    host: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def read_kinds(folder: str | Path) -> dict[Path, Kind]:
    """The kinds that the keyring of a folder names, by key file; empty if it has none."""
    path = Path(folder) / _FILE
    if not path.exists():
        return {}
    found: dict[Path, Kind] = {}
    try:
        tables = tomllib.loads(read_small(path).decode())
        for name, table in tables.items():
            found[path.with_name(f"{name}.key")] = Kind(**table)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except TypeError:
        raise ConfigError(f"{path}: {name} takes scheme, host and settings") from None
    for kind in found.values():
        SCHEMES[kind.scheme or "dew"]  # an unknown name is an error now
    if missing := [file for file in found if not file.exists()]:
        raise ConfigError(f"{path} names {missing[0].stem}, but there is no key file {missing[0]}")
    return found


def load_keys(paths: Sequence[Path]) -> dict[str, Key]:
    """Keys by the names of their files: the files given, and all ``*.key`` files of the folders given."""
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob("*.key")) if path.is_dir() else [path]
        if not found:
            raise KeyFileError(f"{path} has no key: expected files named *.key")
        files += found
    keys: dict[str, Key] = {}
    names: dict[str, str] = {}  # by fingerprint
    for file in files:
        key = Key.load(file)
        name = f"number {key.fingerprint}" if is_engine_key(file) else str(file)  # which would be the secret
        if key.fingerprint in names:
            raise KeyFileError(
                f"{name} and {names[key.fingerprint]} are the same key {key.fingerprint}: give it once"
            )
        names[key.fingerprint] = name
        keys[name] = key
    return keys
