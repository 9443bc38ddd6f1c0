"""The ``steal`` stage: an attacker learns a scheme's mark from its texts, then forges or removes it.

The victim's own texts (``genuine``) and the attacker's are scored by the victim's detector and evaluated
against human-written texts, like any table; ``stealing.jsonl`` holds the attack's own report. The recipe's
texts are the corpus that the attacker sees; forged texts have prompts from outside the corpus.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from dewmark_audit.texts import Row
from dewmark_lab.evaluation.results import CLEAN, HUMAN, MARKED
from dewmark_lab.experiments.outputs import Output, write_json, write_rows
from dewmark_lab.experiments.recipe import SchemeEntry
from dewmark_lab.experiments.run import Run, TextsToScore
from dewmark_lab.experiments.scoring_stage import PendingScores, ScoreTexts
from dewmark_lab.experiments.workers import Fill, LoadedModels
from dewmark_lab.prompt_sources import held_out, truncate

_RESULT = "result.json"
Texts = tuple[Output, int]


def steal_marks(run: Run) -> None:
    """Steal each scheme's mark, score the texts, and write ``scores.jsonl`` and ``stealing.jsonl``."""
    run.store_human_texts()
    victims = [(entry, seed) for entry in run.recipe.schemes for seed in run.seeds]
    attacks = {(entry.label, seed): _attacks(run, entry, seed) for entry, seed in victims}
    run.fill("stealing marks", [task for each in attacks.values() for task in each.values()])
    tasks: list[ScoreTexts] = []
    scores: list[tuple[Row, Output, int]] = []
    reports: list[Row] = []
    for entry, seed in victims:
        stolen = attacks[entry.label, seed]
        pending: dict[str, PendingScores] = {}
        number = next((task.rows for task in stolen.values()), run.recipe.texts)
        judged = {"genuine": run.marked(entry, seed)} | {name: task.target for name, task in stolen.items()}
        for name, texts in judged.items():
            scheme = name if len(run.recipe.schemes) == 1 else f"{entry.label} {name}"
            people = [(HUMAN, *each) for each in run.all_human_texts(entry.host)]
            for kind, output, count in [(MARKED, texts, number), *people]:
                of = TextsToScore(kind, CLEAN, output, count)
                label = {"scheme": scheme, "attack": CLEAN, "seed": seed, "kind": kind}
                scores.append((label, run.scores(entry, seed, of), count))
                if missing := PendingScores.of_members(run, [entry], seed, of):
                    pending[output.hash] = missing
        if pending:
            tasks.append(ScoreTexts.for_run(run, entry, seed, list(pending.values())))
        for name, task in stolen.items():
            result = json.loads((task.target.path.parent / _RESULT).read_text(encoding="utf-8"))
            reports.append({"scheme": entry.label, "attack": name, "seed": seed, **result})
    run.workers.map("scoring texts", tasks)
    scored = [{**label, **row} for label, target, count in scores for row in target.read(count)]
    write_rows(run.out / "scores.jsonl", scored)
    write_rows(run.out / "stealing.jsonl", reports)


def _attacks(run: Run, entry: SchemeEntry, seed: int) -> dict[str, Fill]:
    """The recipe's attacks on one victim, by label; embedding attacks apply to DEW only."""
    recipe, options = run.recipe, run.recipe.options["steal"]
    number = int(options["texts"])
    prompts = truncate(
        held_out(recipe.prompts, number, beside=recipe.texts),
        run.infos[entry.host].tokenizer,
        tokens=recipe.prompt_tokens,
    )
    marked, unmarked = run.marked(entry, seed), run.unmarked(entry.host, seed)
    human = run.all_human_texts(entry.host)
    attacks = {}
    for label, given in options["attacks"].items():
        if given.get("method") == "embedding" and entry.scheme != "dew":
            continue
        settings = {**given, "texts": number, "tokens": recipe.decoding.max_new_tokens}
        target = run.output(
            "steal",
            {
                "marked": marked.hash,
                "base": unmarked.hash,
                "people": [texts.hash for texts, _ in human],
                "corpus": recipe.texts,
                "settings": settings,
                "number": number,
            },
        )
        corpus = (marked, recipe.texts), (unmarked, recipe.texts), human
        make = partial(_steal, entry, recipe.key_number(seed), settings, *corpus, prompts, target)
        attacks[label] = Fill(number, target, number, make)  # one batch: the attack keeps its own parts
    return attacks


def _steal(
    entry: SchemeEntry,
    key: int,
    settings: Mapping[str, Any],
    marked: Texts,
    unmarked: Texts,
    human: Sequence[Texts],
    prompts: Sequence[Row],
    target: Output,
    models: LoadedModels,
    batch: range,
) -> list[Row]:
    """Learn a victim's mark from its texts and the host's, write texts with it, and the attack's report."""
    from dewmark_lab.attacks.stealing.steal import StealSettings, steal

    def read(*texts: Texts) -> list[str]:
        return [row["text"] for output, count in texts for row in output.read(count)]

    seen, scrubbed = marked[0].read(marked[1]), []
    asked = [row["text"] for row in prompts]
    if settings.get("mode") == "scrub":  # texts that the attacker has not learned from
        seen, scrubbed = seen[: -len(batch)], seen[-len(batch) :]
        asked = [row["prompt"] for row in scrubbed]
    result = steal(
        models.scheme(entry, key),
        models.host(entry.host),
        [row["text"] for row in seen],
        read(unmarked),
        read(*human),
        settings=StealSettings(**settings),
        prompts=asked,
        targets=[row["text"] for row in scrubbed],
        resume_dir=target.path.parent / "written",
        progress=models.progress,
    )
    write_json(target.path.parent / _RESULT, result.to_dict())
    return [{"id": f"{i}", "text": text} for i, text in enumerate(result.texts)]
