"""The prompts and texts that the package carries, and the beginnings of texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from dewmark.errors import ConfigError
from dewmark.workspace import Tokenizer

__all__ = ["Row", "first_tokens", "openings", "package_file", "requests"]

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
