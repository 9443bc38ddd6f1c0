"""What a run of a recipe would do: how many texts each stage makes, and how long writing them takes.

Rows that an earlier run has left in the work folder are counted as done. The time is an estimate: a few steps
of each host are timed on this machine, without a mark. Boundary: nothing is written.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dewmark.hosts.base import Host
from dewmark_lab.experiments.outputs import RowFile
from dewmark_lab.experiments.run import Run

_TIMED_TOKENS = 16


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A stage's texts: all of them, and those that an earlier run has made."""

    stage: str
    texts: int
    done: int

    def __str__(self) -> str:
        done = f", {self.done:,} of them done" if self.done else ""
        return f"{self.stage}: {self.texts:,} texts{done}"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The counted stages of a run, and the batches that each host still has to write."""

    stages: tuple[StagePlan, ...]
    batches: dict[str, int]
    tokens: int


def total(plans: Sequence[RunPlan]) -> tuple[StagePlan, ...]:
    """The stages of several runs together."""
    stages: dict[str, list[StagePlan]] = {}
    for each in plans:
        for stage in each.stages:
            stages.setdefault(stage.stage, []).append(stage)
    return tuple(
        StagePlan(name, sum(each.texts for each in found), sum(each.done for each in found))
        for name, found in stages.items()
    )


def plan(run: Run) -> RunPlan:
    """Count the texts of the stages ``generate``, ``attack`` and ``score``."""
    recipe = run.recipe
    written: dict[Path, tuple[str, RowFile]] = {}
    attacked: dict[Path, RowFile] = {}
    scored: dict[Path, RowFile] = {}
    for outputs in (run.outputs, *([run.with_key_per_seed().outputs] if recipe.both_protocols else [])):
        for seed in run.seeds:
            made = [(host, outputs.unmarked(host, seed)) for host in outputs.hosts]
            made += [(entry.host, outputs.marked(entry, seed)) for entry in recipe.schemes]
            written |= {(file := output.rows(run.work)).path: (host, file) for host, output in made}
            attacked |= {
                (file := outputs.attacked(texts, attack).rows(run.work)).path: file
                for attack in recipe.attacks
                for _, texts in made
            }
            scored |= {
                file.path: file
                for entry in recipe.schemes
                for each in outputs.texts_to_score(entry, seed)
                for file in (
                    outputs.scores(entry, seed, each.texts, tokens=each.tokens, back=each.back).rows(
                        run.work
                    ),
                )
            }
    counts = {
        "generate": [file for _, file in written.values()],
        "attack": list(attacked.values()),
        "score": list(scored.values()),
    }
    batches: dict[str, int] = {}
    for host, file in written.values():
        missing = recipe.texts - min(file.count(), recipe.texts)
        batches[host] = batches.get(host, 0) + -(-missing // run.batch_size)
    stages = (_count(stage, counts[stage], recipe.texts) for stage in recipe.stages if stage in counts)
    return RunPlan(tuple(stages), batches, recipe.decoding.max_new_tokens)


def estimate_seconds(
    plans: Sequence[tuple[RunPlan, Run]], load: Callable[[str], Host], *, jobs: int
) -> float:
    """The time to write the missing texts without a mark, from timing one short batch of each host."""
    seconds: dict[str, float] = {}  # per step of a batch, by host
    total = 0.0
    for found, run in plans:
        for name, batches in found.batches.items():
            if batches:
                if name not in seconds:
                    seconds[name] = _seconds_per_step(run, name, load(name))
                total += batches * found.tokens * seconds[name]
    return total / jobs


def _seconds_per_step(run: Run, name: str, host: Host) -> float:
    prompts = [row["text"] for row in run.prompts(name, run.batch_size)]
    decoding = dataclasses.replace(
        run.recipe.decoding, max_new_tokens=_TIMED_TOKENS, min_new_tokens=_TIMED_TOKENS
    )
    for _ in range(2):  # the first call warms up
        started = time.perf_counter()
        host.generate(
            prompts, scheme=None, seeds=range(len(prompts)), decoding=decoding, batch_size=len(prompts)
        )
    return (time.perf_counter() - started) / _TIMED_TOKENS


def _count(stage: str, files: Iterable[RowFile], texts: int) -> StagePlan:
    done = [min(file.count(), texts) for file in files]
    return StagePlan(stage, texts * len(done), sum(done))
