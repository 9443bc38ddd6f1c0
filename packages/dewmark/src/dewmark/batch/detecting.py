"""Detection of a file of texts into a file of results: `detect_file`.

The input is split into blocks (`dewmark.batch.sources`), and workers score them: this process, several
processes, or a Ray cluster (`dewmark.batch.runners`). Finished blocks are appended in order to
``OUT.partial``, whose first line says what was scored and how, so a run can be stopped at any moment and
resumed. When all blocks are there, ``OUT`` is made from them, with p-values adjusted for the number of texts.
"""

from __future__ import annotations

import contextlib
import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dewmark import storage
from dewmark.batch.inputs import batched, warn_other_scheme
from dewmark.batch.runners import open_runner
from dewmark.batch.scorers import DetectorSpec, Scorer
from dewmark.batch.sources import Block, Source, open_source
from dewmark.errors import ConfigError, KeyFileError, StorageError
from dewmark.extras import require
from dewmark.manifests import FIELDS
from dewmark.stats.multiple_testing import benjamini_hochberg
from dewmark.types import Verdict
from dewmark.workspace import Progress, silent

Row = dict[str, Any]

# Columns of a Parquet file that are no floats.
_INTEGERS = ("tokens_scored", "keys", "versions", "n_hypotheses", "member", "payload")
_STRINGS = (
    *("epoch", "verdict", "test", "scheme", "key_fingerprint", "key_file", "language", "reader"),
    "config_hash",
)
_FLAGS = ("language_known", "translated_back")


@dataclass(frozen=True)
class DetectResult:
    """What a run found.

    ``rows`` texts were scored, ``resumed_from`` of them by an earlier run; ``marked`` have p ≤ fpr;
    ``tested`` have a verdict, and of these ``rejected`` have an adjusted p-value ≤ fpr.
    ``blocks_retried`` counts blocks that were scored again because their worker had died.
    """

    out: Path
    rows: int
    marked: int
    tested: int
    rejected: int
    fpr: float
    resumed_from: int
    blocks_retried: int


@dataclass(frozen=True)
class ScoringWorker:
    """Opens a worker, which loads the detector from its files once and then reads and scores blocks.

    It is pickled to other processes and contains no secret: a worker on another machine needs the key or the
    detector under the same path. ``identity`` is what those files must hold.
    """

    source: Source
    detector: DetectorSpec
    identity: dict[str, object]

    def __call__(self) -> Callable[[Block], list[Row]]:
        """Load the detector; returns the function that scores a block."""
        scorer = self.detector.open()
        if scorer.identity != self.identity:
            raise KeyFileError(
                f"a worker has other files than this process: {scorer.identity}, expected {self.identity}; "
                "give all machines the same key or detector under the same path"
            )
        return self.work_with(scorer)

    def work_with(self, scorer: Scorer) -> Callable[[Block], list[Row]]:
        """The function that scores a block with a loaded detector."""

        def work(block: Block) -> list[Row]:
            batches = batched(self.source.read(block), scorer.batch_size)
            return [each.row for batch in batches for each in scorer(batch)]

        return work


def detect_file(
    source: str | Path | Source,
    out: str | Path,
    detector: DetectorSpec | str | Path,
    *,
    engine: str = "local",
    workers: int | None = None,
    block_size: int = 1024,
    progress: Progress = silent,
) -> DetectResult:
    """Score the texts of a JSONL or Parquet file (or URL) into a ``.jsonl`` or ``.parquet`` file.

    ``detector`` is a `DetectorSpec`, or the folder of an exported detector. ``engine`` is "local" or "ray"
    (the cluster that RAY_ADDRESS names, otherwise one on this machine), ``workers`` the number of processes,
    by default 1 and, with Ray, all CPUs. ``block_size`` texts are scored and stored together. Rows have
    their p-value after Benjamini-Hochberg, too. A stopped run is resumed by the same call.
    """
    out = Path(out)
    _check_format(out)
    source = (source if isinstance(source, Source) else open_source(str(source))).absolute()
    spec = detector if isinstance(detector, DetectorSpec) else DetectorSpec(detector=Path(detector))
    spec = spec.absolute()
    blocks = source.blocks(block_size)
    # Opened here too, whatever the workers do: mistakes are reported at once and models are fetched once.
    scorer = spec.open(progress=progress)
    warn_other_scheme(itertools.islice(source.rows(blocks), 1), *str(scorer.identity["scheme"]).split(", "))
    run = {**_identity(source, spec, block_size), **scorer.identity, "blocks": len(blocks)}
    partial = out.with_name(f"{out.name}.partial")
    if out.exists() and not partial.exists():
        raise StorageError(f"{out} exists already and is not overwritten; choose another name")
    # the first row identifies the run, each of the others holds the results of one block
    file = storage.ResumableRows(
        partial, 1 + len(blocks), batch_size=1, expected=lambda i: {"rows": ...} if i else run
    )
    if file.done == 0:
        file.append([run])
    pending = blocks[file.done - 1 :]
    total = sum(block.rows for block in blocks)
    done = resumed_from = total - sum(block.rows for block in pending)
    progress("scoring", done, total)
    retried = 0
    if pending:
        with open_runner(engine, workers=workers) as runner:
            worker = ScoringWorker(source, spec, scorer.identity)
            alone = engine == "local" and runner.workers == 1  # this process has the detector already
            opened = (lambda: worker.work_with(scorer)) if alone else worker
            for place, rows in runner.map(pending, opened, ordered=True):
                if len(rows) != pending[place].rows:
                    raise StorageError(f"a block of {pending[place].rows} texts gave {len(rows)} results")
                file.append([{"rows": rows}])
                done += len(rows)
                progress("scoring", done, total)
        retried = runner.retried
    summary = _Summary(_results(file))
    _write(out, _results(file), summary)
    partial.unlink()
    return DetectResult(
        out=out,
        rows=summary.rows,
        marked=summary.marked,
        tested=len(summary.adjusted),
        rejected=sum(q <= spec.fpr for q in summary.adjusted),
        fpr=spec.fpr,
        resumed_from=resumed_from,
        blocks_retried=retried,
    )


def _check_format(out: Path) -> None:
    if out.suffix == ".parquet":
        require("pyarrow.parquet", extra="parquet")
    elif out.suffix != ".jsonl":
        raise ConfigError(f"the output {out} must end in .parquet or .jsonl")


def _identity(source: Source, spec: DetectorSpec, block_size: int) -> dict[str, object]:
    """Everything that decides the rows, apart from the detector's own identity."""
    return {
        **source.identity(),
        "prompt": source.prompt,
        "fpr": spec.fpr,
        "test": spec.test,
        "tokens": spec.tokens,
        "coverage": spec.coverage,
        "attempts": spec.attempts,
        "calibration": spec.calibration and storage.sha256_file(spec.calibration),
        "roots": spec.roots and storage.sha256_file(spec.roots),
        "block_size": block_size,
    }


def _results(file: storage.ResumableRows) -> Iterator[list[Row]]:
    """The finished blocks, in order."""
    return (each["rows"] for i, each in enumerate(file.read()) if i > 0)


class _Summary:
    """All rows together: how many, how many marked, their adjusted p-values."""

    def __init__(self, blocks: Iterable[list[Row]]) -> None:
        self.rows = self.marked = 0
        self.integer_ids = True
        p_values = array("d")  # of the texts with a verdict
        for row in (row for rows in blocks for row in rows):
            self.rows += 1
            self.marked += row["verdict"] == Verdict.MARKED.value
            self.integer_ids &= isinstance(row["id"], int)
            if Verdict(row["verdict"]).conclusive:
                p_values.append(row["p_value"])
        self.adjusted: Sequence[float] = benjamini_hochberg(p_values).tolist()


def _write(out: Path, blocks: Iterable[list[Row]], summary: _Summary) -> None:
    adjusted = iter(summary.adjusted)
    with storage.atomic_write(out) as stream:
        parquet = out.suffix == ".parquet"
        with _parquet_writer(stream, summary) if parquet else _jsonl_writer(stream) as write:
            for rows in blocks:
                for row in rows:
                    tested = Verdict(row["verdict"]).conclusive
                    row["p_adjusted"] = next(adjusted) if tested else None
                write(rows)


@contextlib.contextmanager
def _jsonl_writer(stream: IO[bytes]) -> Iterator[Callable[[list[Row]], object]]:
    yield lambda rows: stream.write(storage.encode_jsonl(rows))


@contextlib.contextmanager
def _parquet_writer(stream: IO[bytes], summary: _Summary) -> Iterator[Callable[[list[Row]], object]]:
    arrow = require("pyarrow", extra="parquet")
    parquet = require("pyarrow.parquet", extra="parquet")
    opened: list[Any] = []

    def write(rows: list[Row]) -> None:
        if not summary.integer_ids:  # a column has one type
            for row in rows:
                row["id"] = str(row["id"])
        if not opened:
            types = _column_types(summary, arrow)
            schema = arrow.schema([(name, types.get(name, arrow.float64())) for name in rows[0]])
            opened.append(parquet.ParquetWriter(stream, schema))
        opened[0].write_table(arrow.Table.from_pylist(rows, schema=opened[0].schema))

    yield write
    opened[0].close()


def _column_types(summary: _Summary, arrow: Any) -> dict[str, Any]:  # noqa: ANN401 - pyarrow has no types
    """The types of all columns that are no floats."""
    text, integer, flag, number = arrow.string(), arrow.int64(), arrow.bool_(), arrow.float64()

    def struct(**fields: Any) -> Any:  # noqa: ANN401
        return arrow.struct(list(fields.items()))

    numbers = dict.fromkeys(("z", "p_value", "p_alone", "effective_length", "share"), number)
    place = {"start": integer, "end": integer}
    passage = struct(**place, tokens=integer, text=text, key_fingerprint=text, **numbers)
    return {
        **dict.fromkeys(_INTEGERS, integer),
        **dict.fromkeys(_STRINGS, text),
        **dict.fromkeys(_FLAGS, flag),
        "id": integer if summary.integer_ids else text,
        "tokens": arrow.list_(struct(text=text, **place, score=number, scored=flag)),
        "looks": struct(keys=integer, attempts=integer, passages=flag),
        "not_tested": arrow.list_(struct(key_file=text, scheme=text, reason=text)),
        "manifest": struct(**dict.fromkeys(FIELDS, text)),
        "forgery": struct(attributable=flag, z_form=number, p_form=number),
        "coverage": struct(extent=text, share=number, p_rest=number, passages=arrow.list_(passage)),
    }
