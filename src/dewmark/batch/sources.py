"""Files of many texts, cut into blocks that any worker can read: JSONL or Parquet, here or behind a URL.

A block is a few numbers (which file, from where, how many rows), so that it is the worker and not the command
that reads the texts. Blocks follow from the file and the wanted size alone: a run that resumes cuts the same.
A source is pickled to workers, so it holds names only; what is open is kept per process.

Files by name: a path, or a URL (s3://, gs:// through pyarrow, http:// and https:// through fsspec).

Credentials are those of the environment, as the libraries find them. A URL may carry some itself (a signed
link), so it is shown without its query and its user.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit, urlunsplit

from dewmark import storage
from dewmark.cli.inputs import Item, make_item
from dewmark.errors import ConfigError, InputError, MissingExtraError
from dewmark.extras import require

__all__ = [
    "Block",
    "JsonlSource",
    "ParquetSource",
    "Source",
    "is_url",
    "open_binary",
    "open_source",
    "shown",
    "size_of",
]

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


_JSONL = (".jsonl", ".ndjson", ".json")

_PARQUET = (".parquet", ".pq")


@dataclass(frozen=True, slots=True)
class Block:
    """Rows ``first`` … ``first + rows − 1`` of a source.

    JSONL: they begin ``start`` bytes into the file, at line ``line``. Parquet: they begin ``start`` rows into
    row group ``group`` of file number ``file``, at that file's row ``line``.
    """

    first: int
    rows: int
    start: int
    line: int
    file: int = 0
    group: int = 0


@dataclass(frozen=True)
class Source(ABC):
    """One input. ``prompt`` is what texts continue whose row does not say it, ``by`` the field of groups."""

    where: str
    prompt: str | None = None
    by: str | None = None

    @abstractmethod
    def blocks(self, size: int) -> list[Block]:
        """All rows, in order, in blocks of at most ``size``; an input without rows is refused."""

    @abstractmethod
    def read(self, block: Block) -> list[Item]:
        """The texts of a block; what is no text is refused with its place."""

    @abstractmethod
    def identity(self) -> dict[str, object]:
        """What tells whether the input is still the same, without reading it."""

    def absolute(self) -> Source:
        """The same for a process with another working directory."""
        if is_url(self.where):
            return self
        return dataclasses.replace(self, where=str(Path(self.where).absolute()))

    def items(self, blocks: Sequence[Block]) -> Iterator[Item]:
        """The texts of some blocks; the first is read at once, so that a wrong file is told early."""
        texts = chain.from_iterable(map(self.read, blocks))
        return chain(list(islice(texts, 1)), texts)

    def _item(self, row: dict[str, Any], where: str, index: int) -> Item:
        return make_item(row, where, index=index, prompt=self.prompt, by=self.by)


@dataclass(frozen=True)
class JsonlSource(Source):
    """A file with one JSON object per line."""

    def blocks(self, size: int) -> list[Block]:
        """See `Source.blocks`; reads the file once."""
        found: list[Block] = []
        begun: Block | None = None
        first = rows = offset = 0
        with open_binary(self.where) as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    begun = begun or Block(first, 0, offset, number)
                    rows += 1
                    if rows - first == size:
                        found.append(_closed(begun, rows))
                        begun, first = None, rows
                offset += len(line)
        if begun is not None:
            found.append(_closed(begun, rows))
        if not found:
            raise InputError(f"{shown(self.where)} is empty: there is nothing to score")
        return found

    def read(self, block: Block) -> list[Item]:
        """See `Source.read`."""
        name = shown(self.where)
        with open_binary(self.where) as stream:
            stream.seek(block.start)
            parsed = storage.parse_jsonl(stream, name=name, first=block.line)
            rows = list(islice(parsed, block.rows))
        return [
            self._item(row, f"{name}, line {number}", block.first + i) for i, (number, row) in enumerate(rows)
        ]

    def identity(self) -> dict[str, object]:
        """See `Source.identity`."""
        return {"input": shown(self.where), "bytes": size_of(self.where)}


@dataclass(frozen=True)
class ParquetSource(Source):
    """A Parquet file, or all ``*.parquet`` files of a folder, in the order of their names."""

    @functools.cached_property
    def files(self) -> list[str]:
        """The files, each with its whole name."""
        folder = Path(self.where)
        if is_url(self.where) or not folder.is_dir():
            return [self.where]
        found = sorted(str(path) for path in folder.iterdir() if path.suffix in _PARQUET)
        if not found:
            raise InputError(f"{folder} holds no Parquet file: expected names that end in .parquet")
        return found

    def blocks(self, size: int) -> list[Block]:
        """See `Source.blocks`; no block runs over two row groups."""
        found: list[Block] = []
        first = 0
        for number, file in enumerate(self.files):
            with _opened(file) as parquet:
                _columns(file, parquet, self.by)
                metadata = parquet.metadata
            line = 0
            for group in range(metadata.num_row_groups):
                total = metadata.row_group(group).num_rows
                found += [
                    Block(first + start, min(size, total - start), start, line + start, number, group)
                    for start in range(0, total, size)
                ]
                first, line = first + total, line + total
        if not found:
            raise InputError(f"{shown(self.where)} is empty: there is nothing to score")
        return found

    def read(self, block: Block) -> list[Item]:
        """See `Source.read`."""
        file = self.files[block.file]
        rows = _row_group(file, block.group, self.by).slice(block.start, block.rows).to_pylist()
        return [
            self._item(row, f"{shown(file)}, row {block.line + i}", block.first + i)
            for i, row in enumerate(rows)
        ]

    def identity(self) -> dict[str, object]:
        """See `Source.identity`."""
        return {"input": shown(self.where), "bytes": [size_of(file) for file in self.files]}


def open_source(where: str, *, prompt: str | None = None, by: str | None = None) -> Source:
    """The source of a name: its ending says the format; a folder holds Parquet files."""
    ending = Path(shown(where)).suffix.lower()
    if ending in _JSONL:
        return JsonlSource(where, prompt, by)
    if ending in _PARQUET or (not is_url(where) and Path(where).is_dir()):
        require("pyarrow.parquet", extra="parquet")
        return ParquetSource(where, prompt, by)
    raise ConfigError(
        f"cannot tell the format of {shown(where)}: give a name that ends in .parquet or .jsonl"
    )


def _closed(block: Block, end: int) -> Block:
    return Block(block.first, end - block.first, block.start, block.line)


@contextlib.contextmanager
def _opened(file: str) -> Iterator[Any]:
    """A ``pyarrow.parquet.ParquetFile``; whatever is wrong with it is an `InputError`."""
    arrow = require("pyarrow", extra="parquet")
    parquet = require("pyarrow.parquet", extra="parquet")
    with open_binary(file) as stream:
        try:
            yield parquet.ParquetFile(stream)
        except InputError:
            raise
        except (arrow.ArrowException, OSError):
            raise InputError(f"{shown(file)} is no Parquet file, or it is damaged") from None


@functools.lru_cache(maxsize=1)  # the next block is most often of the same row group
def _row_group(file: str, group: int, by: str | None) -> Any:  # noqa: ANN401 - pyarrow has no types
    with _opened(file) as parquet:
        return parquet.read_row_group(group, columns=_columns(file, parquet, by))


def _columns(file: str, parquet: Any, by: str | None) -> list[str]:  # noqa: ANN401 - pyarrow has no types
    known = parquet.schema_arrow.names
    needed = ["text"] if by is None else ["text", by]
    for name in needed:
        if name not in known:
            raise InputError(f'{shown(file)} has no column "{name}"; it has: {", ".join(known)}')
    return [name for name in dict.fromkeys([*needed, "prompt", "id"]) if name in known]
