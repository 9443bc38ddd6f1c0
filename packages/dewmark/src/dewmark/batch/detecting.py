"""Detection of a file of texts into a file of results: `detect_file`.

The input is split into blocks (`dewmark.batch.sources`), and workers score them: this process, several
processes, or a Ray cluster (`dewmark.batch.runners`). Finished blocks are appended in order to
``OUT.partial``, whose first line says what was scored and how, so a run can be stopped at any moment and
resumed. When all blocks are there, ``OUT`` is made from them, with p-values adjusted for the number of texts.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dewmark import storage
from dewmark.batch.audit_report import AuditReport
from dewmark.batch.boilerplate import Boilerplate, Mode, template_weights
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

_INTEGERS = {
    "tokens_scored",
    "keys",
    "versions",
    "n_hypotheses",
    "member",
    "payload",
}  # columns of a Parquet file
_STRINGS = {
    "epoch",
    "verdict",
    "test",
    "scheme",
    "key_fingerprint",
    "key_file",
    "language",
    "reader",
    "config_hash",
    "template",
    "this_key_group",
}


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
    batch_size: int | None
    identity: dict[str, object]
    boilerplate: Boilerplate | None = None

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
        size = self.batch_size or scorer.batch_size
        score = scorer if self.boilerplate is None else functools.partial(self.boilerplate.scored, scorer)

        def work(block: Block) -> list[Row]:
            return [each.row for batch in batched(self.source.read(block), size) for each in score(batch)]

        return work


def detect_file(
    source: str | Path | Source,
    out: str | Path,
    detector: DetectorSpec | str | Path,
    *,
    engine: str = "local",
    workers: int | None = None,
    block_size: int = 1024,
    batch_size: int | None = None,
    adjust: bool = True,
    boilerplate: str = Mode.KEEP,
    progress: Progress = silent,
) -> DetectResult:
    """Score the texts of a JSONL or Parquet file (or URL) into a ``.jsonl`` or ``.parquet`` file.

    ``detector`` is a `DetectorSpec`, or the folder of an exported detector. ``engine`` is "local" or "ray"
    (the cluster that RAY_ADDRESS names, otherwise one on this machine), ``workers`` the number of processes,
    by default 1 and, with Ray, all CPUs. ``block_size`` texts are scored and stored together. ``adjust`` adds
    each text's p-value after Benjamini-Hochberg; ``boilerplate`` "once" lets all copies of one template count
    as one text there, "drop" scores texts without what many rows share. A stopped run is resumed by the same
    call.
    """
    out = Path(out)
    _check_format(out)
    source = (source if isinstance(source, Source) else open_source(str(source))).absolute()
    spec = detector if isinstance(detector, DetectorSpec) else DetectorSpec(detector=Path(detector))
    spec = spec.absolute()
    blocks = source.blocks(block_size)
    # Opened here too, whatever the workers do: mistakes are reported at once and models are fetched once.
    scorer = spec.open(progress=progress)
    warn_other_scheme(
        itertools.islice(source.rows(blocks[:1]), 1), *str(scorer.identity["scheme"]).split(", ")
    )
    shared = Boilerplate.of_source(source, Mode(boilerplate))
    run = {**_identity(source, spec, block_size), **scorer.identity, "blocks": len(blocks)}
    run["boilerplate"] = shared and shared.identity
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
            worker = ScoringWorker(source, spec, batch_size, scorer.identity, shared)
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
    _write(out, _results(file), summary, adjust=adjust)
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
        "by": source.by,
        "prompt": source.prompt,
        "fpr": spec.fpr,
        "test": spec.test,
        "tokens": spec.tokens,
        "passages": spec.passages,
        "coverage": spec.coverage,
        "attempts": spec.attempts,
        "group": spec.group,
        "calibration": spec.calibration and storage.sha256_file(spec.calibration),
        "audit": spec.audit and AuditReport.load(spec.audit).identity,
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
        templates: list[str | None] = []
        for row in (row for rows in blocks for row in rows):
            self.rows += 1
            self.marked += row["verdict"] == Verdict.MARKED.value
            self.integer_ids &= isinstance(row["id"], int)
            if Verdict(row["verdict"]).conclusive:
                p_values.append(row["p_value"])
                if "template" in row:
                    templates.append(row["template"])
        weights = template_weights(templates) if templates else None
        self.adjusted: Sequence[float] = (
            benjamini_hochberg(p_values, weights=weights).tolist() if p_values else []
        )


def _write(out: Path, blocks: Iterable[list[Row]], summary: _Summary, *, adjust: bool) -> None:
    adjusted = iter(summary.adjusted)
    with storage.atomic_write(out) as stream:
        parquet = out.suffix == ".parquet"
        with _parquet_writer(stream, summary) if parquet else _jsonl_writer(stream) as write:
            for rows in blocks:
                if adjust:
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
            schema = arrow.schema([(name, _column_type(name, summary, arrow)) for name in rows[0]])
            opened.append(parquet.ParquetWriter(stream, schema))
        opened[0].write_table(arrow.Table.from_pylist(rows, schema=opened[0].schema))

    yield write
    opened[0].close()


def _column_type(name: str, summary: _Summary, arrow: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    if name == "id":
        return arrow.int64() if summary.integer_ids else arrow.string()
    if name == "tokens":
        offsets = [(field, arrow.int64()) for field in ("start", "end")]
        rest = [("score", arrow.float64()), ("scored", arrow.bool_())]
        return arrow.list_(arrow.struct([("text", arrow.string()), *offsets, *rest]))
    if name == "looks":
        return arrow.struct(
            [("keys", arrow.int64()), ("attempts", arrow.int64()), ("passages", arrow.bool_())]
        )
    if name == "not_tested":
        told = [(field, arrow.string()) for field in ("key_file", "scheme", "reason")]
        return arrow.list_(arrow.struct(told))
    if name == "manifest":
        return arrow.struct([(field, arrow.string()) for field in FIELDS])
    if name == "forgery":
        told = [(field, arrow.float64()) for field in ("z_head", "z_tail", "p_tail", "p_alike")]
        return arrow.struct([("attributable", arrow.bool_()), *told])
    if name == "coverage":
        numbers = [
            (field, arrow.float64()) for field in ("z", "p_value", "p_alone", "effective_length", "share")
        ]
        places = [(field, arrow.int64()) for field in ("start", "end", "tokens")]
        words = [(field, arrow.string()) for field in ("text", "key_fingerprint")]
        passages = arrow.list_(arrow.struct([*places, *words, *numbers]))
        told = [("extent", arrow.string()), ("share", arrow.float64()), ("p_rest", arrow.float64())]
        return arrow.struct([*told, ("passages", passages)])
    if name in _STRINGS:
        return arrow.string()
    if name in ("language_known", "this_key_trusted", "translated_back"):
        return arrow.bool_()
    return arrow.int64() if name in _INTEGERS else arrow.float64()
