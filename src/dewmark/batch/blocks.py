"""A run over blocks that can be stopped at any moment and goes on where it was.

Each finished block is a file of rows in ``OUT.parts``, written whole or not at all. When all are there,
``OUT`` is made from them in the order of the input, and the folder is deleted. Blocks finish in any order.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from dewmark import storage
from dewmark.errors import ConfigError, StorageError
from dewmark.extras import require
from dewmark.types import Verdict

__all__ = ["BlockRun", "Sum", "check_out"]

_WHOLE = {"tokens_scored", "keys"}
_WORDS = {"verdict", "test", "scheme", "key_fingerprint", "key_file"}
Row = dict[str, Any]


def check_out(out: Path) -> None:
    """Refuse a name whose format is not known, before anything is scored."""
    if out.suffix == ".parquet":
        require("pyarrow.parquet", extra="parquet")
    elif out.suffix != ".jsonl":
        raise ConfigError(f"--out {out} must end in .parquet or .jsonl")


class Sum:
    """What is said of all rows together: how many, how many marked, their p-values after the correction."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self.rows = self.marked = 0
        self.whole_ids = True
        p_values = array("d")  # of the texts that are long enough for a verdict
        for row in rows:
            self.rows += 1
            self.marked += row["verdict"] == Verdict.MARKED.value
            self.whole_ids &= isinstance(row["id"], int)
            if row["verdict"] != Verdict.TOO_SHORT.value:
                p_values.append(row["p_value"])
        self.adjusted: Sequence[float] = []
        if p_values:
            from dewmark.stats.multiple_testing import benjamini_hochberg

            self.adjusted = benjamini_hochberg(p_values).tolist()


class BlockRun:
    """An output and the blocks of it that are finished. ``sizes`` are the numbers of rows of all blocks."""

    def __init__(self, out: Path, sizes: Sequence[int], identity: Mapping[str, object]) -> None:
        """Begin a run, or take up the one that the folder holds; that of another run is refused untouched."""
        self.out, self.sizes = out, sizes
        self._parts = out.with_name(f"{out.name}.parts")
        index = self._parts / "run.json"
        wanted = json.loads(json.dumps({**identity, "blocks": len(sizes)}))
        if index.exists():
            found = json.loads(index.read_text(encoding="utf-8"))
            other = sorted(
                name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)
            )
            if other:
                raise ConfigError(
                    f"{self._parts} holds a run with another {', '.join(other)}: give its options again, "
                    "delete the folder, or choose another --out"
                )
        elif out.exists():
            raise StorageError(f"{out} exists already and is not overwritten; choose another name")
        else:
            with storage.atomic_write(index) as stream:
                stream.write(json.dumps(wanted, indent=1).encode())
        self.pending = [block for block in range(len(sizes)) if not self._part(block).exists()]

    def keep(self, block: int, rows: Sequence[Row]) -> None:
        """Store a finished block."""
        if len(rows) != self.sizes[block]:
            raise StorageError(f"block {block} gave {len(rows)} rows for {self.sizes[block]} texts")
        with storage.atomic_write(self._part(block)) as stream:
            stream.write(storage.encode_jsonl(rows))

    def finish(self, *, adjust: bool) -> Sum:
        """Write ``out``; ``adjust`` gives each row its p-value after Benjamini-Hochberg."""
        total = Sum(row for block in range(len(self.sizes)) for row in self._rows(block))
        if total.rows != sum(self.sizes):
            raise StorageError(
                f"{self._parts} holds {total.rows} rows for {sum(self.sizes)} texts: delete it"
            )
        values = iter(total.adjusted)
        with storage.atomic_write(self.out) as stream:
            writer = _parquet(stream, total) if self.out.suffix == ".parquet" else _jsonl(stream)
            with writer as write:
                for block in range(len(self.sizes)):
                    rows = list(self._rows(block))
                    if adjust:
                        for row in rows:
                            short = row["verdict"] == Verdict.TOO_SHORT.value
                            row["p_adjusted"] = None if short else next(values)
                    write(rows)
        shutil.rmtree(self._parts, ignore_errors=True)
        return total

    def _part(self, block: int) -> Path:
        return self._parts / f"{block:06d}.jsonl"

    def _rows(self, block: int) -> Iterator[Row]:
        return (row for _, row in storage.read_jsonl(self._part(block)))


@contextlib.contextmanager
def _jsonl(stream: IO[bytes]) -> Iterator[Any]:
    yield lambda rows: stream.write(storage.encode_jsonl(rows))


@contextlib.contextmanager
def _parquet(stream: IO[bytes], total: Sum) -> Iterator[Any]:
    arrow = require("pyarrow", extra="parquet")
    parquet = require("pyarrow.parquet", extra="parquet")
    opened: list[Any] = []

    def write(rows: list[Row]) -> None:
        if total.whole_ids is False:  # a column has one type
            for row in rows:
                row["id"] = str(row["id"])
        if not opened:
            schema = arrow.schema([(name, _type(name, total, arrow)) for name in rows[0]])
            opened.append(parquet.ParquetWriter(stream, schema))
        opened[0].write_table(arrow.Table.from_pylist(rows, schema=opened[0].schema))

    yield write
    opened[0].close()


def _type(name: str, total: Sum, arrow: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    if name == "id":
        return arrow.int64() if total.whole_ids else arrow.string()
    if name == "tokens":
        offsets = [(field, arrow.int64()) for field in ("start", "end")]
        rest = [("score", arrow.float64()), ("scored", arrow.bool_())]
        return arrow.list_(arrow.struct([("text", arrow.string()), *offsets, *rest]))
    if name in _WORDS:
        return arrow.string()
    return arrow.int64() if name in _WHOLE else arrow.float64()
