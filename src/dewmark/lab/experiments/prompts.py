"""What hosts continue, and what people wrote: texts by name or file, cut to a number of the host's tokens.

``openings`` are the package's own, ``openings-again`` most of them over and over, for a corpus that needs
more texts than there are openings; ``c4`` streams the validation part of C4 from the hub; anything else is a
JSONL file with ``prompt`` (or ``text``) in each line, and ``id`` where there is one.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path

from dewmark import storage
from dewmark.errors import ConfigError, InputError, ModelError
from dewmark.extras import require
from dewmark.lab.experiments.store import Row
from dewmark.workspace import Tokenizer

__all__ = [
    "AGAIN",
    "C4",
    "OPENINGS",
    "cut",
    "held_out",
    "human_texts",
    "openings",
    "prompt_texts",
    "source_identity",
]

OPENINGS, AGAIN, C4 = "openings", "openings-again", "c4"
_HELD_OUT = 100  # openings that a corpus of them all does without
_FIELDS = ("prompt", "text", "response")
_LEAST_WORDS = 30  # a person's text that is shorter is no match for a completion of 200 tokens


def openings() -> list[Row]:
    """The package's openings with their ids; any stretch of them mixes the genres."""
    file = resources.files("dewmark") / "data" / "openings.jsonl"
    rows = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    return [{"id": row["id"], "text": row["prompt"]} for row in rows]


def source_identity(source: str) -> str:
    """What a cell's hash says of the texts: names them, and a file by its contents."""
    if source in (OPENINGS, AGAIN, C4):
        return source
    return storage.sha256_file(_file(source))[:16]


def prompt_texts(source: str, number: int) -> list[Row]:
    """``number`` rows with ``id`` and ``text``, of which prompts are cut."""
    rows = list(itertools.islice(_stream(source), number))
    if len(rows) < number:
        raise ConfigError(
            f"{source} has {len(rows)} prompts: --texts must not exceed that, got {number}; "
            "or give a file of your own with --prompts"
        )
    return rows


def held_out(source: str, number: int, *, beside: int) -> list[Row]:
    """``number`` rows that are none of the first ``beside`` ones of a source."""
    if source != AGAIN:
        return prompt_texts(source, beside + number)[beside:]
    if number > _HELD_OUT:
        raise ConfigError(f"{_HELD_OUT} openings are held out: fewer texts than {number}, or --prompts FILE")
    return openings()[-number:]


def human_texts(file: str, tokenizer: Tokenizer, *, tokens: int, number: int) -> list[Row]:
    """The first different texts of people in a JSONL file, each cut to ``tokens`` tokens."""
    found: dict[str, Row] = {}
    for row in _file_rows(_file(file), ("text", "response")):
        if len(row["text"].split()) >= _LEAST_WORDS:
            found.setdefault(row["text"], row)
        if len(found) == number:
            break
    if not found:
        raise InputError(f"{file} holds no text of at least {_LEAST_WORDS} words: give longer ones")
    return cut(list(found.values()), tokenizer, tokens=tokens)


def cut(rows: list[Row], tokenizer: Tokenizer, *, tokens: int) -> list[Row]:
    """The rows with their texts cut after the first ``tokens`` tokens."""
    pieces = tokenizer.encode([row["text"] for row in rows])
    return [
        {**row, "text": piece.text[: piece.offsets[:tokens][-1][1]]}
        for row, piece in zip(rows, pieces, strict=True)
        if piece.offsets
    ]


def _stream(source: str) -> Iterable[Row]:
    if source == OPENINGS:
        return openings()
    if source == AGAIN:
        return _again()
    if source == C4:
        return _c4()
    return _file_rows(_file(source), _FIELDS)


def _again() -> Iterator[Row]:
    rows = openings()[:-_HELD_OUT]
    for turn in itertools.count():
        yield from ({**row, "id": f"{row['id']}/{turn}"} for row in rows)


def _c4() -> Iterator[Row]:
    datasets = require("datasets", extra="paper")
    try:
        stream = datasets.load_dataset("allenai/c4", "en", split="validation", streaming=True)
        for index, row in enumerate(stream):
            yield {"id": f"c4-{index}", "text": row["text"]}
    except (OSError, ValueError) as error:  # the library's own for no network, no such files
        reason = str(error).strip().splitlines()[0][:150]
        raise ModelError(
            f"cannot read C4 from the hub ({reason}): check the network, or give --prompts FILE.jsonl, or "
            "use --profile local"
        ) from None


def _file_rows(path: Path, fields: tuple[str, ...]) -> Iterator[Row]:
    for index, (number, row) in enumerate(storage.read_jsonl(path)):
        text = next((row[name] for name in fields if name in row), None)
        if not isinstance(text, str):
            raise InputError(f"{path}, line {number} has no {' or '.join(fields)} that is text")
        if text.strip():
            yield {"id": str(row.get("id", index)), "text": text.replace("\x00", " ")}


def _file(source: str) -> Path:
    path = Path(source).expanduser()
    if not path.is_file():
        raise InputError(f"there is no file {source}: give {OPENINGS}, {C4} or a JSONL file")
    return path
