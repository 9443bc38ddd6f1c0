"""Where stages keep what they made: one folder per cell, named by the hash of all that decides its rows.

``WORK/<stage>/<hash>/`` holds ``inputs.json``, for people, and a JSONL file that grows batch by batch, each
flushed to the disk. After a kill at any byte the unfinished batch is cut off and made again; batches are
fixed by the order of the rows, so the file comes out the same. A cell's hash does not hold the number of its
rows: a run that asks for more goes on where the last one stopped, one that asks for fewer reads the first.

A writer holds the cell's lock, which the system lets go when the process dies: two runs in one folder wait
for each other, cell by cell.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark import config, storage
from dewmark.errors import ConfigError, StorageError
from dewmark.version import __version__

__all__ = ["Cell", "Row", "Rows", "write_rows"]

Row = dict[str, Any]
_FORMAT = 1


@dataclass(frozen=True)
class Cell:
    """A piece of work: its stage and everything that decides its rows, as plain JSON values."""

    stage: str
    inputs: Mapping[str, Any]

    @property
    def hash(self) -> str:
        """16 hex digits that two cells share only if they are the same work."""
        return config.config_hash(_FORMAT, __version__, self.stage, dict(self.inputs))

    def rows(self, work: Path) -> Rows:
        """The cell's file under a folder of cells."""
        return Rows(work / self.stage / self.hash / "rows.jsonl", self.inputs)


@dataclass(frozen=True)
class Rows:
    """A cell's JSONL file; it travels to other processes."""

    path: Path
    inputs: Mapping[str, Any]

    def count(self) -> int:
        """How many whole rows the file has."""
        try:
            with self.path.open("rb") as stream:
                return sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(1 << 20), b""))
        except FileNotFoundError:
            return 0

    def read(self, number: int) -> list[Row]:
        """The first ``number`` rows; all of them must be there."""
        try:
            with self.path.open("rb") as stream:
                rows: list[Row] = [json.loads(line) for line in itertools.islice(stream, number)]
        except FileNotFoundError:
            rows = []
        except ValueError:
            raise StorageError(f"{self.path} is damaged: delete it and run again") from None
        if len(rows) < number:
            raise ConfigError(
                f"{self.path} has {len(rows)} of {number} rows: run the stage {self.stage!r} first"
            )
        return rows

    @property
    def stage(self) -> str:
        """The stage that makes it."""
        return self.path.parents[1].name

    @contextlib.contextmanager
    def growing(self, number: int, *, batch: int) -> Iterator[Iterator[range]]:
        """Lock the cell and give the batches (ranges of rows) that are still to be made and appended.

        Only whole batches of an earlier run are kept, unless it had finished.
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
                with storage.atomic_write(folder / "inputs.json") as stream:
                    text = json.dumps(self.inputs, indent=1, ensure_ascii=False, sort_keys=True)
                    stream.write((text + "\n").encode())
            done = self._cut(number, batch)
            yield (range(start, min(start + batch, number)) for start in range(done, number, batch))
        finally:
            os.close(lock)

    def append(self, rows: Sequence[Row]) -> None:
        """Add a finished batch, flushed to the disk."""
        storage.append_jsonl(self.path, list(rows))

    def _cut(self, number: int, batch: int) -> int:
        """Cut off what is no whole batch; returns how many rows stay."""
        if not self.path.exists():
            return 0
        lines = self.path.read_bytes().split(b"\n")[:-1]
        if len(lines) >= number:
            return number
        done = len(lines) // batch * batch
        os.truncate(self.path, sum(len(line) + 1 for line in lines[:done]))
        return done


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """A whole JSONL file, atomically."""
    with storage.atomic_write(path) as stream:
        for row in rows:
            stream.write((json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))
