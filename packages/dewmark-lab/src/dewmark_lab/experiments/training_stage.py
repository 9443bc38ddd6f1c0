"""The ``train`` stage: artifacts of learned schemes for the recipe's hosts, before anything is written.

A recipe's ``training`` names the encoder of each learned scheme (and its lexicon, contexts or number of
steps). Rows of such a scheme use the artifact that this stage makes, in ``WORK/artifacts``, and nothing else:
a packaged artifact, trained for another host and encoder, is never put in its place. A finished artifact is
kept, and a stopped training continues. Boundary: `dewmark_lab.training` trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark.config import cache_dir
from dewmark_lab.experiments.recipe import SchemeEntry
from dewmark_lab.experiments.run import Run
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
        """Train it; a finished one is only checked."""
        from dewmark import hosts
        from dewmark.encoders import load_encoder

        info = hosts.host_info(self.entry.host, progress=models.progress)
        lexicon = self.settings.get("lexicon")
        job = TrainingJob(
            scheme=self.entry.scheme,
            info=info,
            open_host=lambda: models.host(self.entry.host),
            encoder=load_encoder(self.settings["encoder"], progress=models.progress, device=models.device),
            texts=HostTexts(
                info,
                lambda: models.host(self.entry.host),
                cache=cache_dir(),
                seed=0,
                progress=models.progress,
            ),
            out=self.out,
            progress=models.progress,
            lexicon=None if lexicon is None else Path(lexicon),
            device=models.device,
            steps=self.settings.get("steps"),
            contexts=self.settings.get("contexts", COMPOSED),
        )
        train_artifact(TRAINERS[self.entry.scheme], job)
        on_rows(1)
