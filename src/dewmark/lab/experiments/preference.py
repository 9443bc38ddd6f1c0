"""What a run asks of chat models: the preference stage, and what asking will cost, told before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dewmark.lab.experiments.store import write_rows
from dewmark.lab.experiments.tasks import Attacking

if TYPE_CHECKING:
    from dewmark.lab.experiments.stages import Run

__all__ = ["judge_preferences", "tell_costs"]


def tell_costs(run: Run, tasks: Sequence[Attacking]) -> None:
    """Tell what attacks will ask of an endpoint, all texts of an attack together."""
    from dewmark.attacks.base import Attack

    for label in dict.fromkeys(task.attack.label for task in tasks):
        attack = run.cells.attack(label)
        if type(attack).plan is Attack.plan:  # it asks nobody
            continue
        rows = [row for task in tasks if task.attack.label == label for row in task.source.read(task.rows)]
        cost = attack.plan([row["text"] for row in rows], seeds=[row["seed"] for row in rows])
        if cost is not None:
            run.tell(f"{label}: {cost}")


def judge_preferences(run: Run) -> None:
    """Pairs of marked and unmarked texts before a chat model, whose answers are kept on disk."""
    from dewmark.hosts.chat.settings import ChatSettings
    from dewmark.lab.evaluation.preference import judge_estimate, judge_pairs, pair_rows

    settings = ChatSettings(**run.recipe.options.get("preference", {}))
    chat, number = settings.open(run.progress), run.recipe.texts
    pairs = {}
    for entry in run.recipe.schemes:
        for seed in run.seeds:
            marked = run.cells.marked(entry, seed).rows(run.work).read(number)
            unmarked = run.cells.unmarked(entry.host, seed).rows(run.work).read(number)
            pairs[entry.label, seed] = pair_rows(marked, unmarked, seed=seed)
    cost = judge_estimate(settings, [pair for each in pairs.values() for pair in each], kept=chat)
    if settings.host is None and cost.requests:
        run.tell(f"preference: {cost}")
    rows = []
    for (label, _), each in pairs.items():
        rows += judge_pairs(chat, each, scheme=label, progress=run.progress)
    write_rows(run.out / "preference.jsonl", rows)
