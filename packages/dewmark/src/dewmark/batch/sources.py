"""Files of many texts in JSONL or Parquet, local or behind a URL, split into blocks that any worker can read.

A block is a few numbers (which file, where it starts, how many rows), so that workers read the texts
themselves. Blocks follow from the file and the block size alone, so a resumed run makes the same ones. A
source is pickled to workers: it contains names only, and open files are kept per process.

URLs: s3:// and gs:// through pyarrow, http:// and https:// through fsspec, with the credentials that these
libraries find in the environment. A URL may contain credentials itself (a signed link), so it is shown and
stored without its query and user name.
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
from dewmark.batch.inputs import Document, parse_text_row
from dewmark.errors import ConfigError, InputError, MissingExtraError
from dewmark.extras import require

_ARROW, _FSSPEC = ("s3", "gs"), ("http", "https")
_JSONL = (".jsonl", ".ndjson", ".json")
_PARQUET = (".parquet", ".pq")


def open_source(where: str, *, prompt: str | None = None) -> Source:
    """Open a path or URL; the suffix tells the format, and a folder contains Parquet files."""
    ending = Path(shown(where)).suffix.lower()
    if ending in _JSONL:
        return JsonlSource(where, prompt)
    if ending in _PARQUET or (not is_url(where) and Path(where).is_dir()):
        require("pyarrow.parquet", extra="parquet")
        return ParquetSource(where, prompt)
    raise ConfigError(f"cannot tell the format of {shown(where)}: its name must end in .parquet or .jsonl")


@dataclass(frozen=True, slots=True)
class Block:
    """Rows ``first`` … ``first + rows − 1`` of a source.

    In JSONL they start at byte ``start`` of the file, which is line ``line``; in Parquet at row ``start`` of
    row group ``group`` of file number ``file``, which is that file's row ``line``.
    """

    first: int
    rows: int
    start: int
    line: int
    file: int = 0
    group: int = 0


@dataclass(frozen=True)
class Source(ABC):
    """An input. ``prompt`` is the default for rows without one."""

    where: str
    prompt: str | None = None

    @abstractmethod
    def blocks(self, size: int) -> list[Block]:
        """All rows, in order, in blocks of at most ``size``; an input without rows is an error."""

    @abstractmethod
    def read(self, block: Block) -> list[Document]:
        """The texts of a block; errors name the file and the line."""

    @property
    def files(self) -> list[str]:
        """The paths or URLs of the files."""
        return [self.where]

    def identity(self) -> dict[str, object]:
        """Identifies the input's content without reading it (name, size, time of the last change)."""
        return {"input": shown(self.where), "bytes": [size_of(file) for file in self.files]}

    def absolute(self) -> Source:
        """The same with an absolute path, for processes with another working directory."""
        if is_url(self.where):
            return self
        return dataclasses.replace(self, where=str(Path(self.where).absolute()))

    def rows(self, blocks: Sequence[Block]) -> Iterator[Document]:
        """The texts of some blocks; the first is read at once, so that a wrong file is reported early."""
        texts = chain.from_iterable(map(self.read, blocks))
        return chain(list(islice(texts, 1)), texts)

    def _parse(self, row: dict[str, Any], where: str, index: int) -> Document:
        return parse_text_row(row, where, index=index, prompt=self.prompt)


@dataclass(frozen=True)
class JsonlSource(Source):
    """A file with one JSON object per line."""

    def blocks(self, size: int) -> list[Block]:
        """See `Source.blocks`; this reads the whole file once."""
        begins: list[tuple[int, int]] = []
        rows = offset = 0
        with open_binary(self.where) as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    if rows % size == 0:
                        begins.append((offset, number))
                    rows += 1
                offset += len(line)
        if not rows:
            raise InputError(f"{shown(self.where)} is empty: there is nothing to score")
        firsts = range(0, rows, size)
        return [Block(i, min(size, rows - i), *begin) for i, begin in zip(firsts, begins, strict=True)]

    def read(self, block: Block) -> list[Document]:
        name = shown(self.where)
        with open_binary(self.where) as stream:
            stream.seek(block.start)
            parsed = storage.parse_jsonl(stream, name=name, first=block.line)
            rows = enumerate(islice(parsed, block.rows), start=block.first)
            return [self._parse(row, f"{name}, line {number}", i) for i, (number, row) in rows]


@dataclass(frozen=True)
class ParquetSource(Source):
    """A Parquet file, or all ``*.parquet`` files of a folder, in the order of their names."""

    @functools.cached_property
    def files(self) -> list[str]:
        folder = Path(self.where)
        if is_url(self.where) or not folder.is_dir():
            return [self.where]
        found = sorted(str(path) for path in folder.iterdir() if path.suffix in _PARQUET)
        if not found:
            raise InputError(f"{folder} has no Parquet files: expected names that end in .parquet")
        return found

    def blocks(self, size: int) -> list[Block]:
        """See `Source.blocks`; no block spans two row groups."""
        found: list[Block] = []
        first = 0
        for number, file in enumerate(self.files):
            with _opened(file) as parquet:
                _columns(file, parquet)
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

    def read(self, block: Block) -> list[Document]:
        file = self.files[block.file]
        rows = _row_group(file, block.group).slice(block.start, block.rows).to_pylist()
        return [
            self._parse(row, f"{shown(file)}, row {block.line + i}", block.first + i)
            for i, row in enumerate(rows)
        ]


def is_url(where: str) -> bool:
    """Whether a name is a URL rather than a path."""
    return "://" in where


def shown(where: str) -> str:
    """A path or URL as it may be printed and stored: without credentials."""
    if not is_url(where):
        return where
    parts = urlsplit(where)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def open_binary(where: str) -> IO[bytes]:
    """Open a file for reading; it is seekable."""
    opened: Any
    try:
        if not is_url(where):
            return Path(where).open("rb")
        scheme = urlsplit(where).scheme
        if scheme in _ARROW:
            system, path = require("pyarrow.fs", extra="parquet").FileSystem.from_uri(where)
            opened = io.BufferedReader(system.open_input_file(path))  # pyarrow's own file cannot read lines
        elif scheme in _FSSPEC:
            try:
                opened = require("fsspec", extra="parquet").open(where, "rb").open()
            except ImportError as error:
                raise MissingExtraError(
                    f"{scheme}:// needs aiohttp; install it with: pip install 'dewmark[parquet]'"
                ) from error
        else:
            known = ", ".join(f"{name}://" for name in (*_ARROW, *_FSSPEC))
            raise ConfigError(f"cannot read {shown(where)}: give a path or a URL ({known})")
        stream: IO[bytes] = opened
        return stream
    except InputError:
        raise
    except OSError as error:
        reason = error.strerror or (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"cannot read {shown(where)}: {reason.replace(where, shown(where))}") from None


def size_of(where: str) -> tuple[int, int]:
    """The size in bytes and, for a local file, the time of its last change."""
    if not is_url(where):
        try:
            found = Path(where).stat()
        except OSError as error:
            raise InputError(f"cannot read {where}: {error.strerror}") from None
        return found.st_size, found.st_mtime_ns
    with open_binary(where) as stream:
        return stream.seek(0, 2), 0


@contextlib.contextmanager
def _opened(file: str) -> Iterator[Any]:
    """A ``pyarrow.parquet.ParquetFile``; anything wrong with it raises `InputError`."""
    arrow = require("pyarrow", extra="parquet")
    parquet = require("pyarrow.parquet", extra="parquet")
    with open_binary(file) as stream:
        try:
            yield parquet.ParquetFile(stream)
        except InputError:
            raise
        except (arrow.ArrowException, OSError):
            raise InputError(f"{shown(file)} is not a Parquet file, or it is damaged") from None


@functools.lru_cache(maxsize=1)  # the next block is usually in the same row group
def _row_group(file: str, group: int) -> Any:  # noqa: ANN401 - pyarrow has no types
    with _opened(file) as parquet:
        return parquet.read_row_group(group, columns=_columns(file, parquet))


def _columns(file: str, parquet: Any) -> list[str]:  # noqa: ANN401 - pyarrow has no types
    known = parquet.schema_arrow.names
    if "text" not in known:
        raise InputError(f'{shown(file)} has no column "text"; it has: {", ".join(known)}')
    return [name for name in ("text", "prompt", "id") if name in known]
