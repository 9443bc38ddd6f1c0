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

from dewmark_audit.texts import Row, first_tokens
from dewmark_lab.evaluation.quality import words_kept
from dewmark_lab.evaluation.results import CLEAN
from dewmark_lab.evaluation.score_files import detection_numbers
from dewmark_lab.experiments.outputs import Output, write_rows
from dewmark_lab.experiments.recipe import SchemeEntry
from dewmark_lab.experiments.run import Run, TextsToScore
from dewmark_lab.experiments.workers import LoadedModels, Task

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
            for each in run.texts_to_score(entry, seed):
                label = {"scheme": entry.label, "attack": each.attack, "seed": seed, "kind": each.kind}
                scores = run.scores(entry, seed, each).read(each.number)
                rows += [
                    {**label, **row}
                    for row, text in zip(scores, each.texts.read(each.number), strict=True)
                    if text.get("rewrite", {}).get("fault") is None  # a rule that sees no score
                ]
    write_rows(run.out / "scores.jsonl", rows)


@dataclass(frozen=True)
class PendingScores:
    """Texts to be scored in each way into its target."""

    of: TextsToScore
    targets: Mapping[Way, Output]

    @classmethod
    def of_members(
        cls, run: Run, members: Sequence[SchemeEntry], seed: int, of: TextsToScore
    ) -> PendingScores | None:
        """What is missing for rows that mark alike, or None."""
        targets: dict[Path, tuple[Way, Output]] = {}
        for member in members:
            target = run.scores(member, seed, of)
            if target.count() < of.number:
                targets[target.path] = (member.test, member.reader_model, member.score), target
        return cls(of, dict(targets.values())) if targets else None

    @contextlib.contextmanager
    def missing_batches(self, *, size: int) -> Iterator[Iterator[tuple[range, list[Way]]]]:
        """Lock the targets and yield each missing batch with the ways that still need it.

        A killed run may have left one target ahead of another. Locks are taken in the order of paths, so that
        two runs in one work folder cannot deadlock.
        """
        with contextlib.ExitStack() as stack:
            wanted: dict[range, list[Way]] = {}
            for way, target in sorted(self.targets.items(), key=lambda pair: pair[1].path):
                for batch in stack.enter_context(target.missing_batches(self.of.number, size=size)):
                    wanted.setdefault(batch, []).append(way)
            yield ((batch, wanted[batch]) for batch in sorted(wanted, key=lambda batch: batch.start))


@dataclass(frozen=True)
class ScoreTexts(Task):
    """Score texts under an experiment's key; ``own_texts`` are the scheme's under it, and their number."""

    entry: SchemeEntry
    key: int
    own_texts: tuple[Output, int]
    pending: Sequence[PendingScores]
    batch_size: int

    @classmethod
    def for_run(cls, run: Run, entry: SchemeEntry, seed: int, pending: Sequence[PendingScores]) -> ScoreTexts:
        """A task with the scheme's own texts and the batch size of a run."""
        own_texts = run.marked(entry, seed), run.recipe.texts
        number = sum(each.of.number for each in pending)
        return cls(number, entry, run.recipe.key_number(seed), own_texts, tuple(pending), run.batch_size)

    def run(self, models: LoadedModels, on_rows: Callable[[int], None]) -> None:
        before = 0
        for pending in self.pending:
            of = pending.of
            all_rows = of.texts.read(of.number)
            with pending.missing_batches(size=self.batch_size) as batches:
                for batch, ways in batches:
                    bound = models.scheme(self.entry, self.key, own_texts=self.own_texts)
                    rows = all_rows[batch.start : batch.stop]
                    texts = [row["text"] for row in rows]
                    if of.tokens is not None:
                        texts = first_tokens(texts, bound.host.tokenizer, tokens=of.tokens)
                    for way in ways:
                        test, reader, score = way
                        by = bound if reader is None else bound.reading_with(models.reader(reader))
                        found = detection_numbers(by, texts, test=test, score=score)
                        pending.targets[way].append(
                            [
                                {"id": row["id"], **numbers, **_kept(row, text)}
                                for row, text, numbers in zip(rows, texts, found, strict=True)
                            ]
                        )
                    on_rows(before + batch.stop)
            before += of.number


def _tasks(run: Run) -> list[ScoreTexts]:
    """Tasks for all missing scores, one per scheme, seed and attack, the longest first."""
    groups: dict[str, list[SchemeEntry]] = {}  # rows that mark alike
    for entry in run.recipe.schemes:
        mark = json.dumps([entry.scheme, entry.build().to_dict(), entry.host], sort_keys=True)
        groups.setdefault(mark, []).append(entry)
    tasks: list[ScoreTexts] = []
    for seed in run.seeds:
        for group in groups.values():
            columns: dict[str, list[PendingScores]] = {}
            for each in run.texts_to_score(group[0], seed):
                pending = PendingScores.of_members(run, group, seed, each)
                if pending is not None:
                    columns.setdefault(CLEAN if each.tokens else each.attack, []).append(pending)
            tasks += [ScoreTexts.for_run(run, group[0], seed, column) for column in columns.values()]
    return sorted(tasks, key=lambda task: -task.rows)


def _kept(row: Row, text: str) -> dict[str, float]:
    """The share of words that an attack kept, if there was one."""
    return {"kept": words_kept(row["original_text"], text)} if "original_text" in row else {}
