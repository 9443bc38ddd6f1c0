"""Collections of texts that are measured together: text files and JSONL, with languages where they are known.

A text that is empty or occurs twice is left out: counts and intervals hold for different texts only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from dewmark import storage
from dewmark.cli.inputs import read_files
from dewmark.errors import ConfigError, InputError
from dewmark.scheme import check_text

__all__ = ["Entry", "openings", "read_entries", "read_texts"]

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
