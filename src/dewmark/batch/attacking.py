"""Attacks on rows of a file: what a row becomes, and a run over many rows that can be stopped at any byte.

Batches are fixed by the order of the rows. A finished batch is appended to the output; what a killed run left
of an unfinished one is cut off and made again, so the file ends up the same to the byte.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dewmark import storage
from dewmark.attacks.base import Attack, text_seed
from dewmark.errors import ConfigError, InputError, StorageError
from dewmark.workspace import Progress, silent

__all__ = ["attack_rows", "attacked_row", "row_seeds"]

Row = Mapping[str, Any]

_REMEDY = "give the options and texts of the run that wrote it, or another --out"


def row_seeds(rows: Sequence[Row], seed: int) -> list[int]:
    """The seed of each row's text: from the run's seed and the row's id, or its number where it has none."""
    return [text_seed(seed, row.get("id", index)) for index, row in enumerate(rows)]


def attacked_row(row: Row, text: str, *, attack: Mapping[str, object]) -> dict[str, Any]:
    """A row with its text replaced; ``attack`` says by what, and after which attack if there was one."""
    before = {"after": row["attack"]} if "attack" in row else {}
    return {
        **row,
        "text": text,
        "attack": {**attack, **before},
        "original_text": row.get("original_text", row["text"]),
    }


def attack_rows(
    attack: Attack,
    rows: Sequence[Row],
    out: Path,
    *,
    seed: int = 0,
    batch_size: int = 64,
    progress: Progress = silent,
) -> int:
    """Attack rows into a JSONL file, taking up what it holds; returns how many rows were there already.

    A file that another run wrote is refused untouched. Every row has a ``text``.
    """
    told = json.loads(json.dumps({**attack.identity(), "seed": seed}))  # as it reads in the file
    done = _resume(out, rows, told, batch_size)
    seeds = row_seeds(rows, seed)
    description = f"writing {out.name}"
    progress(description, done, len(rows))
    for start in range(done, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        made = attack.apply(
            [row["text"] for row in batch], seeds=seeds[start : start + batch_size], progress=progress
        )
        storage.append_jsonl(
            out, [attacked_row(row, text, attack=told) for row, text in zip(batch, made, strict=True)]
        )
        progress(description, start + len(batch), len(rows))
    return done


def _resume(out: Path, rows: Sequence[Row], attack: Mapping[str, object], batch_size: int) -> int:
    """Check what the file holds, cut it to whole batches, and say how many rows stay."""
    if out.exists() and not out.is_file():
        raise StorageError(f"cannot use {out}: it is no ordinary file, and a run must be able to resume")
    try:
        *lines, tail = out.read_bytes().split(b"\n")
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StorageError(f"cannot use {out}: {error.strerror}") from None
    for index, line in enumerate(lines):
        if index >= len(rows):
            raise ConfigError(f"{out}, line {index + 1}: there are only {len(rows)} texts: {_REMEDY}")
        _check(out, index, line, attacked_row(rows[index], "", attack=attack))
    if tail and not (len(lines) < len(rows) and _begins(tail, rows[len(lines)])):
        raise ConfigError(f"{out}, line {len(lines) + 1} was not written by this run: {_REMEDY}")
    done = len(lines) if len(lines) == len(rows) else len(lines) // batch_size * batch_size
    keep = sum(len(line) + 1 for line in lines[:done])
    if keep < out.stat().st_size:
        try:
            os.truncate(out, keep)
        except OSError as error:
            raise StorageError(f"cannot write {out}: {error.strerror}") from error
    return done


def _check(out: Path, index: int, line: bytes, expected: Row) -> None:
    where = f"{out}, line {index + 1}"
    try:
        found = json.loads(line.decode("utf-8"))
        text = found.pop("text")
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        raise InputError(f"{where} is no row of a run: {_REMEDY}") from None
    wanted = {name: value for name, value in expected.items() if name != "text"}
    if not isinstance(text, str) or found != wanted:
        other = next((name for name in wanted if found.get(name) != wanted[name]), "another field")
        raise ConfigError(f"{where} is not what this run would write ({other} differs): {_REMEDY}")


def _begins(tail: bytes, row: Row) -> bool:
    """Whether a line that a kill cut short begins as this row's: all up to its text is known."""
    known = dict(itertools.takewhile(lambda pair: pair[0] != "text", row.items()))
    head = json.dumps(known, ensure_ascii=False)[:-1].encode("utf-8", "backslashreplace")
    return tail[: len(head)] == head[: len(tail)]
