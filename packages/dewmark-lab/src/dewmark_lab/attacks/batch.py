"""Attacks on the texts of a file: `attack_file`.

A run that was stopped at any byte resumes to the same file (`dewmark.storage.ResumableRows`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark.errors import ConfigError
from dewmark.storage import ResumableRows, read_jsonl
from dewmark.workspace import Progress, silent
from dewmark_audit.texts import read_documents
from dewmark_lab.attacks.base import Attack, text_seed

Row = Mapping[str, Any]


@dataclass(frozen=True)
class AttackResult:
    """What a run wrote: ``rows`` in all, of which ``resumed_from`` were there before."""

    out: Path
    rows: int
    resumed_from: int


def attack_file(
    source: str | Path | Sequence[Row],
    out: str | Path,
    attack: Attack,
    *,
    seed: int = 0,
    batch_size: int = 64,
    progress: Progress = silent,
) -> AttackResult:
    """Attack the text of each row of a JSONL file into a JSONL file; a stopped run is resumed.

    Rows keep their other fields. A file that another run wrote is rejected, and left untouched.
    """
    out = Path(out)
    if isinstance(source, str | Path):
        if out.exists() and out.samefile(source):
            raise ConfigError(f"the output is the input file {source} itself: choose another name")
        source = read_attack_rows(Path(source))
    rows, seeds = source, row_seeds(source, seed)
    identity = {**attack.identity(), "seed": seed}

    def expected(i: int) -> dict[str, Any]:
        return attacked_row(rows[i], ..., attack=identity)

    file = ResumableRows(out, len(rows), batch_size=batch_size, expected=expected)
    resumed_from = file.done
    description = f"writing {out.name}"
    progress(description, file.done, file.total)
    for batch in file.pending():
        given, own = [rows[i] for i in batch], [seeds[i] for i in batch]
        texts = attack.apply([row["text"] for row in given], seeds=own, progress=progress)
        pairs = zip(given, texts, strict=True)
        file.append([attacked_row(row, text, attack=identity) for row, text in pairs])
        progress(description, file.done, file.total)
    return AttackResult(out, file.total, resumed_from)


def read_attack_rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a JSONL file with all their fields; every text is checked before the first is attacked."""
    read_documents(path)
    return [row for _, row in read_jsonl(path)]


def row_seeds(rows: Sequence[Row], seed: int) -> list[int]:
    """The seed of each row's text, from the run's seed and the row's id (its index if it has none)."""
    return [text_seed(seed, row.get("id", index)) for index, row in enumerate(rows)]


def attacked_row(row: Row, text: object, *, attack: Mapping[str, object]) -> dict[str, Any]:
    """A row with its text replaced; ``attack`` describes the attack, which may follow an earlier one."""
    earlier = {"after": row["attack"]} if "attack" in row else {}
    return {
        **row,
        "text": text,
        "attack": {**attack, **earlier},
        "original_text": row.get("original_text", row["text"]),
    }
