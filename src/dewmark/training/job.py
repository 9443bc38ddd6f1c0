"""One training: what it is for, what it may use, and how its result becomes an artifact.

A scheme's module exposes ``train(job: Job) -> Trained``. Nothing is loaded before it is asked for. Everything
unfinished lies under ``<out>/work`` and goes when the artifact is written; the same command resumes it.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from dewmark import config
from dewmark.artifacts import CARD, Artifact, load_artifact, save_artifact
from dewmark.embeddings.encoders import Encoder
from dewmark.errors import ArtifactError, ConfigError
from dewmark.hosts.base import Host
from dewmark.storage import load_bundle, save_bundle, sha256_file
from dewmark.training.texts import Texts
from dewmark.workspace import HostInfo, Progress

__all__ = ["Job", "Trained", "Trainer", "run"]

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Trained:
    """What a training made. ``report`` tells people how it went: losses, sizes; plain numbers."""

    parameters: Mapping[str, Any]
    arrays: Arrays
    report: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """All that a trainer gets.

    ``open_host`` loads the weights, once; ``encoder`` loads its own when it first encodes. ``steps`` None
    means the scheme's own number. ``device`` is auto or a torch device. ``used`` collects what the card says
    of the texts: `texts_for` fills it.
    """

    scheme: str
    info: HostInfo
    open_host: Callable[[], Host]
    encoder: Encoder
    texts: Texts
    out: Path
    progress: Progress
    lexicon: Path | None = None
    device: str = "auto"
    seed: int = 0
    steps: int | None = None
    used: dict[str, Any] = field(default_factory=dict)

    def texts_for(self, number: int, *, least: int | None = None) -> list[str]:
        """``number`` training texts; the card says which they were.

        A file of the user's gives all that it has, which must be ``least`` or more (by default ``number``).
        """
        texts = self.texts.take(number, least=number if least is None else least)
        self.used["texts"] = self.texts.record(texts)
        return texts

    def keep(self, name: str, make: Callable[[], Arrays]) -> dict[str, NDArray[Any]]:
        """Arrays that take long to make: made once, and read back when the training is resumed."""
        folder = self.work / name
        if (folder / "bundle.json").exists():
            try:
                bundle = load_bundle(folder)
                if bundle.meta.get("job") == self.identity:
                    return bundle.arrays
            except ArtifactError:
                pass  # damaged: made again
        save_bundle(folder, meta={"job": self.identity}, arrays=make())
        return load_bundle(folder).arrays

    @property
    def work(self) -> Path:
        """Where unfinished things lie."""
        return self.out / "work"

    @property
    def identity(self) -> str:
        """Names all that decides the result, but for the device's rounding."""
        return config.config_hash(
            self.scheme,
            self.info.identity,
            self.encoder.identity,
            self.texts.identity,
            None if self.lexicon is None else sha256_file(self.lexicon),
            self.seed,
            self.steps,
        )

    @property
    def command(self) -> str:
        """The command that makes this artifact; files by their names only."""
        parts = ["dewmark", "train", self.scheme, "--host", self.info.name, "--encoder", self.encoder.name]
        if self.texts.option is not None:
            parts += ["--texts", self.texts.option]
        if self.lexicon is not None:
            parts += ["--lexicon", self.lexicon.name]
        if self.steps is not None:
            parts += ["--steps", str(self.steps)]
        return shlex.join([*parts, "--seed", str(self.seed), "--out", self.out.name])


class Trainer(Protocol):
    """The one function that a scheme's training module exposes."""

    def __call__(self, job: Job) -> Trained:
        """Train; resumable through `Job.keep` and `dewmark.training.loop.run_steps`."""


def run(trainer: Trainer, job: Job) -> tuple[Artifact, dict[str, float]]:
    """Train and write the artifact; one that the same job finished before is given back as it is."""
    if (job.out / CARD).exists():
        made = load_artifact(str(job.out), scheme=job.scheme)
        if made.card["training"].get("job") == job.identity:
            return made, dict(made.card["training"]["report"])
        raise ConfigError(f"{job.out} holds another artifact already: choose another --out, or delete it")
    trained = trainer(job)
    report = {name: round(float(value), 6) for name, value in trained.report.items()}
    card = {
        "scheme": job.scheme,
        "host": {
            "name": job.info.name,
            "identity": job.info.identity,
            "tokenizer": job.info.tokenizer.identity,
            "vocab_size": job.info.vocab_size,
        },
        "encoder": {"name": job.encoder.name, "identity": job.encoder.identity, "dim": job.encoder.dim},
        "parameters": dict(trained.parameters),
        "training": {
            "command": job.command,
            "seed": job.seed,
            "job": job.identity,
            "report": report,
            **job.used,
        },
    }
    save_artifact(job.out, card, trained.arrays)
    shutil.rmtree(job.work, ignore_errors=True)
    return load_artifact(str(job.out), scheme=job.scheme), report
