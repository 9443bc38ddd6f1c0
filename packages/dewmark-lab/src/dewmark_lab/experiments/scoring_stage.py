"""The ``score`` stage: every scheme's detector scores all texts of the run under each key.

Rows of a table that differ only in their test or reader are scored together, batch by batch, by one bound
scheme, so that texts are looked up and encoded once for all of them. Truncated texts, which only the figure
over lengths needs, are made here and scored right after the whole ones. Prompts are not used: the detector
sees completions only. Rewrites that failed (`dewmark_lab.evaluation.rewrites`) are left out of the results.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dewmark.prompts import Row, first_tokens
from dewmark_lab.evaluation.quality import words_kept
from dewmark_lab.evaluation.results import CLEAN
from dewmark_lab.evaluation.score_files import detection_numbers
from dewmark_lab.experiments.outputs import RowFile, write_rows
from dewmark_lab.experiments.recipe import SchemeEntry
from dewmark_lab.experiments.run import Run
from dewmark_lab.experiments.workers import LoadedModels, Task

if TYPE_CHECKING:
    from dewmark.scheme import BoundScheme

Way = tuple[str | None, str | None, str]
"""How texts are scored: test (None: the default), reader (None: no reader), and ``z`` or ``mean``."""


def score_texts(run: Run) -> None:
    """Score all texts and write ``scores.jsonl``."""
    run.store_human_texts()
    tasks = _tasks(run)
    if "generate" not in run.recipe.stages:  # otherwise that stage has built the caches
        run.build_scheme_caches([task.entry for task in tasks], tasks=len(tasks))
    run.workers.map("scoring texts", tasks)
    rows = []
    for entry in run.recipe.schemes:
        for seed in run.seeds:
            for each in run.outputs.texts_to_score(entry, seed):
                label = {"scheme": entry.label, "attack": each.attack, "seed": seed, "kind": each.kind}
                scores = run.outputs.scores(entry, seed, each.texts, tokens=each.tokens, back=each.back)
                texts = each.texts.rows(run.work).read(each.number)
                rows += [
                    {**label, **row}
                    for row, text in zip(scores.rows(run.work).read(each.number), texts, strict=True)
                    if text.get("rewrite", {}).get("fault") is None  # a rule that sees no score
                ]
    write_rows(run.out / "scores.jsonl", rows)


@dataclass(frozen=True)
class PendingScores:
    """The first ``number`` rows of ``source``, to be scored in each way into its target.

    ``tokens`` is the length in the host's tokens to which texts are cut; None keeps them. ``back`` has the
    same texts translated back into English, which are then scored too.
    """

    source: RowFile
    targets: Mapping[Way, RowFile]
    number: int
    tokens: int | None = None
    back: RowFile | None = None

    @contextlib.contextmanager
    def missing_batches(self, *, size: int) -> Iterator[Iterator[tuple[range, list[Way]]]]:
        """Lock the targets and yield each missing batch with the ways that still need it.

        A killed run may have left one target ahead of another. Locks are taken in the order of paths, so that
        two runs in one work folder cannot deadlock.
        """
        with contextlib.ExitStack() as stack:
            wanted: dict[range, list[Way]] = {}
            for way, target in sorted(self.targets.items(), key=lambda pair: pair[1].path):
                for batch in stack.enter_context(target.missing_batches(self.number, size=size)):
                    wanted.setdefault(batch, []).append(way)
            yield ((batch, wanted[batch]) for batch in sorted(wanted, key=lambda batch: batch.start))


@dataclass(frozen=True)
class ScoreTexts(Task):
    """Score texts with one scheme's detector under an experiment's key.

    ``own_texts`` are the texts that the scheme wrote under that key, and how many there are.
    """

    entry: SchemeEntry
    key: int
    own_texts: tuple[RowFile, int]
    pending: Sequence[PendingScores]
    batch_size: int

    @classmethod
    def for_run(cls, run: Run, entry: SchemeEntry, seed: int, pending: Sequence[PendingScores]) -> ScoreTexts:
        """A task with the scheme's own texts and the batch size of a run."""
        own_texts = run.outputs.marked(entry, seed).rows(run.work), run.recipe.texts
        number = sum(each.number for each in pending)
        return cls(number, entry, run.recipe.key_number(seed), own_texts, tuple(pending), run.batch_size)

    def run(self, models: LoadedModels, on_rows: Callable[[int], None]) -> None:
        """Score batch by batch."""
        before = 0
        for pending in self.pending:
            all_rows = pending.source.read(pending.number)
            all_back = None if pending.back is None else pending.back.read(pending.number)
            with pending.missing_batches(size=self.batch_size) as batches:
                for batch, ways in batches:
                    bound = models.scheme(self.entry, self.key, own_texts=self.own_texts)
                    rows = all_rows[batch.start : batch.stop]
                    texts = [row["text"] for row in rows]
                    if pending.tokens is not None:
                        texts = first_tokens(texts, bound.host.tokenizer, tokens=pending.tokens)
                    back = None if all_back is None else all_back[batch.start : batch.stop]
                    for way in ways:
                        test, reader, score = way
                        by = bound if reader is None else bound.reading_with(models.reader(reader))
                        pending.targets[way].append(_scores(by, rows, texts, back, test=test, score=score))
                    on_rows(before + batch.stop)
            before += pending.number


def _tasks(run: Run) -> list[ScoreTexts]:
    """Tasks for all missing scores, one per scheme, seed and attack, the longest first.

    That makes enough tasks for many workers, while each task binds its scheme only once.
    """
    tasks: list[ScoreTexts] = []
    for seed in run.seeds:
        for group in _group_by_mark(run.recipe.schemes):
            entry, columns = group[0], dict[str, list[PendingScores]]()
            for each in run.outputs.texts_to_score(entry, seed):
                targets: dict[Path, tuple[Way, RowFile]] = {}
                for member in group:
                    scores = run.outputs.scores(member, seed, each.texts, tokens=each.tokens, back=each.back)
                    target = scores.rows(run.work)
                    if target.count() < each.number:
                        targets[target.path] = (member.test, member.reader_model, member.score), target
                if targets:
                    source = each.texts.rows(run.work)
                    back = None if each.back is None else each.back.rows(run.work)
                    pending = PendingScores(source, dict(targets.values()), each.number, each.tokens, back)
                    columns.setdefault(CLEAN if each.tokens else each.attack, []).append(pending)
            tasks += [ScoreTexts.for_run(run, entry, seed, column) for column in columns.values()]
    return sorted(tasks, key=lambda task: -task.entry.relative_cost * task.rows)


def _group_by_mark(entries: Sequence[SchemeEntry]) -> list[list[SchemeEntry]]:
    """Group entries that mark alike and differ only in label, test, reader and score."""
    groups: dict[str, list[SchemeEntry]] = {}
    for entry in entries:
        mark = json.dumps([entry.scheme, entry.build().to_dict(), entry.host], sort_keys=True)
        groups.setdefault(mark, []).append(entry)
    return list(groups.values())


def _scores(
    bound: BoundScheme,
    rows: Sequence[Row],
    texts: Sequence[str],
    back: Sequence[Row] | None,
    *,
    test: str | None,
    score: str,
) -> list[Row]:
    """Score, p-value and length of each text, and of its translation ``back`` into English if it has one."""
    english = None
    if back is not None:
        english = [row["text"] if row["translated"] else None for row in back]
    found = detection_numbers(bound, texts, english, test=test, score=score)
    scored: list[Row] = []
    for row, text, numbers in zip(rows, texts, found, strict=True):
        kept = {"kept": words_kept(row["original_text"], text)} if "original_text" in row else {}
        scored.append({"id": row["id"], **numbers, **kept})
    return scored
