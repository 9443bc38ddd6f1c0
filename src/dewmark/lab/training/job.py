"""One training: what it is for, what it may use, and how its result becomes an artifact.

A scheme's module exposes ``train(job: Job) -> Trained``. Nothing is loaded before it is asked for. Everything
unfinished lies under ``<out>/work`` and goes when the artifact is written; the same command resumes it.

Texts to train on: a file of the user's, or what the host itself writes without a mark.

By default the host continues the package's openings (the same ones again, with other seeds, once all are
used). Its texts are kept in the cache, by host and seed, and appended batch by batch: an interrupted run goes
on, and the next training for that host starts at once.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from dewmark import config, storage
from dewmark.artifacts import CARD, Artifact, load_artifact, save_artifact
from dewmark.decoding import Decoding
from dewmark.encoders.base import Encoder
from dewmark.errors import ArtifactError, ConfigError, InputError
from dewmark.hosts.base import Host
from dewmark.scheme import check_text
from dewmark.storage import load_bundle, save_bundle, sha256_file
from dewmark.workspace import HostInfo, Progress

__all__ = ["FileTexts", "HostTexts", "Job", "Texts", "Trained", "Trainer", "run"]

TOKENS = 200  # of one of the host's own texts

_BATCH = 32


class Texts(ABC):
    """Where training texts come from.

    ``source`` says so in the card, ``option`` is what ``--texts`` was given (a file's name), ``identity``
    changes whenever the texts do.
    """

    def __init__(self, source: str, *, identity: str, option: str | None = None) -> None:
        self.source = source
        self.identity = identity
        self.option = option

    @abstractmethod
    def take(self, number: int, *, least: int) -> list[str]:
        """``number`` texts, always the same ones; a file gives all that it has, ``least`` or more."""

    def record(self, texts: Sequence[str]) -> dict[str, Any]:
        """What the card says of the texts that were used."""
        digest = hashlib.sha256("\x00".join(texts).encode()).hexdigest()
        return {"source": self.source, "number": len(texts), "sha256": digest}


class FileTexts(Texts):
    """The lines of a JSONL file with ``text`` (or ``response``) each, or the paragraphs of a text file."""

    def __init__(self, path: Path) -> None:
        try:
            digest = storage.sha256_file(path)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from None
        super().__init__(path.name, identity=digest, option=path.name)
        self.path = path

    def take(self, number: int, *, least: int) -> list[str]:
        """All texts of the file; it must hold at least ``least`` of them."""
        texts = list(dict.fromkeys(self._read()))
        if len(texts) < least:
            raise InputError(
                f"{self.path} holds {len(texts)} different texts and at least {least} are needed: add more"
            )
        return texts

    def _read(self) -> list[str]:
        if self.path.suffix != ".jsonl":
            try:
                whole = self.path.read_text(encoding="utf-8-sig")
            except UnicodeDecodeError as error:
                raise InputError(f"{self.path} is not UTF-8 text (byte {error.start})") from None
            return [part.strip() for part in whole.split("\n\n") if part.strip()]
        texts = []
        for number, row in storage.read_jsonl(self.path):
            text = str(row.get("text", row.get("response", "")))
            check_text(text, f"{self.path}, line {number}: text")
            texts.append(text)
        return texts


class HostTexts(Texts):
    """Unmarked continuations of the package's openings by the host, 200 tokens each."""

    def __init__(
        self,
        info: HostInfo,
        open_host: Callable[[], Host],
        *,
        cache: Path,
        seed: int,
        progress: Progress,
    ) -> None:
        decoding: dict[str, Any] = {
            "max_new_tokens": TOKENS,
            "no_repeat_ngram": 4,
            "min_new_tokens": TOKENS // 2,
        }
        identity = config.config_hash(info.identity, info.tokenizer.identity, seed, decoding)
        super().__init__("the host's own continuations of the package's openings", identity=identity)
        self._open_host = open_host
        self._seed = seed
        self._progress = progress
        self._decoding = Decoding(**decoding)
        self._file = cache / "training" / f"texts-{identity}.jsonl"
        self._host_name = info.name

    def take(self, number: int, *, least: int) -> list[str]:
        """``number`` texts; those that the cache lacks are written now."""
        wanted = -(-number // _BATCH) * _BATCH  # whole batches, so that a text never depends on the number
        file = storage.ResumableRows(self._file, wanted, batch_size=_BATCH)
        prompts = openings()
        description = f"{self._host_name} is writing training texts"
        for rows in file.pending():
            self._progress(description, rows.start, wanted)
            made = self._open_host().generate(
                [prompts[i % len(prompts)] for i in rows],
                scheme=None,
                seeds=[self._seed + i for i in rows],
                batch_size=_BATCH,
                decoding=self._decoding,
            )
            file.append([{"text": f"{each.prompt}{each.text}"} for each in made])
        self._progress(description, wanted, wanted)
        return [row["text"] for row in file.read()][:number]


def openings() -> list[str]:
    """The package's openings; any stretch of them mixes the genres."""
    file = resources.files("dewmark") / "data" / "openings.jsonl"
    return [json.loads(line)["prompt"] for line in file.read_text(encoding="utf-8").splitlines()]


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
        """Train; resumable through `Job.keep` and `dewmark.lab.training.loop.run_steps`."""


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
