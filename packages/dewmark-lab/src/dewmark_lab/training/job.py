"""A training job: its inputs, its resumable working files, and the artifact that it writes.

The module of a trainable scheme provides ``train(job) -> Trained``, registered under `TRAINERS`. Models
load on first use. Unfinished work lies under ``<out>/work`` and is deleted when the artifact is written;
repeating the command resumes it.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dewmark import config
from dewmark.arrays import F32
from dewmark.encoders.base import Encoder
from dewmark.errors import ArtifactError, ConfigError
from dewmark.hosts.base import Host
from dewmark.storage import load_bundle, save_bundle, sha256_file
from dewmark.workspace import HostInfo, Progress, Workspace
from dewmark_lab.artifacts import CARD, Artifact, load_artifact, save_artifact
from dewmark_lab.training.texts import TrainingTexts

Arrays = Mapping[str, NDArray[Any]]

COMPOSED, ENCODED = "composed", "encoded"


@dataclass(frozen=True)
class Trained:
    """The result of a training; ``report`` holds figures for the user, such as losses and sizes."""

    parameters: Mapping[str, Any]
    arrays: Arrays
    report: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingJob:
    """The inputs of a trainer.

    ``open_host`` loads the host's weights, once. ``steps`` None means the scheme's default. ``contexts`` says
    whether ATW's are composed of token vectors or encoded as texts. ``device`` is auto or a torch device.
    ``used`` collects the card's entries about training data, which `texts_for` adds.
    """

    scheme: str
    info: HostInfo
    open_host: Callable[[], Host]
    encoder: Encoder
    texts: TrainingTexts
    out: Path
    progress: Progress
    lexicon: Path | None = None
    device: str = "auto"
    seed: int = 0
    steps: int | None = None
    contexts: str = COMPOSED
    used: dict[str, Any] = field(default_factory=dict)

    def texts_for(self, number: int, *, least: int | None = None) -> list[str]:
        """``number`` training texts, recorded in the card.

        A file of the user's returns all its texts, of which there must be ``least`` (by default ``number``).
        """
        texts = self.texts.take(number, least=number if least is None else least)
        self.used["texts"] = self.texts.record(texts)
        return texts

    def cached(self, name: str, make: Callable[[], Arrays]) -> dict[str, NDArray[Any]]:
        """Arrays that take long to make: made once, and read back when the training resumes."""
        folder = self.work / name
        if (folder / "bundle.json").exists():
            try:
                bundle = load_bundle(folder)
                if bundle.meta.get("job") == self.identity:
                    return bundle.arrays
            except ArtifactError:
                pass  # damaged: make them again
        save_bundle(folder, meta={"job": self.identity}, arrays=make())
        return load_bundle(folder).arrays

    def encode(self, description: str, texts: Sequence[str], *, batch_size: int = 64) -> F32:
        """Encode N texts to (N, d) in batches, with progress."""
        rows = []
        for start in range(0, len(texts), batch_size):
            self.progress(description, start, len(texts))
            rows.append(self.encoder.encode(texts[start : start + batch_size]))
        self.progress(description, len(texts), len(texts))
        return np.concatenate(rows)

    @property
    def workspace(self) -> Workspace:
        """A workspace for encoders, with the user's cache."""
        return Workspace(cache=config.cache_dir(), progress=self.progress)

    @property
    def work(self) -> Path:
        """The folder for unfinished work."""
        return self.out / "work"

    @property
    def identity(self) -> str:
        """A hash of everything that determines the result, except for the device's rounding."""
        return config.config_hash(
            self.scheme,
            self.info.identity,
            self.encoder.identity,
            self.texts.identity,
            None if self.lexicon is None else sha256_file(self.lexicon),
            self.seed,
            self.steps,
            *([] if self.contexts == COMPOSED else [self.contexts]),
        )

    @property
    def command(self) -> str:
        """The command that makes this artifact, with files by name only."""
        parts = ["dewmark", "train", self.scheme, "--host", self.info.name, "--encoder", self.encoder.name]
        if self.texts.option is not None:
            parts += ["--texts", self.texts.option]
        if self.lexicon is not None:
            parts += ["--lexicon", self.lexicon.name]
        if self.steps is not None:
            parts += ["--steps", str(self.steps)]
        if self.contexts != COMPOSED:
            parts += ["--contexts", self.contexts]
        return shlex.join([*parts, "--seed", str(self.seed), "--out", self.out.name])


Trainer = Callable[[TrainingJob], Trained]
"""The function that a trainable scheme's module provides."""


def train_artifact(trainer: Trainer, job: TrainingJob) -> tuple[Artifact, dict[str, float]]:
    """Train and write the artifact; if the same job has finished before, load its artifact instead."""
    if (job.out / CARD).exists():
        artifact = load_artifact(str(job.out), scheme=job.scheme)
        if artifact.card["training"].get("job") == job.identity:
            return artifact, dict(artifact.card["training"]["report"])
        raise ConfigError(f"{job.out} already holds another artifact: choose another --out, or delete it")
    trained = trainer(job)
    report = {name: round(float(value), 6) for name, value in trained.report.items()}
    how = {"command": job.command, "seed": job.seed, "job": job.identity}
    card = {
        "scheme": job.scheme,
        "host": {name: getattr(job.info, name) for name in ("name", "identity", "vocab_size")}
        | {"tokenizer": job.info.tokenizer.identity},
        "encoder": {"name": job.encoder.name, "identity": job.encoder.identity, "dim": job.encoder.dim},
        "parameters": dict(trained.parameters),
        "training": {**how, "report": report, **job.used},
    }
    save_artifact(job.out, card, trained.arrays)
    shutil.rmtree(job.work, ignore_errors=True)
    return load_artifact(str(job.out), scheme=job.scheme), report
