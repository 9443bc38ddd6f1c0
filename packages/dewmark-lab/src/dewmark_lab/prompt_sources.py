"""Prompts and human-written texts, from the package or from files, truncated to a number of tokens.

Sources of prompts: ``openings`` are the package's own, and ``requests`` its own requests to a chat model;
``openings-again`` repeats most of them with other ids, for a corpus larger than their number; ``c4`` streams
the validation split of C4 from the hub. Anything else is a JSONL file with a ``prompt`` (or ``text``) and
optionally an ``id`` per line.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from dewmark import storage
from dewmark.errors import ConfigError, InputError, ModelError
from dewmark.extras import require
from dewmark.workspace import Tokenizer
from dewmark_audit.texts import Row, first_tokens, openings, requests

OPENINGS, AGAIN, C4, REQUESTS = "openings", "openings-again", "c4", "requests"
_HELD_OUT = 100  # openings that `AGAIN` never uses
_FIELDS = ("prompt", "text", "response")
_MIN_WORDS = 30  # a shorter human-written text cannot be compared with a completion of 200 tokens


def source_identity(source: str) -> str:
    """A string that identifies the texts of a source: its name, or a hash of the file's contents."""
    if source in (OPENINGS, AGAIN, C4, REQUESTS):
        return source
    return storage.sha256_file(_file(source))[:16]


def prompt_texts(source: str, number: int) -> list[Row]:
    """The first ``number`` rows (``id``, ``text``) of a source; prompts are their first tokens."""
    rows = list(itertools.islice(_stream(source), number))
    if len(rows) < number:
        raise ConfigError(
            f"{source} has {len(rows)} prompts: --texts must not exceed that, got {number}; "
            "or give a file of your own with --prompts"
        )
    return rows


def held_out(source: str, number: int, *, beside: int) -> list[Row]:
    """``number`` rows of a source that are not among its first ``beside``."""
    if source != AGAIN:
        return prompt_texts(source, beside + number)[beside:]
    if number > _HELD_OUT:
        raise ConfigError(f"only {_HELD_OUT} openings are held out, got {number}: use fewer or --prompts")
    return openings()[-number:]


def human_texts(file: str, tokenizer: Tokenizer, *, tokens: int, number: int) -> list[Row]:
    """The first ``number`` distinct human-written texts of a JSONL file, truncated to ``tokens`` tokens."""
    found: dict[str, Row] = {}
    for row in _file_rows(_file(file), ("text", "response")):
        if len(row["text"].split()) >= _MIN_WORDS:
            found.setdefault(row["text"], row)
        if len(found) == number:
            break
    if not found:
        raise InputError(f"{file} has no text of at least {_MIN_WORDS} words: use longer texts")
    return truncate(list(found.values()), tokenizer, tokens=tokens)


def truncate(rows: list[Row], tokenizer: Tokenizer, *, tokens: int) -> list[Row]:
    """The rows with their texts truncated to ``tokens`` tokens; rows without any token are dropped."""
    texts = first_tokens([row["text"] for row in rows], tokenizer, tokens=tokens)
    return [{**row, "text": text} for row, text in zip(rows, texts, strict=True) if text]


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, with or without a byte-order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}): convert it first") from None


def _stream(source: str) -> Iterable[Row]:
    own = {OPENINGS: openings, REQUESTS: requests, AGAIN: _repeated_openings, C4: _c4}
    return own[source]() if source in own else _file_rows(_file(source), _FIELDS)


def _repeated_openings() -> Iterator[Row]:
    rows = openings()[:-_HELD_OUT]
    for turn in itertools.count():
        yield from ({**row, "id": f"{row['id']}/{turn}"} for row in rows)


def _c4() -> Iterator[Row]:
    datasets = require("datasets", extra="paper", package="dewmark-lab")
    try:
        stream = datasets.load_dataset("allenai/c4", "en", split="validation", streaming=True)
        for index, row in enumerate(stream):
            yield {"id": f"c4-{index}", "text": row["text"]}
    except (OSError, ValueError) as error:  # what the library raises without a network or without the files
        reason = str(error).strip().splitlines()[0][:150]
        raise ModelError(
            f"cannot read C4 from the hub ({reason}): check the network, give --prompts FILE.jsonl, or "
            "use --profile local"
        ) from None


def _file_rows(path: Path, fields: tuple[str, ...]) -> Iterator[Row]:
    for index, (number, row) in enumerate(storage.read_jsonl(path)):
        text = next((row[name] for name in fields if name in row), None)
        if not isinstance(text, str):
            raise InputError(f"{path}, line {number}: {' or '.join(fields)} must be a string")
        if text.strip():
            yield {"id": str(row.get("id", index)), "text": text}


def _file(source: str) -> Path:
    path = Path(source).expanduser()
    if not path.is_file():
        raise InputError(f"there is no file {source}: give {OPENINGS}, {REQUESTS}, {C4} or a JSONL file")
    return path
