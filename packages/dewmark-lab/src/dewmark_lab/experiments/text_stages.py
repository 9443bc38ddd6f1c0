"""The stages that make texts: ``generate`` writes marked and unmarked ones, ``attack`` edits them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dewmark.attack import Attack
from dewmark.decoding import Decoding
from dewmark.prompts import Row
from dewmark.storage import atomic_write
from dewmark.translation import translate_back
from dewmark_lab.evaluation.rewrites import Rewrite, check_rewrites, rewriter_quality
from dewmark_lab.experiments.outputs import RowFile, StageOutput
from dewmark_lab.experiments.recipe import AttackEntry, SchemeEntry
from dewmark_lab.experiments.run import Run
from dewmark_lab.experiments.workers import LoadedModels, Task

_TRANSLATED_AT_ONCE = 64


def generate_texts(run: Run) -> None:
    """Write every scheme's texts and every host's unmarked ones, under each seed."""
    recipe, outputs, number = run.recipe, run.outputs, run.recipe.texts
    tasks: dict[Path, _Generate] = {}
    prompts: dict[str, list[Row]] = {}
    for seed in run.seeds:
        wanted: list[tuple[str, SchemeEntry | None, StageOutput]] = []
        wanted += [(host, None, outputs.unmarked(host, seed)) for host in outputs.hosts]
        wanted += [(entry.host, entry, outputs.marked(entry, seed)) for entry in recipe.schemes]
        for host, entry, output in wanted:
            target = output.rows(run.work)
            if target.path in tasks or target.count() >= number:
                continue
            if host not in prompts:
                prompts[host] = run.prompts(host, number)
            tasks[target.path] = _Generate(
                number,
                target,
                host,
                entry,
                seed,
                recipe.key_number(seed),
                prompts[host],
                recipe.decoding,
                run.batch_size,
            )
    longest_first = sorted(tasks.values(), key=lambda task: -task.entry.relative_cost if task.entry else 0)
    entries = [task.entry for task in longest_first if task.entry is not None]
    run.build_scheme_caches(entries, tasks=len(tasks))
    run.workers.map("writing texts", longest_first)


@dataclass(frozen=True)
class _Generate(Task):
    """Complete prompts, marked by ``entry`` under the experiment's ``key``, or unmarked if it is None."""

    target: RowFile
    host: str
    entry: SchemeEntry | None
    seed: int
    key: int
    prompts: Sequence[Row]
    decoding: Decoding
    batch_size: int

    def run(self, models: LoadedModels, on_rows: Callable[[int], None]) -> None:
        """Write texts batch by batch; each text has its own sampling seed, the same in every run."""
        with self.target.missing_batches(self.rows, size=self.batch_size) as batches:
            for batch in batches:
                bound = None if self.entry is None else models.scheme(self.entry, self.key)
                prompts = [self.prompts[i] for i in batch]
                generations = models.host(self.host).generate(
                    [prompt["text"] for prompt in prompts],
                    scheme=bound,
                    seeds=[1_000_000 * self.seed + i for i in batch],
                    batch_size=self.batch_size,
                    decoding=self.decoding,
                )
                self.target.append(
                    [
                        {
                            "id": prompt["id"],
                            "prompt": one.prompt,
                            **({"request": prompt["request"]} if "request" in prompt else {}),
                            "text": one.text,
                            "tokens": one.tokens,
                            "seed": one.seed,
                            "scheme": one.scheme,
                            "config_hash": one.config_hash,
                            **({} if one.drafts is None else {"drafts": one.drafts.to_dict()}),
                        }
                        for prompt, one in zip(prompts, generations, strict=True)
                    ]
                )
                on_rows(batch.stop)


def attack_texts(run: Run) -> None:
    """Put marked, unmarked and human-written texts through every attack of the recipe."""
    outputs = run.outputs
    run.store_human_texts()
    sources: list[tuple[StageOutput, int]] = []
    for host in outputs.hosts:
        sources += [(outputs.unmarked(host, seed), run.recipe.texts) for seed in run.seeds]
        sources += outputs.all_human_texts(host)
    for entry in run.recipe.schemes:
        sources += [(outputs.marked(entry, seed), run.recipe.texts) for seed in run.seeds]
    tasks: dict[Path, _AttackTexts] = {}
    for attack in run.recipe.attacks:
        for texts, number in sources:
            target = outputs.attacked(texts, attack).rows(run.work)
            if target.count() < number and target.path not in tasks:
                tasks[target.path] = _AttackTexts(number, texts.rows(run.work), target, attack)
    _announce_costs(run, list(tasks.values()))
    run.workers.map("attacking texts", list(tasks.values()))
    _write_rewriters(run, sources)
    back: dict[Path, _TranslateBack] = {}
    for attack in run.recipe.attacks:
        for texts, number in sources if attack.translate_back else ():
            attacked = outputs.attacked(texts, attack)
            target = outputs.translated_back(attacked).rows(run.work)
            if target.count() < number:
                back[target.path] = _TranslateBack(number, attacked.rows(run.work), target)
    run.workers.map("translating back", list(back.values()))


@dataclass(frozen=True)
class _AttackTexts(Task):
    """Put texts through an attack, seeded by each text's own seed."""

    source: RowFile
    target: RowFile
    attack: AttackEntry

    def run(self, models: LoadedModels, on_rows: Callable[[int], None]) -> None:
        """Attack batch by batch; a row keeps its other fields."""
        attack = models.attack(self.attack)
        identity = attack.identity()
        with self.target.missing_batches(self.rows, size=attack.at_once) as batches:
            for batch in batches:
                rows = self.source.read(batch.stop)[batch.start :]
                texts = [row["text"] for row in rows]
                attacked = attack.apply(texts, seeds=[row["seed"] for row in rows])
                made = [
                    {**row, "text": text, "attack": identity, "original_text": row["text"]}
                    for row, text in zip(rows, attacked, strict=True)
                ]
                if attack.can_fail:
                    checks = check_rewrites(texts, attacked, language=attack.language, length=attack.length)
                    made = [
                        {**row, "rewrite": check.to_dict()} for row, check in zip(made, checks, strict=True)
                    ]
                self.target.append(made)
                on_rows(batch.stop)


@dataclass(frozen=True)
class _TranslateBack(Task):
    """Translate texts back into English; a text that cannot be translated stays as it is."""

    source: RowFile
    target: RowFile

    def run(self, models: LoadedModels, on_rows: Callable[[int], None]) -> None:
        """Translate batch by batch."""
        with self.target.missing_batches(self.rows, size=_TRANSLATED_AT_ONCE) as batches:
            for batch in batches:
                rows = self.source.read(batch.stop)[batch.start :]
                english = translate_back([row["text"] for row in rows], device=models.device)
                self.target.append(
                    [
                        {
                            "id": row["id"],
                            "text": row["text"] if text is None else text,
                            "translated": text is not None,
                        }
                        for row, text in zip(rows, english, strict=True)
                    ]
                )
                on_rows(batch.stop)


def _write_rewriters(run: Run, sources: Sequence[tuple[StageOutput, int]]) -> None:
    """Say how good the rewriters are: a line for each, and ``rewriters.json``."""
    found = {}
    for entry in run.recipe.attacks:
        if run.outputs.attacks[entry.label].can_fail:
            rows = [
                row
                for texts, number in sources
                for row in run.outputs.attacked(texts, entry).rows(run.work).read(number)
            ]
            quality = rewriter_quality(Rewrite(**row["rewrite"]) for row in rows)
            run.notify(f"{entry.label}: {quality}")
            found[entry.label] = quality.to_dict()
    if found:
        with atomic_write(run.out / "rewriters.json") as stream:
            stream.write((json.dumps(found, indent=1) + "\n").encode())


def _announce_costs(run: Run, tasks: Sequence[_AttackTexts]) -> None:
    """Tell the user what each attack will request from an endpoint, over all its texts."""
    for label in dict.fromkeys(task.attack.label for task in tasks):
        attack = run.outputs.attacks[label]
        if type(attack).plan is Attack.plan:  # this attack needs no endpoint
            continue
        rows = [row for task in tasks if task.attack.label == label for row in task.source.read(task.rows)]
        cost = attack.plan([row["text"] for row in rows], seeds=[row["seed"] for row in rows])
        if cost is not None:
            run.notify(f"{label}: {cost}")
