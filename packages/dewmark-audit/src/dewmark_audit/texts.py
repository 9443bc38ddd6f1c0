"""Texts to measure on: prompts and texts that the package carries, those of files, and their beginnings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from dewmark import storage
from dewmark.batch import Document, read_files
from dewmark.batch.inputs import parse_text_row
from dewmark.errors import ConfigError, InputError
from dewmark.workspace import Tokenizer

Row = dict[str, Any]


def package_file(name: str) -> Path:
    """A text file that the package carries, such as ``human.txt`` or ``ordinary/de.txt``."""
    return Path(str(resources.files("dewmark"))) / "data" / name


def openings() -> list[Row]:
    """The package's openings (``id``, ``text``); any contiguous range mixes the genres."""
    file = package_file("openings.jsonl")
    rows = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    return [{"id": row["id"], "text": row["prompt"]} for row in rows]


def requests(language: str = "en", *, split: str | None = None) -> list[Row]:
    """The package's requests to a chat model (``id``, ``text``, ``kind``) in a language.

    Any contiguous range mixes the kinds. ``split`` is ``eval`` for measuring or ``train`` for choosing
    settings and training; without it come both, ``eval`` first.
    """
    file = package_file("requests.jsonl")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    chosen = [row for row in rows if row["language"] == language and split in (None, row["split"])]
    if not chosen:
        known = ", ".join(sorted({row["language"] for row in rows}))
        raise ConfigError(f"there are no requests in {language!r} (split {split}): languages are {known}")
    chosen.sort(key=lambda row: row["split"] != "eval")
    return [{"id": row["id"], "text": row["prompt"], "kind": row["kind"]} for row in chosen]


def first_tokens(texts: Sequence[str], tokenizer: Tokenizer, *, tokens: int) -> list[str]:
    """Each text up to the end of its first ``tokens`` tokens."""
    pieces = tokenizer.encode(texts)
    return [piece.text[: max((end for _, end in piece.offsets[:tokens]), default=0)] for piece in pieces]


def read_corpus(names: Sequence[str]) -> list[Document]:
    """The distinct, non-blank texts of files: each line of a ``.jsonl`` file, any other file as a whole.

    Duplicates are dropped because counts and confidence intervals hold for distinct texts only.
    """
    found: dict[str, Document] = {}
    for name in names:
        documents = read_documents(Path(name)) if Path(name).suffix == ".jsonl" else read_files([name])
        for document in documents:
            if document.text.strip():
                found.setdefault(document.text, document)
    if not found:
        raise InputError("no texts: give text files or JSONL files with a text on each line")
    return list(found.values())


def read_documents(path: Path) -> list[Document]:
    """All lines of a JSONL file; see `parse_text_row`."""
    documents = [parse_text_row(row, f"{path}, line {number}") for number, row in storage.read_jsonl(path)]
    if not documents:
        raise InputError(f"{path} is empty: it needs one JSON object with a text per line")
    return documents
