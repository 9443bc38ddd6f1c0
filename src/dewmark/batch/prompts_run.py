"""A run over a file of prompts that can be stopped at any byte and resumed to the same result.

Batches are fixed by the order of the input, rows i·B … (i+1)·B − 1, and row i is drawn with seed S + i. A
finished batch is appended; what an interrupted run left of an unfinished one is cut off and made again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark import storage
from dewmark.errors import ConfigError, InputError, StorageError
from dewmark.types import Generation

__all__ = ["Prompt", "Run", "check_prompt", "read_prompts", "row"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One line of a prompts file."""

    id: str | int
    text: str


def check_prompt(text: object, where: str) -> str:
    """Refuse what cannot be continued: nothing, binary data, lone surrogates."""
    if not isinstance(text, str):
        raise InputError(f"{where} must be text, got {type(text).__name__}")
    if not text.strip():
        raise InputError(f"{where} is empty: give the model some words to continue")
    if "\x00" in text:
        raise InputError(f"{where} holds a NUL character at {text.index(chr(0))}: give plain text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where} holds a lone surrogate at character {error.start}: give proper Unicode"
        ) from None
    return text


def read_prompts(path: Path) -> list[Prompt]:
    """All prompts of a JSONL file with ``prompt`` and, if wanted, ``id``; every line is checked at once."""
    prompts: list[Prompt] = []
    for number, line in storage.read_jsonl(path):
        where = f"{path}, line {number}"
        if "prompt" not in line:
            raise InputError(f'{where} has no "prompt"')
        name = line.get("id")
        if name is None:
            name = str(len(prompts))
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise InputError(f"{where}: id must be text or a whole number, got {json.dumps(name)}")
        prompts.append(Prompt(name, check_prompt(line["prompt"], f"{where}: prompt")))
    if not prompts:
        raise InputError(f"{path} holds no prompts: it needs one JSON object with a prompt per line")
    return prompts


def row(name: str | int, generation: Generation) -> dict[str, Any]:
    """What is written of one completion; never the key."""
    drafts = {} if generation.drafts is None else {"drafts": generation.drafts.to_dict()}
    return {
        "id": name,
        "prompt": generation.prompt,
        "text": generation.text,
        "tokens": generation.tokens,
        "seed": generation.seed,
        "scheme": generation.scheme,
        "config_hash": generation.config_hash,
        **drafts,
    }


@dataclass
class Run:
    """An output file and how far it is. ``seed`` is row 0's seed; ``done`` counts finished rows."""

    out: Path
    prompts: Sequence[Prompt]
    batch_size: int
    seed: int
    config_hash: str
    done: int = 0

    @classmethod
    def open(
        cls,
        out: Path,
        prompts: Sequence[Prompt],
        *,
        batch_size: int,
        seed: int | None,
        fresh_seed: int,
        config_hash: str,
    ) -> Run:
        """Start a run, or take up the one that ``out`` holds; a file of another run is refused untouched.

        ``seed`` is the one the user asked for; without it the file's own is taken up, else ``fresh_seed``.
        """
        run = cls(out, prompts, batch_size, fresh_seed if seed is None else seed, config_hash)
        lines, tail = _read_lines(out)
        if lines and seed is None:
            run.seed = run._parse(lines[0], 0).get("seed", fresh_seed)
        for index, line in enumerate(lines):
            run._check(run._parse(line, index), index)
        run._check_tail(tail, len(lines))
        run.done = len(lines) if len(lines) == len(prompts) else len(lines) // batch_size * batch_size
        keep = sum(len(line) + 1 for line in lines[: run.done])
        if out.exists() and keep < out.stat().st_size:
            try:
                os.truncate(out, keep)
            except OSError as error:
                raise StorageError(f"cannot write {out}: {error.strerror}") from error
        return run

    def batches(self) -> Iterator[tuple[Sequence[Prompt], list[int]]]:
        """The (prompts, seeds) of each batch that is still to be made."""
        for start in range(self.done, len(self.prompts), self.batch_size):
            batch = self.prompts[start : start + self.batch_size]
            yield batch, [self.seed + start + i for i in range(len(batch))]

    def append(self, batch: Sequence[Prompt], generations: Sequence[Generation]) -> None:
        """Write a finished batch, flushed to the disk."""
        rows = [row(prompt.id, made) for prompt, made in zip(batch, generations, strict=True)]
        storage.append_jsonl(self.out, rows)
        self.done += len(rows)

    def _parse(self, line: bytes, index: int) -> dict[str, Any]:
        try:
            parsed = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise InputError(f"{self.out}, line {index + 1} is no row of a run: {_REMEDY}")
        return parsed

    def _check(self, parsed: dict[str, Any], index: int) -> None:
        where = f"{self.out}, line {index + 1}"
        found = parsed.get("config_hash")
        if found != self.config_hash:
            raise ConfigError(
                f"{where} was written with config {found}, this run has {self.config_hash}: {_REMEDY}"
            )
        if index >= len(self.prompts):
            raise ConfigError(f"{where}: the prompts file has only {len(self.prompts)} rows: {_REMEDY}")
        wanted = self.prompts[index]
        if parsed.get("id") != wanted.id or parsed.get("prompt") != wanted.text:
            raise ConfigError(
                f"{where} (id {parsed.get('id')!r}) is not the prompts file's row {wanted.id!r}: {_REMEDY}"
            )
        if parsed.get("seed") != self.seed + index:
            raise ConfigError(
                f"{where} has seed {parsed.get('seed')}, this run would use {self.seed + index}: {_REMEDY}"
            )

    def _check_tail(self, tail: bytes, index: int) -> None:
        """A line that a kill cut short is the beginning of the next row, or it is somebody else's."""
        if not tail:
            return
        if index < len(self.prompts):
            prompt = self.prompts[index]
            head = json.dumps({"id": prompt.id, "prompt": prompt.text}, ensure_ascii=False)[:-1].encode()
            if tail[: len(head)] == head[: len(tail)]:
                return
        raise ConfigError(f"{self.out}, line {index + 1} was not written by this run: {_REMEDY}")


_REMEDY = "give the options and prompts of the run that wrote it, or another --out"


def _read_lines(path: Path) -> tuple[list[bytes], bytes]:
    """The whole lines of a file, and what follows the last of them."""
    if path.exists() and not path.is_file():
        raise StorageError(f"cannot use {path}: it is no ordinary file, and a run must be able to resume")
    try:
        *lines, tail = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], b""
    except OSError as error:
        raise StorageError(f"cannot use {path}: {error.strerror}") from None
    return lines, tail
