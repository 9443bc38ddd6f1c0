"""Commands of the command line, run in this process, and the files that they write."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from tests.golden.api.worlds import Json

from dewmark.cli.app import main as command_line
from dewmark.hosts.fake import tiny_model
from dewmark_lab.evaluation.results import read_scores


def tiny_folder(folder: Path) -> Path:
    """A tiny model saved to a folder, which commands load as any host."""
    if not folder.exists():
        model, tokenizer = tiny_model()
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    return folder


def command(*arguments: object) -> str:
    """What a command prints; it must succeed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command_line([str(argument) for argument in arguments])
    if code != 0:
        raise RuntimeError(f"the command {arguments[0]} failed with {code}: {err.getvalue()}")
    return out.getvalue()


def score_columns(path: Path) -> dict[str, Json]:
    """The rows of a file of scores as columns."""
    rows = read_scores(path)
    return {
        "ids": [Path(row.id).name for row in rows],  # a row without an id is named by its file
        "seeds": [row.seed for row in rows],
        "scores": [row.score for row in rows],
        "p": [row.p_value for row in rows],
        "tokens": [row.tokens for row in rows],
        "kept": [row.kept for row in rows],
    }


def csv_numbers(path: Path) -> list[list[float]]:
    """The numbers in each row of a CSV file."""
    number = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
    with path.open(encoding="utf-8", newline="") as stream:
        return [
            [float(found) for cell in row for found in number.findall(cell)] for row in csv.reader(stream)
        ]


EXPERIMENT_MARKS = {
    "the paper's": "dew-paper-2.0",
    "the default": "dew-default",
    "kgw": "kgw",
    "waterpool": "waterpool",
}
"""Rows of the main table, as its recipe calls them."""


def reproduce(folder: Path, out: Path, marks: Sequence[str], *, texts: int, tokens: int) -> None:
    """The main table on a tiny host: two seeds, one attack."""
    host = tiny_folder(folder / "host")
    command(
        *("reproduce", "main", "--host", host, "--judge", host, "--texts", texts, "--seeds", 2),
        *("--keys", "per-seed"),
        *("--tokens", tokens, "--batch-size", texts, "--attacks", "delete-0.3", "--out", out, "-q"),
        *("--schemes", ",".join(EXPERIMENT_MARKS[mark] for mark in marks)),
    )
