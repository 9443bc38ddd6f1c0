"""The stage that steals marks: a victim's texts are watched, its mark is learned and used, and judged.

The victim's own texts (``genuine``) and the attacker's are scored by the victim's detector beside people's
texts and evaluated like any table; ``stealing.jsonl`` holds what the attack says of itself. The recipe's
texts are the corpus that the attacker sees; prompts of forged texts are none of the corpus's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dewmark import storage
from dewmark.lab.evaluation.results import CLEAN, HUMAN, MARKED
from dewmark.lab.experiments.prompts import cut, held_out
from dewmark.lab.experiments.recipe import SchemeEntry
from dewmark.lab.experiments.scoring import Scoring, Sheet
from dewmark.lab.experiments.store import Cell, Row, Rows, write_rows
from dewmark.lab.experiments.tasks import Bench, Task, Tell

if TYPE_CHECKING:
    from dewmark.lab.experiments.stages import Run

__all__ = ["Stealing", "steal_marks"]

_RESULT = "result.json"


@dataclass(frozen=True)
class Stealing(Task):
    """Learn a victim's mark from ``corpus`` of its texts and the host's, and write ``rows`` texts with it."""

    entry: SchemeEntry
    seed: int
    settings: Mapping[str, Any]
    marked: Rows
    base: Rows
    corpus: int
    people: Sequence[tuple[Rows, int]]
    prompts: Sequence[Row]
    target: Rows

    def run(self, bench: Bench, tell: Tell) -> None:
        """Write all texts, and what the attack says of itself; finished batches survive a kill."""
        from dewmark.attacks.stealing.steal import StealSettings, steal

        with self.target.growing(self.rows, batch=self.rows) as batches:
            for _ in batches:
                seen, scrubbed = self.marked.read(self.corpus), []
                prompts = [row["text"] for row in self.prompts]
                if self.settings.get("mode") == "scrub":  # texts that the attacker did not learn from
                    seen, scrubbed = seen[: -self.rows], seen[-self.rows :]
                    prompts = [row["prompt"] for row in scrubbed]
                result = steal(
                    bench.scheme(self.entry, self.seed),
                    bench.host(self.entry.host),
                    [row["text"] for row in seen],
                    [row["text"] for row in self.base.read(self.corpus)],
                    [row["text"] for rows, number in self.people for row in rows.read(number)],
                    settings=StealSettings(**self.settings),
                    prompts=prompts,
                    targets=[row["text"] for row in scrubbed],
                    resume_dir=self.target.path.parent / "written",
                    progress=bench.progress,
                )
                with storage.atomic_write(self.target.path.parent / _RESULT) as stream:
                    stream.write((json.dumps(result.to_dict()) + "\n").encode())
                self.target.append([{"id": f"{i}", "text": text} for i, text in enumerate(result.texts)])
                tell(self.rows)


@dataclass(frozen=True)
class _Judged:
    """Texts of one row of the table: its label, their kind, their cell, and how many."""

    label: str
    kind: str
    cell: Cell
    number: int


def steal_marks(run: Run) -> None:
    """Steal, score, and write ``scores.jsonl`` and ``stealing.jsonl``."""
    stolen = {
        (entry.label, seed): _attacks(run, entry, seed) for entry in run.recipe.schemes for seed in run.seeds
    }
    tasks = [task for each in stolen.values() for task in each.values()]
    run.workers.map("stealing marks", [task for task in tasks if task.target.count() < task.rows])
    scoring: list[Task] = []
    scores: list[tuple[Row, Rows, int]] = []
    said: list[Row] = []
    for entry in run.recipe.schemes:
        for seed in run.seeds:
            sheets: dict[Path, Sheet] = {}
            for each in _judged(run, entry, seed, stolen[entry.label, seed]):
                target = run.cells.scored(entry, seed, each.cell).rows(run.work)
                place = {"scheme": each.label, "attack": CLEAN, "seed": seed, "kind": each.kind}
                scores.append((place, target, each.number))
                if target.count() < each.number:
                    rows = each.cell.rows(run.work)
                    sheets[target.path] = Sheet(rows, {entry.test: target}, each.number)
            if sheets:
                scoring.append(Scoring.of(run, entry, seed, list(sheets.values())))
            for label, task in stolen[entry.label, seed].items():
                result = json.loads((task.target.path.parent / _RESULT).read_text(encoding="utf-8"))
                said.append({"scheme": entry.label, "attack": label, "seed": seed, **result})
    run.workers.map("scoring texts", scoring)
    scored = [{**place, **row} for place, target, number in scores for row in target.read(number)]
    write_rows(run.out / "scores.jsonl", scored)
    write_rows(run.out / "stealing.jsonl", said)


def _judged(run: Run, entry: SchemeEntry, seed: int, stolen: Mapping[str, Stealing]) -> list[_Judged]:
    """The victim's own texts and each attack's, all beside the same texts of people."""
    alone = len(run.recipe.schemes) == 1
    number = next((task.rows for task in stolen.values()), run.recipe.texts)
    rows = {"genuine": run.cells.marked(entry, seed)}
    rows |= {label: _cell(run, entry, seed, task.settings, task.rows) for label, task in stolen.items()}
    found = []
    for label, cell in rows.items():
        name = label if alone else f"{entry.label} {label}"
        found.append(_Judged(name, MARKED, cell, number))
        found += [_Judged(name, HUMAN, people, count) for people, count in run.cells.peoples(entry.host)]
    return found


def _attacks(run: Run, entry: SchemeEntry, seed: int) -> dict[str, Stealing]:
    """The recipe's attacks on one victim; one that knows DEW's form is for DEW only."""
    recipe, cells = run.recipe, run.cells
    options = recipe.options["steal"]
    number = int(options["texts"])
    prompts = cut(
        held_out(recipe.prompts, number, beside=recipe.texts),
        cells.infos[entry.host].tokenizer,
        tokens=recipe.prompt_tokens,
    )
    found = {}
    for label, given in options["attacks"].items():
        if given.get("method") == "embedding" and entry.scheme != "dew":
            continue
        settings = {**given, "texts": number, "tokens": recipe.decoding.max_new_tokens}
        found[label] = Stealing(
            number,
            entry,
            seed,
            settings,
            cells.marked(entry, seed).rows(run.work),
            cells.unmarked(entry.host, seed).rows(run.work),
            recipe.texts,
            [(cell.rows(run.work), count) for cell, count in cells.peoples(entry.host)],
            prompts,
            _cell(run, entry, seed, settings, number).rows(run.work),
        )
    return found


def _cell(run: Run, entry: SchemeEntry, seed: int, settings: Mapping[str, Any], number: int) -> Cell:
    return Cell(
        "steal",
        {
            "marked": run.cells.marked(entry, seed).hash,
            "base": run.cells.unmarked(entry.host, seed).hash,
            "people": [cell.hash for cell, _ in run.cells.peoples(entry.host)],
            "corpus": run.recipe.texts,
            "settings": dict(settings),
            "number": number,
        },
    )
