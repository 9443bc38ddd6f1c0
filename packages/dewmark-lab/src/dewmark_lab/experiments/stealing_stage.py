"""The ``steal`` stage: an attacker learns a scheme's mark from its texts, then forges or removes it.

The victim's own texts (``genuine``) and the attacker's are scored by the victim's detector and evaluated
against human-written texts, like any table; ``stealing.jsonl`` holds the attack's own report. The recipe's
texts are the corpus that the attacker sees; forged texts have prompts from outside the corpus.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark import storage
from dewmark.prompts import Row
from dewmark_lab.evaluation.results import CLEAN, HUMAN, MARKED
from dewmark_lab.experiments.outputs import RowFile, StageOutput, write_rows
from dewmark_lab.experiments.recipe import SchemeEntry
from dewmark_lab.experiments.run import Run
from dewmark_lab.experiments.scoring_stage import PendingScores, ScoreTexts
from dewmark_lab.experiments.workers import LoadedModels, Task
from dewmark_lab.prompt_sources import held_out, truncate

_RESULT = "result.json"


def steal_marks(run: Run) -> None:
    """Steal each scheme's mark, score the texts, and write ``scores.jsonl`` and ``stealing.jsonl``."""
    run.store_human_texts()
    attacks = {
        (entry.label, seed): _attacks(run, entry, seed) for entry in run.recipe.schemes for seed in run.seeds
    }
    tasks = [task for each in attacks.values() for task in each.values()]
    run.workers.map("stealing marks", [task for task in tasks if task.target.count() < task.rows])
    scoring: list[Task] = []
    scores: list[tuple[Row, RowFile, int]] = []
    reports: list[Row] = []
    for entry in run.recipe.schemes:
        for seed in run.seeds:
            stolen = attacks[entry.label, seed]
            pending: dict[Path, PendingScores] = {}
            for each in _judged_texts(run, entry, seed, stolen):
                target = run.outputs.scores(entry, seed, each.texts).rows(run.work)
                label = {"scheme": each.label, "attack": CLEAN, "seed": seed, "kind": each.kind}
                scores.append((label, target, each.number))
                if target.count() < each.number:
                    source = each.texts.rows(run.work)
                    pending[target.path] = PendingScores(
                        source, {(entry.test, entry.reader_model, entry.score): target}, each.number
                    )
            if pending:
                scoring.append(ScoreTexts.for_run(run, entry, seed, list(pending.values())))
            for name, task in stolen.items():
                result = json.loads((task.target.path.parent / _RESULT).read_text(encoding="utf-8"))
                reports.append({"scheme": entry.label, "attack": name, "seed": seed, **result})
    run.workers.map("scoring texts", scoring)
    scored = [{**label, **row} for label, target, number in scores for row in target.read(number)]
    write_rows(run.out / "scores.jsonl", scored)
    write_rows(run.out / "stealing.jsonl", reports)


@dataclass(frozen=True)
class _StealMark(Task):
    """Learn a victim's mark from ``corpus`` of its texts and the host's, and write ``rows`` texts with it."""

    entry: SchemeEntry
    key: int
    settings: Mapping[str, Any]
    marked: RowFile
    unmarked: RowFile
    corpus: int
    human: Sequence[tuple[RowFile, int]]
    prompts: Sequence[Row]
    output: StageOutput
    target: RowFile

    def run(self, models: LoadedModels, on_rows: Callable[[int], None]) -> None:
        """Write all texts and the attack's report; batches that a killed run finished are reused."""
        from dewmark_lab.attacks.stealing.steal import StealSettings, steal

        with self.target.missing_batches(self.rows, size=self.rows) as batches:
            for _ in batches:
                seen, scrubbed = self.marked.read(self.corpus), []
                prompts = [row["text"] for row in self.prompts]
                if self.settings.get("mode") == "scrub":  # texts that the attacker has not learned from
                    seen, scrubbed = seen[: -self.rows], seen[-self.rows :]
                    prompts = [row["prompt"] for row in scrubbed]
                result = steal(
                    models.scheme(self.entry, self.key),
                    models.host(self.entry.host),
                    [row["text"] for row in seen],
                    [row["text"] for row in self.unmarked.read(self.corpus)],
                    [row["text"] for rows, number in self.human for row in rows.read(number)],
                    settings=StealSettings(**self.settings),
                    prompts=prompts,
                    targets=[row["text"] for row in scrubbed],
                    resume_dir=self.target.path.parent / "written",
                    progress=models.progress,
                )
                with storage.atomic_write(self.target.path.parent / _RESULT) as stream:
                    stream.write((json.dumps(result.to_dict()) + "\n").encode())
                self.target.append([{"id": f"{i}", "text": text} for i, text in enumerate(result.texts)])
                on_rows(self.rows)


def _attacks(run: Run, entry: SchemeEntry, seed: int) -> dict[str, _StealMark]:
    """The recipe's attacks on one victim, by label; embedding attacks apply to DEW only."""
    recipe, outputs = run.recipe, run.outputs
    options = recipe.options["steal"]
    number = int(options["texts"])
    prompts = truncate(
        held_out(recipe.prompts, number, beside=recipe.texts),
        outputs.infos[entry.host].tokenizer,
        tokens=recipe.prompt_tokens,
    )
    marked, unmarked = outputs.marked(entry, seed), outputs.unmarked(entry.host, seed)
    human = outputs.all_human_texts(entry.host)
    attacks = {}
    for label, given in options["attacks"].items():
        if given.get("method") == "embedding" and entry.scheme != "dew":
            continue
        settings = {**given, "texts": number, "tokens": recipe.decoding.max_new_tokens}
        output = StageOutput(
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
        attacks[label] = _StealMark(
            number,
            entry,
            recipe.key_number(seed),
            settings,
            marked.rows(run.work),
            unmarked.rows(run.work),
            recipe.texts,
            [(texts.rows(run.work), count) for texts, count in human],
            prompts,
            output,
            output.rows(run.work),
        )
    return attacks


@dataclass(frozen=True)
class _JudgedTexts:
    """Texts of one row of the table: the row's label, their kind and output, and how many."""

    label: str
    kind: str
    texts: StageOutput
    number: int


def _judged_texts(
    run: Run, entry: SchemeEntry, seed: int, stolen: Mapping[str, _StealMark]
) -> list[_JudgedTexts]:
    """The victim's own texts and those of each attack, all against the same human-written texts."""
    number = next((task.rows for task in stolen.values()), run.recipe.texts)
    rows = {"genuine": run.outputs.marked(entry, seed)}
    rows |= {label: task.output for label, task in stolen.items()}
    found = []
    for label, texts in rows.items():
        name = label if len(run.recipe.schemes) == 1 else f"{entry.label} {label}"
        found.append(_JudgedTexts(name, MARKED, texts, number))
        human = run.outputs.all_human_texts(entry.host)
        found += [_JudgedTexts(name, HUMAN, each, count) for each, count in human]
    return found
