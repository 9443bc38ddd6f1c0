"""Texts and prompts from files: plain text, standard input, JSONL. Errors name the file and the line.

Parquet, URLs and files that are too large for memory are read by `dewmark.batch.sources`.
"""

from __future__ import annotations

import codecs
import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from dewmark import storage
from dewmark.errors import InputError
from dewmark.scheme import check_text

if TYPE_CHECKING:
    from dewmark.hosts.base import Conversation

__all__ = [
    "Document",
    "as_request",
    "parse_text_row",
    "warn_json_lines",
    "warn_other_scheme",
]


@dataclass(frozen=True, slots=True)
class Document:
    """A text and what its row or file says of it; None where it says nothing.

    ``prompt`` is what the text continues, ``scheme`` the one that marked it.
    """

    text: str
    id: str | int | None = None
    prompt: str | None = None
    language: str | None = None
    kind: str | None = None
    scheme: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One line of a prompts file: a text to continue, or, with ``messages``, a conversation to answer.

    The text of a conversation is its last message.
    """

    id: str | int
    text: str
    messages: Conversation | None = None


def read_files(names: Sequence[str], *, prompt: str | None = None) -> list[Document]:
    """Read text files as UTF-8, each as one text; ``-`` is standard input."""
    documents = []
    for file in names:
        data, name = _read(file), "standard input" if file == "-" else file
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise InputError(f"{name} is UTF-16: convert it first, e.g. iconv -f UTF-16 -t UTF-8 {name}")
        data = data.removeprefix(codecs.BOM_UTF8)
        if data.startswith(b"PK\x03\x04"):
            raise InputError(f"{name} is an archive, such as a Word document: save its text as a .txt file")
        if (nul := data.find(b"\x00")) >= 0:
            raise InputError(f"{name} is not text: NUL at byte {nul}; give plain UTF-8 text")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            wrong = f"0x{data[error.start]:02x} at byte {error.start}"
            raise InputError(f"{name} is not UTF-8 text: {wrong}; convert it first") from None
        if not text.strip():
            raise InputError(f"{name} is empty: there is nothing to score")
        documents.append(Document(text, file, prompt))
    return documents


def warn_json_lines(documents: Iterable[Document]) -> None:
    """Warn of text files that look like JSON Lines, since each is scored as one text."""
    for document in documents:
        try:
            row = json.loads(document.text.lstrip().partition("\n")[0])
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and ("text" in row or "response" in row):
            warnings.warn(
                f"{document.id} looks like JSON Lines, and is scored as one text: to score every line, "
                "add --jsonl before its name",
                stacklevel=2,
            )


def parse_text_row(
    row: Mapping[str, Any], where: str, *, index: int | None = None, prompt: str | None = None
) -> Document:
    """One row of a file, which ``where`` locates in errors; ``text`` may also be called ``response``.

    A row without an id is named by its ``index``, and ``prompt`` is the default for one without a prompt.
    Blank texts are kept: an empty completion is a row like any other.
    """
    field = next((name for name in ("text", "response") if name in row), None)
    if field is None:
        raise InputError(f'{where} has no "text" and no "response"')
    name = row.get("id")
    if name is not None and not _is_name(name):
        raise InputError(f"{where}: id must be text or a whole number, got {type(name).__name__}")
    if name is None and index is not None:
        name = str(index)
    told = {each: row.get(each) for each in ("prompt", "language", "kind")}
    for each, value in {field: row[field], **told}.items():
        blank = isinstance(value, str) and not value.strip()
        if not blank and (value is not None or each == field):
            check_text(value, f"{where}: {each}")
    own = told["prompt"]
    language, kind = (told[each] or None for each in ("language", "kind"))
    scheme = row["scheme"] if isinstance(row.get("scheme"), str) else None
    return Document(row[field], name, prompt if own is None else own, language, kind, scheme)


def warn_other_scheme(rows: Iterable[Document], *schemes: str) -> None:
    """Warn if a row says that another scheme marked its text than those that look for a mark."""
    other = next((row for row in rows if row.scheme not in (None, "none", *schemes)), None)
    if other is not None:
        warnings.warn(
            f"row {other.id} was marked by {other.scheme}, and {', '.join(schemes)} will not find that mark: "
            f"add --scheme {other.scheme}",
            stacklevel=2,
        )


def read_prompts(path: Path, *, chat: bool | None = None) -> list[Prompt]:
    """All lines of a JSONL file with a ``prompt`` or ``messages`` and optionally an ``id`` per line.

    In a chat file every line is a conversation, a ``prompt`` being one message of the user's. ``chat=None``
    takes the file for one if its first line has messages.
    """
    prompts: list[Prompt] = []
    for number, row in storage.read_jsonl(path):
        where = f"{path}, line {number}"
        chat = "messages" in row if chat is None else chat
        name = row.get("id")
        if name is None:
            name = str(len(prompts))
        if not _is_name(name):
            raise InputError(f"{where}: id must be text or a whole number, got {type(name).__name__}")
        if chat and "messages" in row:
            from dewmark.hosts.base import check_conversation

            messages = check_conversation(row["messages"], f"{where}: messages")
            prompts.append(Prompt(name, messages[-1]["content"], messages))
            continue
        if "prompt" not in row:
            remedy = ", only messages, which need --chat" if "messages" in row else ""
            raise InputError(f'{where} has no "prompt"{remedy}')
        text = check_prompt(row["prompt"], f"{where}: prompt")
        prompts.append(Prompt(name, text, as_request(text) if chat else None))
    if not prompts:
        raise InputError(f"{path} has no prompts: it needs one JSON object with a prompt per line")
    return prompts


def as_request(text: str) -> Conversation:
    """A text as a conversation of one message, the user's."""
    return [{"role": "user", "content": text}]


def check_prompt(text: Any, what: str) -> str:  # noqa: ANN401 - any JSON value
    """Raise `InputError` unless ``text`` is a prompt that a model can continue."""
    if isinstance(text, str) and not text.strip():
        raise InputError(f"{what} is empty: give the model some words to continue")
    check_text(text, what)
    return str(text)


def batched(rows: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """Split a stream of texts into batches."""
    stream = iter(rows)
    while batch := list(islice(stream, size)):
        yield batch


def _is_name(value: object) -> TypeGuard[str | int]:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}") from None
