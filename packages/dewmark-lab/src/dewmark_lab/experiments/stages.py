"""The stages of a recipe in their order: train → generate → attack → score → quality … → evaluate → report.

Each stage makes only the rows that are missing. The last ones read the rows of the earlier stages and write
the run's results: ``scores.jsonl``, ``quality.jsonl``, ``evaluation.json`` and, through a callback, the
report.

The stage ``train`` makes the artifacts that a recipe's ``training`` names, in ``WORK/artifacts``; rows of
such schemes use nothing else. A finished artifact is kept, and a stopped training continues.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark.config import cache_dir
from dewmark_lab.evaluation.protocol import evaluate
from dewmark_lab.evaluation.results import scores_in
from dewmark_lab.experiments.outputs import write_json
from dewmark_lab.experiments.quality_stages import judge_preferences, measure_quality, time_schemes
from dewmark_lab.experiments.recipe import SchemeEntry
from dewmark_lab.experiments.run import Run
from dewmark_lab.experiments.scoring_stage import score_texts
from dewmark_lab.experiments.stealing_stage import steal_marks
from dewmark_lab.experiments.text_stages import attack_texts, generate_texts
from dewmark_lab.experiments.workers import LoadedModels, Task
from dewmark_lab.training import TRAINERS
from dewmark_lab.training.job import COMPOSED, TrainingJob, train_artifact
from dewmark_lab.training.texts import HostTexts


def train_artifacts(run: Run) -> None:
    """Train what is missing, one artifact after the other."""
    tasks: dict[str, _TrainArtifact] = {}
    for entry in run.recipe.schemes:
        settings = run.recipe.training.get(entry.scheme)
        if settings is not None:
            folder = str(entry.settings["artifact"])
            tasks.setdefault(folder, _TrainArtifact(1, entry, Path(folder), settings))
    run.workers.map("training artifacts", list(tasks.values()), parallel=False)


@dataclass(frozen=True)
class _TrainArtifact(Task):
    """Train a scheme's artifact for its row's host."""

    entry: SchemeEntry
    out: Path
    settings: Mapping[str, Any]

    def run(self, models: LoadedModels, on_rows: Callable[[int], None]) -> None:
        from dewmark import hosts
        from dewmark.encoders import load_encoder

        open_host = functools.partial(models.host, self.entry.host)
        info = hosts.host_info(self.entry.host, progress=models.progress)
        lexicon = self.settings.get("lexicon")
        job = TrainingJob(
            scheme=self.entry.scheme,
            info=info,
            open_host=open_host,
            encoder=load_encoder(self.settings["encoder"], progress=models.progress, device=models.device),
            texts=HostTexts(info, open_host, cache=cache_dir(), seed=0, progress=models.progress),
            out=self.out,
            progress=models.progress,
            lexicon=None if lexicon is None else Path(lexicon),
            device=models.device,
            steps=self.settings.get("steps"),
            contexts=self.settings.get("contexts", COMPOSED),
        )
        train_artifact(TRAINERS[self.entry.scheme], job)
        on_rows(1)


ReportWriter = Callable[[Path, Mapping[str, Any]], list[Path]]
"""Writes a report on the results in a folder of a run of this configuration; returns the files."""


def reproduce(run: Run, *, write_report: ReportWriter) -> list[Path]:
    """Run the recipe's stages in order; returns the files that ``write_report`` wrote."""
    files: list[Path] = []
    for stage in run.recipe.stages:
        if stage == "report":
            configuration = {
                **run.recipe.to_dict(),
                "hosts": {name: info.identity for name, info in run.infos.items()},
                "human": {name: Path(file).name for name, file in run.human.items()},
            }
            write_json(run.out / "configuration.json", configuration)
            files += write_report(run.out, configuration)
        else:
            _STAGES[stage](run)
    return files


def _evaluate(run: Run) -> None:
    write_json(run.out / "evaluation.json", evaluate(scores_in(run.out / "scores.jsonl")).to_dict())


_STAGES: dict[str, Callable[[Run], None]] = {
    "train": train_artifacts,
    "generate": generate_texts,
    "attack": attack_texts,
    "score": score_texts,
    "quality": measure_quality,
    "preference": judge_preferences,
    "runtime": time_schemes,
    "steal": steal_marks,
    "evaluate": _evaluate,
}
