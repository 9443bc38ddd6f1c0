"""Texts to be scored: files, standard input, JSONL. What is no text is refused with its place."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from dewmark import storage
from dewmark.errors import InputError
from dewmark.scheme import check_text

__all__ = ["Item", "batched", "count_lines", "make_item", "read_files", "read_rows"]


@dataclass(frozen=True, slots=True)
class Item:
    """One text with its name and, if known, the prompt that it continues and the group it belongs to."""

    id: str | int
    text: str
    prompt: str | None
    group: str | None = None


def read_files(names: Sequence[str], *, prompt: str | None) -> list[Item]:
    """Read text files as UTF-8; ``-`` is standard input."""
    return [
        Item(name, _decode(_read(name), "standard input" if name == "-" else name), prompt) for name in names
    ]


def read_rows(path: Path, *, prompt: str | None, by: str | None = None) -> Iterator[Item]:
    """Read ``text``, and ``prompt`` and ``id`` if present, from each line of a JSONL file.

    ``by`` names the field that holds a text's group; every line must then have it. The first line is read at
    once, so that a wrong file is told before models are loaded. A blank text is passed on: an empty
    completion is a row of its file like any other.
    """
    rows = _rows(path, prompt, by)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{path} is empty: there is nothing to score")
    return chain((first,), rows)


def _rows(path: Path, prompt: str | None, by: str | None) -> Iterator[Item]:
    for index, (number, row) in enumerate(storage.read_jsonl(path)):
        yield make_item(row, f"{path}, line {number}", index=index, prompt=prompt, by=by)


def make_item(row: Mapping[str, Any], where: str, *, index: int, prompt: str | None, by: str | None) -> Item:
    """The text of one row; ``index``, its place, is its name if it has none."""
    if "text" not in row:
        raise InputError(f'{where} has no "text"')
    text, context, name = row["text"], row.get("prompt"), row.get("id")
    if not isinstance(text, str) or text.strip():
        check_text(text, f"{where}: text")
    if context is not None and not isinstance(context, str):
        raise InputError(f"{where}: prompt must be text, got {type(context).__name__}")
    if context and context.strip():
        check_text(context, f"{where}: prompt")
    if name is None or isinstance(name, bool) or not isinstance(name, str | int):
        name = str(index)
    group = None if by is None else _group(row, by, where)
    return Item(name, text, prompt if context is None else context, group)


def _group(row: Mapping[str, Any], by: str, where: str) -> str:
    if by not in row:
        raise InputError(f'{where} has no "{by}"')
    group = row[by]
    if isinstance(group, bool) or not isinstance(group, str | int):
        raise InputError(f"{where}: {by} must be text or a whole number, got {type(group).__name__}")
    return str(group)


def count_lines(path: Path) -> int:
    """How many lines a file has, for a progress bar; 0 where it cannot be read twice."""
    if not path.is_file():
        return 0
    with path.open("rb") as stream:
        return sum(1 for line in stream if line.strip())


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Cut a stream of texts into batches."""
    stream = iter(items)
    while batch := list(islice(stream, size)):
        yield batch


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}") from None


def _decode(data: bytes, name: str) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(f"{name} is UTF-16: convert it first, e.g. iconv -f UTF-16 -t UTF-8 {name}")
    data = data.removeprefix(codecs.BOM_UTF8)
    if (nul := data.find(b"\x00")) >= 0:
        raise InputError(f"{name} is not text: NUL at byte {nul}; give plain UTF-8 text")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8 text: 0x{data[error.start]:02x} at byte {error.start}; convert it first"
        ) from None
    if not text.strip():
        raise InputError(f"{name} is empty: there is nothing to score")
    return text
