"""Files by name: a path, or a URL (s3://, gs:// through pyarrow, http:// and https:// through fsspec).

Credentials are those of the environment, as the libraries find them. A URL may carry some itself (a signed
link), so it is shown without its query and its user.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit, urlunsplit

from dewmark.errors import ConfigError, InputError, MissingExtraError
from dewmark.extras import require

__all__ = ["is_url", "open_binary", "shown", "size_of"]

_ARROW, _FSSPEC = ("s3", "gs"), ("http", "https")


def is_url(where: str) -> bool:
    """Whether a name is a URL rather than a path."""
    return "://" in where


def shown(where: str) -> str:
    """A name as it may be printed and stored."""
    if not is_url(where):
        return where
    parts = urlsplit(where)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def open_binary(where: str) -> IO[bytes]:
    """Open a file to read; it can be read from any byte on."""
    try:
        return Path(where).open("rb") if not is_url(where) else _open_url(where)
    except InputError:
        raise
    except OSError as error:
        reason = error.strerror or (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"cannot read {shown(where)}: {reason.replace(where, shown(where))}") from None


def size_of(where: str) -> tuple[int, int]:
    """Bytes, and, of a file on this machine, when it was last changed."""
    if not is_url(where):
        try:
            found = Path(where).stat()
        except OSError as error:
            raise InputError(f"cannot read {where}: {error.strerror}") from None
        return found.st_size, found.st_mtime_ns
    with open_binary(where) as stream:
        return stream.seek(0, 2), 0


def _open_url(where: str) -> IO[bytes]:
    scheme = urlsplit(where).scheme
    opened: Any
    if scheme in _ARROW:
        filesystems = require("pyarrow.fs", extra="parquet")
        system, path = filesystems.FileSystem.from_uri(where)
        opened = io.BufferedReader(system.open_input_file(path))  # lines, which pyarrow's own file lacks
    elif scheme in _FSSPEC:
        fsspec = require("fsspec", extra="parquet")
        try:
            opened = fsspec.open(where, "rb").open()
        except ImportError as error:
            raise MissingExtraError(
                f"{scheme}:// needs aiohttp; install it with: pip install 'dewmark[parquet]'"
            ) from error
    else:
        known = ", ".join(f"{name}://" for name in (*_ARROW, *_FSSPEC))
        raise ConfigError(f"cannot read {shown(where)}: known are paths and {known}")
    stream: IO[bytes] = opened
    return stream
