"""Texts to be scored: files, standard input, JSONL. What is no text is refused with its place.

Collections of texts that are measured together: text files and JSONL, with languages where they are known.

A text that is empty or occurs twice is left out: counts and intervals hold for different texts only.
"""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import chain, islice
from pathlib import Path
from typing import Any

from dewmark import storage
from dewmark.errors import ConfigError, InputError
from dewmark.scheme import check_text

__all__ = [
    "Entry",
    "Item",
    "batched",
    "count_lines",
    "make_item",
    "openings",
    "read_entries",
    "read_files",
    "read_rows",
    "read_texts",
]


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


_FIELDS = ("text", "response")  # where a JSONL line may hold its text, the first that is there


@dataclass(frozen=True, slots=True)
class Entry:
    """One text. ``id`` and ``language`` are None where the file does not say."""

    text: str
    id: str | int | None = None
    prompt: str | None = None
    language: str | None = None


def openings(number: int, *, option: str) -> list[str]:
    """The first of the package's openings, as ``option`` asks for; any stretch of them mixes the genres."""
    file = resources.files("dewmark") / "data" / "openings.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    if number > len(lines):
        raise ConfigError(
            f"the package has {len(lines)} openings: {option} must not exceed that, got {number}"
        )
    return [json.loads(line)["prompt"] for line in lines[:number]]


def read_texts(names: Sequence[str]) -> list[Entry]:
    """The different texts of files: each line of a ``.jsonl`` file, any other file as a whole."""
    found: dict[str, Entry] = {}
    for name in names:
        if Path(name).suffix == ".jsonl":
            entries = read_entries(Path(name))
        else:
            entries = [Entry(item.text, item.id, item.prompt) for item in read_files([name], prompt=None)]
        for entry in entries:
            if entry.text.strip():
                found.setdefault(entry.text, entry)
    if not found:
        raise InputError("no texts: give text files or JSONL files with a text in each line")
    return list(found.values())


def read_entries(path: Path) -> list[Entry]:
    """All lines of a JSONL file: ``text`` (or ``response``); ``id``, ``prompt`` and ``language`` if there."""
    entries = list(_entries(path))
    if not entries:
        raise InputError(f"{path} is empty: it needs one JSON object with a text per line")
    return entries


def _entries(path: Path) -> Iterator[Entry]:
    for number, row in storage.read_jsonl(path):
        where = f"{path}, line {number}"
        field = next((name for name in _FIELDS if name in row), None)
        if field is None:
            raise InputError(f"{where} has no {' and no '.join(map(repr, _FIELDS))}")
        text = row[field]
        if not isinstance(text, str) or text.strip():
            check_text(text, f"{where}: {field}")
        name = row.get("id")
        if name is not None and (isinstance(name, bool) or not isinstance(name, str | int)):
            raise InputError(f"{where}: id must be text or a whole number, got {type(name).__name__}")
        yield Entry(text, name, _string(row, "prompt", where), _string(row, "language", where))


def _string(row: dict[str, Any], name: str, where: str) -> str | None:
    """A field that may be missing or empty, but must be text where it is there."""
    value = row.get(name)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    check_text(value, f"{where}: {name}")
    return str(value)
