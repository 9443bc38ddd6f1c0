"""What stages produce and where it is stored: one folder per output, named by a hash of its inputs.

``WORK/<stage>/<hash>/`` holds ``inputs.json``, for people to read, and ``rows.jsonl``, which grows batch by
batch and is flushed after each one. If a run is killed, the unfinished batch is cut off and made again.
Batches depend only on the order of the rows, so the resumed file is identical. The number of rows is not part
of the hash: a run that asks for more rows continues the file, one that asks for fewer reads the first ones.

A writer locks the output's folder, and the system releases the lock when the process dies. Two runs that
share a work folder therefore wait for each other, one output at a time. Boundary: no weights are loaded here.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark import config, storage
from dewmark.errors import ConfigError, StorageError
from dewmark.version import __version__
from dewmark_audit.texts import Row

_FORMAT = 1


@dataclass(frozen=True)
class Output:
    """A stage's output in a work folder, as plain data; ``inputs`` determine its rows."""

    work: Path
    stage: str
    inputs: Mapping[str, Any]

    @functools.cached_property
    def hash(self) -> str:
        """16 hex digits that identify stage, inputs and package version."""
        return config.config_hash(_FORMAT, __version__, self.stage, dict(self.inputs))

    @property
    def path(self) -> Path:
        """The file of its rows."""
        return self.work / self.stage / self.hash / "rows.jsonl"

    def count(self) -> int:
        """How many complete rows the file has."""
        try:
            with self.path.open("rb") as stream:
                return sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(1 << 20), b""))
        except FileNotFoundError:
            return 0

    def read(self, number: int) -> list[Row]:
        """The first ``number`` rows; it is an error if there are fewer."""
        try:
            with self.path.open("rb") as stream:
                rows: list[Row] = [json.loads(line) for line in itertools.islice(stream, number)]
        except FileNotFoundError:
            rows = []
        except ValueError:
            raise StorageError(f"{self.path} is damaged: delete it and run again") from None
        if len(rows) < number:
            raise ConfigError(f"{self.path} has {len(rows)} of {number} rows: run stage {self.stage!r} first")
        return rows

    def fill(
        self,
        number: int,
        make: Callable[[range], Sequence[Row]],
        *,
        size: int,
        on_rows: Callable[[int], None] = lambda rows: None,
    ) -> None:
        """Make what is missing of the first ``number`` rows; ``on_rows`` gets the number of rows so far."""
        with self.missing_batches(number, size=size) as batches:
            for batch in batches:
                self.append(make(batch))
                on_rows(batch.stop)

    @contextlib.contextmanager
    def missing_batches(self, number: int, *, size: int) -> Iterator[Iterator[range]]:
        """Lock the file and yield the batches (ranges of rows) that the caller must make and `append`.

        An incomplete batch of an earlier run is discarded, unless that run had finished.
        """
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as error:
            raise StorageError(f"cannot write {folder}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "inputs.json").exists():
                write_json(folder / "inputs.json", dict(sorted(self.inputs.items())))
            yield storage.ResumableRows(self.path, number, batch_size=size).pending()
        finally:
            os.close(lock)

    def append(self, rows: Sequence[Row]) -> None:
        """Add a finished batch and flush it to disk."""
        storage.append_jsonl(self.path, list(rows))


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write a whole JSONL file atomically."""
    with storage.atomic_write(path) as stream:
        stream.write(storage.encode_jsonl(rows))


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file for people to read atomically."""
    with storage.atomic_write(path) as stream:
        stream.write((json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode())
