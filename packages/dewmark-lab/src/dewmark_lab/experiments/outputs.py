"""What stages produce and where it is stored: one folder per output, named by a hash of its inputs.

``WORK/<stage>/<hash>/`` holds ``inputs.json``, for people to read, and ``rows.jsonl``, which grows batch by
batch and is flushed after each one. If a run is killed, the unfinished batch is cut off and made again.
Batches depend only on the order of the rows, so the resumed file is identical. The number of rows is not part
of the hash: a run that asks for more rows continues the file, one that asks for fewer reads the first ones.

`RunOutputs` names the outputs of a recipe. Unmarked texts belong to a host and a seed, so all schemes of a
host share them, clean and attacked; rows of a table that differ only in their test share marked texts too.

A writer locks the output's folder, and the system releases the lock when the process dies. Two runs that
share a work folder therefore wait for each other, one output at a time. Boundary: no weights are loaded here.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dewmark import config, storage
from dewmark.attack import Attack, load_attack
from dewmark.errors import ConfigError, StorageError
from dewmark.prompts import Row
from dewmark.translation import back_languages
from dewmark.version import __version__
from dewmark.workspace import HostInfo
from dewmark_lab.artifacts import load_artifact
from dewmark_lab.evaluation.results import CLEAN, HUMAN, MARKED, UNMARKED
from dewmark_lab.experiments.recipe import AttackEntry, Recipe, SchemeEntry, experiment_key
from dewmark_lab.prompt_sources import source_identity

_FORMAT = 1


@dataclass(frozen=True)
class StageOutput:
    """An output of a stage, defined by everything that determines its rows, as plain JSON values."""

    stage: str
    inputs: Mapping[str, Any]

    @property
    def hash(self) -> str:
        """16 hex digits that identify stage, inputs and package version."""
        return config.config_hash(_FORMAT, __version__, self.stage, dict(self.inputs))

    def rows(self, work: Path) -> RowFile:
        """The file with this output's rows in a work folder."""
        return RowFile(work / self.stage / self.hash / "rows.jsonl", self.inputs)


@dataclass(frozen=True)
class RowFile:
    """The JSONL file of a `StageOutput`; plain data that can be sent to another process."""

    path: Path
    inputs: Mapping[str, Any]

    def count(self) -> int:
        """How many complete rows the file has."""
        try:
            with self.path.open("rb") as stream:
                return sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(1 << 20), b""))
        except FileNotFoundError:
            return 0

    def read(self, number: int) -> list[Row]:
        """The first ``number`` rows; it is an error if there are fewer."""
        try:
            with self.path.open("rb") as stream:
                rows: list[Row] = [json.loads(line) for line in itertools.islice(stream, number)]
        except FileNotFoundError:
            rows = []
        except ValueError:
            raise StorageError(f"{self.path} is damaged: delete it and run again") from None
        if len(rows) < number:
            raise ConfigError(
                f"{self.path} has {len(rows)} of {number} rows: run the stage {self.stage!r} first"
            )
        return rows

    @property
    def stage(self) -> str:
        """The stage that writes the file."""
        return self.path.parents[1].name

    @contextlib.contextmanager
    def missing_batches(self, number: int, *, size: int) -> Iterator[Iterator[range]]:
        """Lock the file and yield the batches (ranges of rows) that the caller must make and `append`.

        An incomplete batch of an earlier run is discarded, unless that run had finished.
        """
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as error:
            raise StorageError(f"cannot write {folder}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "inputs.json").exists():
                with storage.atomic_write(folder / "inputs.json") as stream:
                    text = json.dumps(self.inputs, indent=1, ensure_ascii=False, sort_keys=True)
                    stream.write((text + "\n").encode())
            yield storage.ResumableRows(self.path, number, batch_size=size).pending()
        finally:
            os.close(lock)

    def append(self, rows: Sequence[Row]) -> None:
        """Add a finished batch and flush it to disk."""
        storage.append_jsonl(self.path, list(rows))


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write a whole JSONL file atomically."""
    with storage.atomic_write(path) as stream:
        stream.write(storage.encode_jsonl(rows))


@dataclass(frozen=True)
class TextsToScore:
    """The first ``number`` texts of an output that a scheme's detector scores, with their kind and attack.

    ``tokens`` is the length to which each text is truncated; None keeps it whole. ``back`` are the same texts
    translated back into English, if detectors score those too.
    """

    kind: str
    attack: str
    texts: StageOutput
    number: int
    tokens: int | None = None
    back: StageOutput | None = None


@dataclass
class RunOutputs:
    """The outputs of one run of a recipe. ``human`` maps names to files of human-written texts."""

    recipe: Recipe
    work: Path
    human: Mapping[str, str]
    _schemes: dict[str, dict[str, Any]] = field(default_factory=dict)  # identities, by label
    _models: dict[str, str] = field(default_factory=dict)  # identities of judge and readers, by name

    @property
    def hosts(self) -> list[str]:
        """The distinct hosts of the recipe."""
        return list(dict.fromkeys(entry.host for entry in self.recipe.schemes))

    @functools.cached_property
    def infos(self) -> dict[str, HostInfo]:
        """Each host's tokenizer and identity, without its weights."""
        from dewmark import hosts

        return {name: hosts.host_info(name) for name in self.hosts}

    @functools.cached_property
    def attacks(self) -> dict[str, Attack]:
        """The recipe's attacks by label."""
        return {each.label: load_attack(each.attack, **each.settings) for each in self.recipe.attacks}

    def unmarked(self, host: str, seed: int) -> StageOutput:
        """A host's unmarked texts under a seed."""
        return self._texts(host, seed, None)

    def marked(self, entry: SchemeEntry, seed: int) -> StageOutput:
        """A scheme's marked texts under a seed."""
        return self._texts(entry.host, seed, self._scheme_identity(entry, seed))

    def human_texts(self, host: str, name: str) -> StageOutput:
        """A file of human-written texts, truncated to the length of completions in the host's tokens."""
        return StageOutput(
            "human",
            {
                "texts": source_identity(self.human[name]),
                "tokenizer": self.infos[host].tokenizer.identity,
                "tokens": self.recipe.decoding.max_new_tokens,
            },
        )

    def all_human_texts(self, host: str) -> list[tuple[StageOutput, int]]:
        """`human_texts` of every file, each with the number of rows to use."""
        outputs = [self.human_texts(host, name) for name in self.human]
        return [(each, min(each.rows(self.work).count(), self.recipe.texts)) for each in outputs]

    def attacked(self, texts: StageOutput, attack: AttackEntry) -> StageOutput:
        """Texts after an attack."""
        return StageOutput("attack", {"texts": texts.hash, "attack": self.attacks[attack.label].identity()})

    def translated_back(self, texts: StageOutput) -> StageOutput:
        """Texts after translation back into English."""
        return StageOutput("back", {"texts": texts.hash, "translators": back_languages()})

    def column(self, attack: AttackEntry) -> str:
        """An attack's name in tables: the recipe's label, unless that is just the attack's name.

        In that case it is the attack's own label, which may name an engine or language of this machine.
        """
        return self.attacks[attack.label].label if attack.label == attack.attack else attack.label

    def quality(self, texts: StageOutput) -> StageOutput:
        """The quality of texts under the recipe's judge."""
        return StageOutput("quality", {"texts": texts.hash, "judge": self._judge})

    def scores(
        self,
        entry: SchemeEntry,
        seed: int,
        texts: StageOutput,
        *,
        tokens: int | None = None,
        back: StageOutput | None = None,
    ) -> StageOutput:
        """The scores of texts, or of their first ``tokens`` tokens, under a scheme with the key of a seed.

        ``back`` are the same texts translated back, if they are scored too.
        """
        return StageOutput(
            "score",
            {
                **({} if tokens is None else {"tokens": tokens}),
                **({} if back is None else {"back": back.hash}),
                **({} if entry.reader_model is None else {"reader": self._identity(entry.reader_model)}),
                "scheme": self._scheme_identity(entry, seed),
                "host": "" if entry.build().host_free else self.infos[entry.host].identity,
                "test": entry.test,
                **({} if entry.score == "z" else {"score": entry.score}),
                "texts": texts.hash,
                "marked": self.marked(entry, seed).hash,  # a scheme may keep records of its texts
                "number": self.recipe.texts,
            },
        )

    def texts_to_score(self, entry: SchemeEntry, seed: int) -> Iterator[TextsToScore]:
        """All texts that a scheme's detector scores under the key of a seed, clean ones first.

        The host's texts are also scored at each of the recipe's lengths, labelled as a truncation attack.
        """
        number = self.recipe.texts
        clean = [
            (MARKED, self.marked(entry, seed), number),
            (UNMARKED, self.unmarked(entry.host, seed), number),
        ]
        truncated = [
            TextsToScore(kind, f"truncate-{tokens}", texts, rows, tokens)
            for kind, texts, rows in clean
            for tokens in self.recipe.lengths
            if tokens < self.recipe.decoding.max_new_tokens
        ]
        clean += [(HUMAN, *human) for human in self.all_human_texts(entry.host)]
        for kind, texts, rows in clean:
            yield TextsToScore(kind, CLEAN, texts, rows)
        yield from truncated
        for attack in self.recipe.attacks:
            for kind, texts, rows in clean:
                attacked = self.attacked(texts, attack)
                back = self.translated_back(attacked) if attack.translate_back else None
                yield TextsToScore(kind, self.column(attack), attacked, rows, back=back)

    def _texts(self, host: str, seed: int, scheme: dict[str, Any] | None) -> StageOutput:
        return StageOutput(
            "generate",
            {
                "host": self.infos[host].identity,
                "prompts": self._prompts,
                **({"chat": True} if self.recipe.chat else {}),
                "prompt_tokens": self.recipe.prompt_tokens,
                "decoding": self.recipe.decoding.to_dict(),
                "seed": seed,
                "scheme": scheme,
            },
        )

    def _scheme_identity(self, entry: SchemeEntry, seed: int) -> dict[str, Any]:
        """Scheme, settings, artifact, and the fingerprint of the key."""
        if entry.label not in self._schemes:
            scheme = entry.build()
            artifact = None
            if scheme.needs.artifact:
                artifact = load_artifact(getattr(scheme, "artifact", None), scheme=entry.scheme).identity
            self._schemes[entry.label] = {
                "name": entry.scheme,
                # where an artifact lies does not matter
                "settings": {name: value for name, value in scheme.to_dict().items() if name != "artifact"},
                "artifact": artifact,
            }
        return {**self._schemes[entry.label], "key": experiment_key(self.recipe.key_number(seed)).fingerprint}

    @functools.cached_property
    def _prompts(self) -> str:
        return source_identity(self.recipe.prompts)

    @functools.cached_property
    def _judge(self) -> str:
        return self._identity(self.recipe.judge)

    def _identity(self, model: str) -> str:
        if model not in self._models:
            from dewmark import hosts

            self._models[model] = hosts.host_info(model).identity
        return self._models[model]
