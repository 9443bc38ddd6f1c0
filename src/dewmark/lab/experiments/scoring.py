"""The score stage: which texts a scheme's detector has yet to see, and the task that shows them to it.

Rows of a table that differ in their test only are scored side by side, batch by batch, by one bound scheme:
what it looked up or encoded for the first test serves the others. Likewise texts cut short, which only the
figure over lengths needs, are cut here and scored right after the whole ones.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dewmark.lab.evaluation.quality import words_kept
from dewmark.lab.evaluation.results import CLEAN
from dewmark.lab.experiments.recipe import SchemeEntry
from dewmark.lab.experiments.store import Row, Rows
from dewmark.lab.experiments.tasks import Bench, Task, Tell

if TYPE_CHECKING:
    from dewmark.lab.experiments.stages import Run
    from dewmark.scheme import BoundScheme

__all__ = ["Scoring", "Sheet", "effort", "scoring_tasks"]

_LARGEST = 1e6  # a score beyond this says no more, and JSON has no infinity


@dataclass(frozen=True)
class Sheet:
    """The first ``number`` rows of ``source``, to be scored by each test into its target.

    ``tokens`` cuts texts after so many of the host's tokens; None leaves them whole.
    """

    source: Rows
    targets: Mapping[str | None, Rows]
    number: int
    tokens: int | None = None

    @contextlib.contextmanager
    def growing(self, *, batch: int) -> Iterator[Iterator[tuple[range, list[str | None]]]]:
        """Lock the targets; give batches with the tests for which they are still to be made.

        A kill may have left one target ahead of another. Locks are taken in the order of paths, so that two
        runs in one folder never wait for each other in a circle.
        """
        with contextlib.ExitStack() as stack:
            wanted: dict[range, list[str | None]] = {}
            for test, target in sorted(self.targets.items(), key=lambda pair: pair[1].path):
                for rows in stack.enter_context(target.growing(self.number, batch=batch)):
                    wanted.setdefault(rows, []).append(test)
            yield ((rows, wanted[rows]) for rows in sorted(wanted, key=lambda rows: rows.start))


@dataclass(frozen=True)
class Scoring(Task):
    """Score texts with one scheme's detector under the key of a seed, sheet by sheet.

    ``wrote`` holds the scheme's own texts and their number. Prompts are not used: a detector finds the
    completion alone.
    """

    entry: SchemeEntry
    seed: int
    wrote: tuple[Rows, int]
    sheets: Sequence[Sheet]
    batch_size: int

    @classmethod
    def of(cls, run: Run, entry: SchemeEntry, seed: int, sheets: Sequence[Sheet]) -> Scoring:
        """The task of some sheets of a run."""
        wrote = run.cells.marked(entry, seed).rows(run.work), run.recipe.texts
        return cls(sum(sheet.number for sheet in sheets), entry, seed, wrote, tuple(sheets), run.batch_size)

    def run(self, bench: Bench, tell: Tell) -> None:
        """Score batch by batch."""
        before = 0
        for sheet in self.sheets:
            every = sheet.source.read(sheet.number)
            with sheet.growing(batch=self.batch_size) as batches:
                for batch, tests in batches:
                    bound = bench.scheme(self.entry, self.seed, wrote=self.wrote)
                    rows = every[batch.start : batch.stop]
                    texts = [row["text"].replace("\x00", " ") for row in rows]
                    if sheet.tokens is not None:
                        texts = _beginnings(bound, texts, sheet.tokens)
                    for test in tests:
                        sheet.targets[test].append(_scores(bound, rows, texts, test=test))
                    tell(before + batch.stop)
            before += sheet.number


def scoring_tasks(run: Run) -> list[Scoring]:
    """What is still to be scored, a task per scheme, seed and column, the longest first.

    So there are enough of them for many workers, and each binds its scheme once.
    """
    tasks: list[tuple[int, Scoring]] = []
    for seed in run.seeds:
        for same in _same_marks(run.recipe.schemes):
            entry, columns = same[0], dict[str, list[Sheet]]()
            for source in run.cells.sources(entry, seed):
                targets: dict[Path, tuple[str | None, Rows]] = {}
                for each in same:
                    target = run.cells.scored(each, seed, source.cell, tokens=source.tokens).rows(run.work)
                    if target.count() < source.rows:
                        targets[target.path] = each.test, target
                if targets:
                    rows = source.cell.rows(run.work)
                    sheet = Sheet(rows, dict(targets.values()), source.rows, source.tokens)
                    columns.setdefault(CLEAN if source.tokens else source.attack, []).append(sheet)
            tasks += [(effort(entry), Scoring.of(run, entry, seed, sheets)) for sheets in columns.values()]
    tasks.sort(key=lambda pair: -pair[0] * pair[1].rows)
    return [task for _, task in tasks]


def effort(entry: SchemeEntry) -> int:
    """Roughly what a text of a scheme costs, against one that is merely looked up in tables.

    Drafts of sentences cost most; then an encoder that runs, which it does unless contexts are composed of
    tables; then the host that runs to detect.
    """
    scheme = entry.build()
    needs = scheme.needs_as_set
    encodes = needs.encoder and getattr(scheme, "context", "window") == "window"
    return 1 + 4 * needs.host_at_detection + 8 * encodes + 32 * needs.drafts


def _same_marks(entries: Sequence[SchemeEntry]) -> list[list[SchemeEntry]]:
    """Rows of a table by what marks their texts: they may differ in label and test."""
    groups: dict[str, list[SchemeEntry]] = {}
    for entry in entries:
        mark = json.dumps([entry.scheme, entry.build().to_dict(), entry.host], sort_keys=True)
        groups.setdefault(mark, []).append(entry)
    return list(groups.values())


def _beginnings(bound: BoundScheme, texts: Sequence[str], tokens: int) -> list[str]:
    """Each text up to the end of the host's token number ``tokens``."""
    pieces = bound.host.tokenizer.encode(texts)
    return [piece.text[: max((end for _, end in piece.offsets[:tokens]), default=0)] for piece in pieces]


def _scores(bound: BoundScheme, rows: Sequence[Row], texts: Sequence[str], *, test: str | None) -> list[Row]:
    """Score, p-value and length of each text; a blank one carries no evidence."""
    found = iter(bound.detect_batch([text for text in texts if text.strip()], test=test))
    scored: list[Row] = []
    for row, text in zip(rows, texts, strict=True):
        kept = {"kept": words_kept(row["original_text"], text)} if "original_text" in row else {}
        if not text.strip():
            scored.append({"id": row["id"], "score": 0.0, "p_value": 1.0, "tokens": 0, **kept})
            continue
        one = next(found)
        score = min(max(one.z, -_LARGEST), _LARGEST) if not math.isnan(one.z) else 0.0
        numbers = {"score": score, "p_value": one.p_value, "tokens": one.tokens_scored}
        scored.append({"id": row["id"], **numbers, **kept})
    return scored
