"""The stages that measure what a mark costs: ``quality``, ``divergence``, ``preference`` and ``runtime``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dewmark.decoding import Decoding
from dewmark_lab.evaluation.quality import TextPair, listed_words
from dewmark_lab.evaluation.results import CLEAN, MARKED, UNMARKED
from dewmark_lab.experiments.outputs import RowFile, StageOutput, write_rows
from dewmark_lab.experiments.recipe import SchemeEntry
from dewmark_lab.experiments.run import Run
from dewmark_lab.experiments.workers import LoadedModels, Task

_DIVERGENCE = {"texts": 16, "keys": 4, "steps": 48}  # unless the recipe's options say otherwise


def measure_quality(run: Run) -> None:
    """Measure marked and unmarked texts and write ``quality.jsonl``."""
    outputs, number = run.outputs, run.recipe.texts
    labelled: list[tuple[str, int, str, StageOutput]] = []
    for seed in run.seeds:
        for host in outputs.hosts:
            label = CLEAN if len(outputs.hosts) == 1 else f"{CLEAN} ({host})"
            labelled.append((label, seed, UNMARKED, outputs.unmarked(host, seed)))
        labelled += [(entry.label, seed, MARKED, outputs.marked(entry, seed)) for entry in run.recipe.schemes]
    tasks: dict[Path, Task] = {}
    for *_, texts in labelled:
        target = outputs.quality(texts).rows(run.work)
        if target.count() < number:
            tasks[target.path] = _MeasureQuality(
                number, texts.rows(run.work), target, run.recipe.judge, run.batch_size
            )
    run.workers.map(f"judging texts by {run.recipe.judge}", list(tasks.values()))
    rows = []
    for label, seed, kind, texts in labelled:
        measured = outputs.quality(texts).rows(run.work).read(number)
        if kind == MARKED:
            measured = [
                {**row, "paired": differences}
                for row, differences in zip(measured, _paired(run, label, seed), strict=True)
            ]
        rows += [{"scheme": label, "seed": seed, "kind": kind, **row} for row in measured]
    write_rows(run.out / "quality.jsonl", rows)


def _paired(run: Run, label: str, seed: int) -> list[dict[str, float | None]]:
    """How the wording of a scheme's texts differs from that of the unmarked texts of the same prompts."""
    entry = next(entry for entry in run.recipe.schemes if entry.label == label)
    listed = listed_words()
    marked, unmarked = (
        texts.rows(run.work).read(run.recipe.texts)
        for texts in (run.outputs.marked(entry, seed), run.outputs.unmarked(entry.host, seed))
    )
    return [
        TextPair(mine["id"], mine["text"], other["text"]).differences(listed=listed)
        for mine, other in zip(marked, unmarked, strict=True)
    ]


@dataclass(frozen=True)
class _MeasureQuality(Task):
    """Measure perplexity under the judge, diversity, wording and repetition of texts.

    The judge reads a request without the host's chat template, which is not its own.
    """

    source: RowFile
    target: RowFile
    judge: str
    batch_size: int

    def run(self, models: LoadedModels, on_rows: Callable[[int], None]) -> None:
        """Measure batch by batch."""
        from dewmark_lab.evaluation.quality import quality

        with self.target.missing_batches(self.rows, size=self.batch_size) as batches:
            for batch in batches:
                rows = self.source.read(batch.stop)[batch.start :]
                prompts = [f"{row['request']}\n\n" if "request" in row else row["prompt"] for row in rows]
                measured = quality(
                    models.host(self.judge), prompts, [row["text"] for row in rows], listed=listed_words()
                )
                self.target.append(
                    [{"id": row["id"], **one.to_dict()} for row, one in zip(rows, measured, strict=True)]
                )
                on_rows(batch.stop)


def measure_divergence(run: Run) -> None:
    """Measure how far each scheme moves the host's steps and write ``divergence.jsonl``.

    The places are those of unmarked texts. Schemes that choose between drafts have no steps and are left out.
    """
    options = {**_DIVERGENCE, **run.recipe.options.get("divergence", {})}
    tasks: dict[str, _MeasureDivergence] = {}
    for entry in run.recipe.schemes:
        if not entry.build().needs.drafts:
            texts = run.outputs.unmarked(entry.host, 0)
            mark = run.outputs.marked(entry, 0)
            output = StageOutput(
                "divergence", {"scheme": mark.inputs["scheme"], "texts": texts.hash, **options}
            )
            tasks[entry.label] = _MeasureDivergence(
                1, texts.rows(run.work), output.rows(run.work), entry, run.recipe.decoding, options
            )
    missing = {task.target.path: task for task in tasks.values() if not task.target.count()}
    run.workers.map("comparing with the host's steps", list(missing.values()))
    write_rows(
        run.out / "divergence.jsonl",
        [{"scheme": label, **task.target.read(1)[0]} for label, task in tasks.items()],
    )


@dataclass(frozen=True)
class _MeasureDivergence(Task):
    """Measure one scheme under several keys on the first of a host's unmarked texts."""

    source: RowFile
    target: RowFile
    entry: SchemeEntry
    decoding: Decoding
    options: Mapping[str, int]

    def run(self, models: LoadedModels, on_rows: Callable[[int], None]) -> None:
        """Measure it."""
        from dewmark_lab.evaluation.divergence import divergence

        with self.target.missing_batches(1, size=1) as batches:
            for _ in batches:
                rows = self.source.read(self.options["texts"])
                found = divergence(
                    models.host(self.entry.host),
                    [models.scheme(self.entry, seed) for seed in range(self.options["keys"])],
                    [row["prompt"] for row in rows],
                    [row["text"] for row in rows],
                    decoding=self.decoding,
                    steps=self.options["steps"],
                )
                self.target.append([found.to_dict()])
                on_rows(1)


def judge_preferences(run: Run) -> None:
    """Let a chat model compare marked with unmarked texts and write ``preference.jsonl``.

    Its answers are kept on disk.
    """
    from dewmark_lab.chat.settings import ChatSettings
    from dewmark_lab.evaluation.preference import judge_estimate, judge_pairs, pair_rows

    settings = ChatSettings(**run.recipe.options.get("preference", {}))
    chat, number = settings.open(run.progress), run.recipe.texts
    pairs = {}
    for entry in run.recipe.schemes:
        for seed in run.seeds:
            marked = run.outputs.marked(entry, seed).rows(run.work).read(number)
            unmarked = run.outputs.unmarked(entry.host, seed).rows(run.work).read(number)
            pairs[entry.label, seed] = pair_rows(marked, unmarked, seed=seed)
    cost = judge_estimate(settings, [pair for each in pairs.values() for pair in each], kept=chat)
    if settings.host is None and cost.requests:
        run.notify(f"preference: {cost}")
    rows = []
    for (label, _), each in pairs.items():
        rows += judge_pairs(chat, each, scheme=label, progress=run.progress)
    write_rows(run.out / "preference.jsonl", rows)


def time_schemes(run: Run) -> None:
    """Time all schemes in this process, round by round, and write ``runtime.jsonl``.

    Each of the recipe's seeds is a round and each round has its own prompts. A killed run keeps its finished
    rounds.
    """
    from dewmark_lab.evaluation.runtime import device_name, time_round, warm_up

    recipe, models = run.recipe, run.workers.models()
    timings = []
    for name in run.outputs.hosts:
        entries = [entry for entry in recipe.schemes if entry.host == name]
        per_round = 2 * len(entries) + 1  # unmarked text is generated but not detected
        host = models.host(name)
        output = StageOutput(
            "runtime",
            {
                "device": device_name(host),
                "schemes": [run.outputs.marked(entry, 0).hash for entry in entries],
                "labels": [entry.label for entry in entries],
                "unmarked": run.outputs.unmarked(name, 0).hash,
                "texts": recipe.texts,
            },
        )
        target, total = output.rows(run.work), per_round * recipe.seeds
        if target.count() < total:
            prompts = [row["text"] for row in run.prompts(name, recipe.texts * recipe.seeds)]
            schemes = {}
            for entry in entries:
                schemes[entry.label] = models.scheme(entry, 0)
                run.progress("binding schemes", len(schemes), len(entries))
            warm_up(host, schemes, prompts[0], decoding=recipe.decoding)
            with target.missing_batches(total, size=per_round) as batches:
                for batch in batches:
                    number = batch.start // per_round
                    run.progress("timing rounds", number, recipe.seeds)
                    own = prompts[number * recipe.texts : (number + 1) * recipe.texts]
                    timed = time_round(host, schemes, own, decoding=recipe.decoding, number=number)
                    target.append([dataclasses.asdict(each) for each in timed])
            run.progress("timing rounds", recipe.seeds, recipe.seeds)
        timings += target.read(total)
    write_rows(run.out / "runtime.jsonl", timings)
