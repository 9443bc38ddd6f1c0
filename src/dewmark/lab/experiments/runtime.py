"""The runtime stage: all schemes in one process, round by round; a finished round stays.

Seeds are rounds here, and texts are those of a round. Seconds differ from run to run, so a run that was
killed goes on with the rounds that are missing, and one that is whole is read.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from dewmark.lab.experiments.prompts import cut, prompt_texts
from dewmark.lab.experiments.store import Cell, Row

if TYPE_CHECKING:
    from dewmark.lab.experiments.stages import Run

__all__ = ["time_schemes"]


def time_schemes(run: Run) -> list[Row]:
    """Rows of ``runtime.jsonl``: scheme, phase, round, seconds per text, peak memory, device."""
    from dewmark.lab.evaluation.runtime import device_name, time_round, warm_up

    recipe = run.recipe
    bench = run.workers.bench()
    found: list[Row] = []
    for name in run.cells.hosts:
        entries = [entry for entry in recipe.schemes if entry.host == name]
        per_round = 2 * len(entries) + 1  # no mark is generated and not detected
        host = bench.host(name)
        cell = Cell(
            "runtime",
            {
                "device": device_name(host),
                "schemes": [run.cells.marked(entry, 0).hash for entry in entries],
                "labels": [entry.label for entry in entries],
                "unmarked": run.cells.unmarked(name, 0).hash,
                "texts": recipe.texts,
            },
        )
        target, total = cell.rows(run.work), per_round * recipe.seeds
        if target.count() < total:
            texts = prompt_texts(recipe.prompts, recipe.texts * recipe.seeds)
            rows = cut(texts, host.info.tokenizer, tokens=recipe.prompt_tokens)
            prompts = [row["text"] for row in rows]
            schemes = {}
            for entry in entries:
                schemes[entry.label] = bench.scheme(entry, 0)
                run.progress("binding schemes", len(schemes), len(entries))
            warm_up(host, schemes, prompts[0], decoding=recipe.decoding)
            with target.growing(total, batch=per_round) as batches:
                for batch in batches:
                    number = batch.start // per_round
                    run.progress("timing rounds", number, recipe.seeds)
                    own = prompts[number * recipe.texts : (number + 1) * recipe.texts]
                    timed = time_round(host, schemes, own, decoding=recipe.decoding, number=number)
                    target.append([dataclasses.asdict(each) for each in timed])
            run.progress("timing rounds", recipe.seeds, recipe.seeds)
        found += target.read(total)
    return found
