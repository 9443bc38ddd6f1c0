"""A recipe's stages in their order: generate → attack → score → quality … → evaluate → report.

Each stage asks the cells what is missing, has workers make it, and goes on; whatever is there stays. The last
two read the cells' rows, label them, and write the run's files: ``scores.jsonl``, ``quality.jsonl``,
``evaluation.json`` and the report.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dewmark import storage
from dewmark.errors import ConfigError
from dewmark.lab.evaluation.results import CLEAN, MARKED, UNMARKED
from dewmark.lab.experiments.cells import Cells
from dewmark.lab.experiments.preference import judge_preferences, tell_costs
from dewmark.lab.experiments.prompts import cut, human_texts, prompt_texts
from dewmark.lab.experiments.recipe import Recipe, SchemeEntry
from dewmark.lab.experiments.scoring import Scoring, effort, scoring_tasks
from dewmark.lab.experiments.store import Cell, Row, write_rows
from dewmark.lab.experiments.tasks import Attacking, Judging, Preparing, Task, Writing
from dewmark.lab.experiments.workers import Workers
from dewmark.workspace import Progress

__all__ = ["Run", "reproduce"]


@dataclass
class Run:
    """One run of a recipe: where its cells (``work``) and results (``out``) are, and who works on it.

    ``tell`` gets lines for the person who waits: what will be asked of an endpoint.
    """

    recipe: Recipe
    out: Path
    work: Path
    workers: Workers
    human: Mapping[str, str] = field(default_factory=dict)
    batch_size: int = 8
    commands: Sequence[str] = ()
    tell: Callable[[str], None] = lambda line: None
    files: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.recipe.human and not self.human:
            raise ConfigError(
                f"the table {self.recipe.name} needs texts that people wrote: "
                "add --human NAME=FILE.jsonl (rows with a text)"
            )
        self.cells = Cells(self.recipe, self.work, self.human)

    @property
    def seeds(self) -> range:
        """The seeds of the run, each with its own key."""
        return range(self.recipe.seeds)

    @property
    def progress(self) -> Progress:
        """Who is told how far it is."""
        return self.workers.progress


def reproduce(run: Run) -> list[Path]:
    """Run the recipe's stages; returns the files of the last ones."""
    for stage in run.recipe.stages:
        _STAGES[stage](run)
    return run.files


def _generate(run: Run) -> None:
    recipe, cells, number = run.recipe, run.cells, run.recipe.texts
    tasks: dict[Path, Writing] = {}
    prompts: dict[str, list[Row]] = {}
    for seed in run.seeds:
        wanted: list[tuple[str, SchemeEntry | None, Cell]] = []
        wanted += [(host, None, cells.unmarked(host, seed)) for host in cells.hosts]
        wanted += [(entry.host, entry, cells.marked(entry, seed)) for entry in recipe.schemes]
        for host, entry, cell in wanted:
            rows = cell.rows(run.work)
            if rows.path in tasks or rows.count() >= number:
                continue
            if host not in prompts:
                tokenizer = cells.infos[host].tokenizer
                prompts[host] = cut(
                    prompt_texts(recipe.prompts, number), tokenizer, tokens=recipe.prompt_tokens
                )
            tasks[rows.path] = Writing(
                number, rows, host, entry, seed, prompts[host], recipe.decoding, run.batch_size
            )
    longest_first = sorted(tasks.values(), key=lambda task: -effort(task.entry) if task.entry else 0)
    _prepare(run, longest_first)
    run.workers.map("writing texts", longest_first)


def _prepare(run: Run, tasks: Sequence[Writing | Scoring]) -> None:
    """Build what schemes keep in the cache before several processes would, each for itself."""
    if min(run.workers.jobs, len(tasks)) < 2:
        return
    entries: dict[str, SchemeEntry] = {}
    for task in tasks:
        if task.entry is not None:
            scheme = task.entry.build()
            if scheme.needs.encoder or scheme.needs.embeddings:
                entries.setdefault(json.dumps([task.entry.host, scheme.to_dict()]), task.entry)
    run.workers.map(
        "preparing schemes", [Preparing(1, entry) for entry in entries.values()], side_by_side=False
    )


def _attack(run: Run) -> None:
    cells = run.cells
    _people(run)
    tasks: dict[Path, Attacking] = {}
    for attack in run.recipe.attacks:
        sources: list[tuple[Cell, int]] = []
        for host in cells.hosts:
            sources += [(cells.unmarked(host, seed), run.recipe.texts) for seed in run.seeds]
            sources += cells.peoples(host)
        for entry in run.recipe.schemes:
            sources += [(cells.marked(entry, seed), run.recipe.texts) for seed in run.seeds]
        for cell, number in sources:
            target = cells.attacked(cell, attack).rows(run.work)
            if target.count() < number and target.path not in tasks:
                tasks[target.path] = Attacking(number, cell.rows(run.work), target, attack)
    tell_costs(run, list(tasks.values()))
    run.workers.map("attacking texts", list(tasks.values()))


def _people(run: Run) -> None:
    """People's texts, cut to the length of completions, as a cell of their own."""
    for host in run.cells.hosts:
        for name, file in run.human.items():
            target = run.cells.people(host, name).rows(run.work)
            recipe, tokenizer = run.recipe, run.cells.infos[host].tokenizer
            rows = human_texts(file, tokenizer, tokens=recipe.decoding.max_new_tokens, number=recipe.texts)
            with target.growing(len(rows), batch=len(rows)) as batches:
                for batch in batches:
                    target.append(
                        [
                            {
                                "id": f"{name}:{rows[i]['id']}",
                                "prompt": "",
                                "text": rows[i]["text"],
                                "seed": i,
                            }
                            for i in batch
                        ]
                    )


def _score(run: Run) -> None:
    _people(run)
    tasks = scoring_tasks(run)
    if "generate" not in run.recipe.stages:  # it may have been another machine that wrote
        _prepare(run, tasks)
    run.workers.map("scoring texts", tasks)
    rows = []
    for entry in run.recipe.schemes:
        for seed in run.seeds:
            for source in run.cells.sources(entry, seed):
                label = {"scheme": entry.label, "attack": source.attack, "seed": seed, "kind": source.kind}
                scored = run.cells.scored(entry, seed, source.cell, tokens=source.tokens)
                rows += [{**label, **row} for row in scored.rows(run.work).read(source.rows)]
    write_rows(run.out / "scores.jsonl", rows)


def _quality(run: Run) -> None:
    labelled: list[tuple[str, int, str, Cell]] = []
    for seed in run.seeds:
        labelled += [
            (_unmarked_label(run, host), seed, UNMARKED, run.cells.unmarked(host, seed))
            for host in run.cells.hosts
        ]
        labelled += [
            (entry.label, seed, MARKED, run.cells.marked(entry, seed)) for entry in run.recipe.schemes
        ]
    tasks: dict[Path, Task] = {}
    for *_, cell in labelled:
        target = run.cells.quality(cell).rows(run.work)
        if target.count() < run.recipe.texts:
            tasks[target.path] = Judging(
                run.recipe.texts, cell.rows(run.work), target, run.recipe.judge, run.batch_size
            )
    run.workers.map(f"judging texts by {run.recipe.judge}", list(tasks.values()))
    rows = []
    for label, seed, kind, cell in labelled:
        found = run.cells.quality(cell).rows(run.work).read(run.recipe.texts)
        rows += [{"scheme": label, "seed": seed, "kind": kind, **row} for row in found]
    write_rows(run.out / "quality.jsonl", rows)


def _unmarked_label(run: Run, host: str) -> str:
    """``none``, or with several hosts ``none (HOST)``."""
    return CLEAN if len(run.cells.hosts) == 1 else f"{CLEAN} ({host})"


def _runtime(run: Run) -> None:
    from dewmark.lab.experiments.runtime import time_schemes

    write_rows(run.out / "runtime.jsonl", time_schemes(run))


def _steal(run: Run) -> None:
    from dewmark.lab.experiments.stealing import steal_marks

    _people(run)
    steal_marks(run)


def _evaluate(run: Run) -> None:
    from dewmark.lab.evaluation.protocol import evaluate
    from dewmark.lab.evaluation.results import read_scores

    evaluate(read_scores(run.out / "scores.jsonl")).save(run.out / "evaluation.json")


def _report(run: Run) -> None:
    from dewmark.reports.experiment_page import write_report

    recipe = run.recipe
    configuration = {
        **recipe.to_dict(),
        "hosts": {name: info.identity for name, info in run.cells.infos.items()},
        "human": {name: Path(file).name for name, file in run.human.items()},
    }
    with storage.atomic_write(run.out / "configuration.json") as stream:
        stream.write((json.dumps(configuration, indent=1, ensure_ascii=False) + "\n").encode())
    run.files += write_report(
        run.out,
        title=recipe.title,
        table=recipe.name,
        configuration=configuration,
        commands=list(run.commands),
    )


_STAGES: dict[str, Callable[[Run], None]] = {
    "generate": _generate,
    "attack": _attack,
    "score": _score,
    "quality": _quality,
    "preference": judge_preferences,
    "runtime": _runtime,
    "steal": _steal,
    "evaluate": _evaluate,
    "report": _report,
}
