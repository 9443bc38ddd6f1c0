"""The stages that measure what a mark costs: ``quality``, ``preference`` and ``runtime``."""

from __future__ import annotations

from functools import partial
from itertools import chain

from dewmark_audit.texts import Row
from dewmark_lab.evaluation.quality import listed_words, quality, wording_differences
from dewmark_lab.evaluation.results import CLEAN, MARKED, UNMARKED
from dewmark_lab.experiments.outputs import Output, write_rows
from dewmark_lab.experiments.run import Run
from dewmark_lab.experiments.workers import Fill, LoadedModels


def measure_quality(run: Run) -> None:
    """Measure marked and unmarked texts and write ``quality.jsonl``."""
    number, judge = run.recipe.texts, run.recipe.judge
    rows: list[tuple[str, int, Output, Output | None]] = []  # label, seed, texts, unmarked ones beside them
    for seed in run.seeds:
        for host in run.hosts:
            label = CLEAN if len(run.hosts) == 1 else f"{CLEAN} ({host})"
            rows.append((label, seed, run.unmarked(host, seed), None))
        rows += [
            (entry.label, seed, run.marked(entry, seed), run.unmarked(entry.host, seed))
            for entry in run.recipe.schemes
        ]
    run.fill(
        f"judging texts by {judge}",
        [
            Fill(number, run.quality(texts), run.batch_size, partial(_judge, texts, judge))
            for _, _, texts, _ in rows
        ],
    )
    found: list[Row] = []
    for label, seed, texts, beside in rows:
        kind = UNMARKED if beside is None else MARKED
        measured = run.quality(texts).read(number)
        if beside is not None:
            pairs = zip(measured, texts.read(number), beside.read(number), strict=True)
            listed = listed_words()
            measured = [
                {**row, "paired": wording_differences(mine["text"], other["text"], listed=listed)}
                for row, mine, other in pairs
            ]
        found += [{"scheme": label, "seed": seed, "kind": kind, **row} for row in measured]
    write_rows(run.out / "quality.jsonl", found)


def _judge(source: Output, judge: str, models: LoadedModels, batch: range) -> list[Row]:
    """Measure perplexity under the judge, wording and repetition of texts.

    The judge reads a request without the host's chat template, which is not its own.
    """
    rows = source.read(batch.stop)[batch.start :]
    prompts = [f"{row['request']}\n\n" if "request" in row else row["prompt"] for row in rows]
    measured = quality(models.host(judge), prompts, [row["text"] for row in rows], listed=listed_words())
    return [{"id": row["id"], **one} for row, one in zip(rows, measured, strict=True)]


def judge_preferences(run: Run) -> None:
    """Let a chat model compare marked with unmarked texts; its answers are kept on disk."""
    from dewmark_lab.chat.settings import ChatSettings
    from dewmark_lab.evaluation.preference import judge_estimate, judge_pairs, pair_rows

    settings = ChatSettings(**run.recipe.options.get("preference", {}))
    chat, number = settings.open(run.progress), run.recipe.texts
    pairs = {}
    for entry in run.recipe.schemes:
        for seed in run.seeds:
            marked = run.marked(entry, seed).read(number)
            unmarked = run.unmarked(entry.host, seed).read(number)
            pairs[entry.label, seed] = pair_rows(marked, unmarked, seed=seed)
    cost = judge_estimate(settings, list(chain(*pairs.values())), kept=chat)
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
    write_rows(run.out / "runtime.jsonl", [row for name in run.hosts for row in _time_host(run, name)])


def _time_host(run: Run, name: str) -> list[Row]:
    """The rounds of all schemes on one host."""
    from dewmark_lab.evaluation.runtime import device_name, time_round, warm_up

    recipe, models = run.recipe, run.workers.models()
    entries = [entry for entry in recipe.schemes if entry.host == name]
    per_round = 2 * len(entries) + 1  # unmarked text is generated but not detected
    host, total = models.host(name), per_round * recipe.seeds
    inputs = {
        "device": device_name(host),
        "schemes": [run.marked(entry, 0).hash for entry in entries],
        "labels": [entry.label for entry in entries],
        "unmarked": run.unmarked(name, 0).hash,
        "texts": recipe.texts,
    }
    target = run.output("runtime", inputs)
    if target.count() < total:
        prompts = [row["text"] for row in run.prompts(name, recipe.texts * recipe.seeds)]
        schemes = {}
        for entry in entries:
            schemes[entry.label] = models.scheme(entry, 0)
            run.progress("binding schemes", len(schemes), len(entries))
        warm_up(host, schemes, prompts[0], decoding=recipe.decoding)

        def timed(batch: range) -> list[Row]:
            number = batch.start // per_round
            own = prompts[number * recipe.texts : (number + 1) * recipe.texts]
            return time_round(host, schemes, own, decoding=recipe.decoding, number=number)

        target.fill(total, timed, size=per_round, on_rows=lambda rows: run.progress("timing", rows, total))
    return target.read(total)
