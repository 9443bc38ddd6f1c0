"""``dewmark detect --out``: a file of texts scored into a file, by one worker or many, here or over Ray."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dewmark.batch.blocks import BlockRun, check_out
from dewmark.batch.runners import open_runner
from dewmark.cli.inputs import batched
from dewmark.cli.terminal import Progress, emit, say, write
from dewmark.errors import KeyFileError

if TYPE_CHECKING:
    from dewmark.batch.scoring import ManyKeys, OneKey, Scoring
    from dewmark.batch.sources import Block, Source

__all__ = ["Workers", "score_file"]

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Workers:
    """Opens a worker: it loads the detector from its files, and then reads and scores blocks.

    Nothing secret is in here; a worker on another machine finds key or detector under the same path.
    ``expected`` is what its files must hold.
    """

    source: Source
    scoring: Scoring
    batch_size: int | None
    expected: dict[str, object]

    def __call__(self) -> Callable[[Block], Rows]:
        """Load what scores."""
        score = self.scoring.open(progress=Progress(quiet=True))
        if score.identity != self.expected:
            raise KeyFileError(
                f"a worker has other files than the command: {score.identity}, expected {self.expected}; "
                "give all machines the same key or detector under the same path"
            )
        return self.work_with(score)

    def work_with(self, score: OneKey | ManyKeys) -> Callable[[Block], Rows]:
        """What a worker does once its detector is loaded."""
        size = self.batch_size or score.batch_size

        def work(block: Block) -> Rows:
            return [scored.row for batch in batched(self.source.read(block), size) for scored in score(batch)]

        return work


def score_file(
    source: Source,
    out: Path,
    scoring: Scoring,
    *,
    engine: str,
    workers: int | None,
    block_size: int,
    batch_size: int | None,
    adjust: bool,
    json_: bool,
    quiet: bool,
) -> None:
    """Score all texts of ``source`` into ``out``; what an earlier run finished is kept."""
    started = time.perf_counter()
    check_out(out)
    source, scoring = source.absolute(), scoring.absolute()
    with Progress(quiet=quiet) as progress:
        blocks = source.blocks(block_size)
        # once here, whatever the workers do: wrong keys and options are told at once, models are fetched once
        score = scoring.open(progress=progress)
        sizes = [block.rows for block in blocks]
        run = BlockRun(out, sizes, _identity(source, scoring, block_size, score.identity))
        pending, total = list(run.pending), sum(sizes)
        done = kept = total - sum(sizes[i] for i in pending)
        progress("scoring", done, total)
        retried = 0
        if pending:
            with open_runner(engine, workers=workers) as runner:
                opened = Workers(source, scoring, batch_size, score.identity)
                alone = engine == "local" and runner.workers == 1  # then it has been loaded already
                jobs = [blocks[i] for i in pending]
                for place, rows in runner.map(jobs, (lambda: opened.work_with(score)) if alone else opened):
                    run.keep(pending[place], rows)
                    done += len(rows)
                    progress("scoring", done, total)
            retried = runner.retried
        found = run.finish(adjust=adjust)
    rejected = sum(q <= scoring.fpr for q in found.adjusted)
    if json_:
        told = {"out": str(out), "rows": found.rows, "resumed_from": kept, "blocks_retried": retried}
        emit({**told, "marked": found.marked, "rejected": rejected, "fpr": scoring.fpr, "engine": engine})
    else:
        write(
            f"{found.marked} of {found.rows} texts marked at level {scoring.fpr:g}; {rejected} with "
            f"q ≤ {scoring.fpr:g} (Benjamini-Hochberg over {len(found.adjusted)} texts)\n"
        )
    again = f", {retried} blocks begun again after a worker was lost" if retried else ""
    seconds = time.perf_counter() - started
    say(f"wrote {out}: {done - kept} texts scored, {kept} were there{again}, {seconds:.1f} s", quiet=quiet)


def _identity(
    source: Source, scoring: Scoring, block_size: int, expected: dict[str, object]
) -> dict[str, object]:
    """What decides the rows."""
    from dewmark.storage import sha256_file

    named = {"fpr": scoring.fpr, "test": scoring.test, "tokens": scoring.tokens, "group": scoring.group}
    return {
        **source.identity(),
        **expected,
        **named,
        "by": source.by,
        "prompt": source.prompt,
        "calibration": scoring.calibration and sha256_file(scoring.calibration),
        "block_size": block_size,
    }
