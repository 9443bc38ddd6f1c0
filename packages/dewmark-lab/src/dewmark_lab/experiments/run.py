"""A run of a recipe: its outputs, and the preparations that several stages need.

Unmarked texts belong to a host and a seed, so all schemes of a host share them, clean and attacked; rows of a
table that differ only in their test share marked texts too.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dewmark.batch.inputs import as_request
from dewmark.errors import ConfigError
from dewmark.workspace import HostInfo, Progress
from dewmark_audit.texts import Row
from dewmark_lab.artifacts import load_artifact
from dewmark_lab.attacks.base import Attack, load_attack
from dewmark_lab.evaluation.results import CLEAN, HUMAN, MARKED, UNMARKED
from dewmark_lab.experiments.outputs import Output
from dewmark_lab.experiments.recipe import AttackEntry, Recipe, SchemeEntry, experiment_key
from dewmark_lab.experiments.workers import Fill, LoadedModels, Task, Workers
from dewmark_lab.prompt_sources import human_texts, prompt_texts, source_identity, truncate


@dataclass(frozen=True)
class TextsToScore:
    """The first ``number`` texts of an output that a scheme's detector scores, with their kind and attack.

    ``tokens`` is the length to which each text is truncated; None keeps it whole.
    """

    kind: str
    attack: str
    texts: Output
    number: int
    tokens: int | None = None


@dataclass
class Run:
    """One run: its recipe, its folders for texts (``work``) and results (``out``), and its workers.

    ``human`` maps names to files of human-written texts. ``notify`` gets one-line messages for the user, such
    as the cost of requests to an endpoint.
    """

    recipe: Recipe
    out: Path
    work: Path
    workers: Workers
    human: Mapping[str, str] = field(default_factory=dict)
    batch_size: int = 8
    notify: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        if self.recipe.human and not self.human:
            raise ConfigError(
                f"the table {self.recipe.name} needs human-written texts: "
                "add --human NAME=FILE.jsonl (one text per row)"
            )
        self.recipe = self.recipe.with_artifacts(self.work / "artifacts")
        self._schemes: dict[str, dict[str, Any]] = {}  # identities, by label
        self._models: dict[str, str] = {}  # identities of judge and readers, by name

    @property
    def seeds(self) -> range:
        """The seeds of the run."""
        return range(self.recipe.seeds)

    @property
    def progress(self) -> Progress:
        """The callback for progress bars."""
        return self.workers.progress

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

    def output(self, stage: str, inputs: Mapping[str, Any]) -> Output:
        """An output of a stage in the work folder."""
        return Output(self.work, stage, inputs)

    def fill(self, description: str, tasks: Iterable[Fill]) -> None:
        """Run the tasks whose outputs lack rows, each output once."""
        missing = {task.target.path: task for task in tasks if task.target.count() < task.rows}
        self.workers.map(description, list(missing.values()))

    # The outputs

    def unmarked(self, host: str, seed: int) -> Output:
        """A host's unmarked texts under a seed."""
        return self._texts(host, seed, None)

    def marked(self, entry: SchemeEntry, seed: int) -> Output:
        """A scheme's marked texts under a seed."""
        return self._texts(entry.host, seed, self._scheme_identity(entry, seed))

    def human_texts(self, host: str, name: str) -> Output:
        """A file of human-written texts, truncated to the length of completions in the host's tokens."""
        return self.output(
            "human",
            {
                "texts": source_identity(self.human[name]),
                "tokenizer": self.infos[host].tokenizer.identity,
                "tokens": self.recipe.decoding.max_new_tokens,
            },
        )

    def all_human_texts(self, host: str) -> list[tuple[Output, int]]:
        """`human_texts` of every file, each with the number of rows to use."""
        outputs = [self.human_texts(host, name) for name in self.human]
        return [(each, min(each.count(), self.recipe.texts)) for each in outputs]

    def attacked(self, texts: Output, attack: AttackEntry) -> Output:
        """Texts after an attack."""
        return self.output("attack", {"texts": texts.hash, "attack": self.attacks[attack.label].identity()})

    def quality(self, texts: Output) -> Output:
        """The quality of texts under the recipe's judge."""
        return self.output("quality", {"texts": texts.hash, "judge": self._identity(self.recipe.judge)})

    def scores(self, entry: SchemeEntry, seed: int, of: TextsToScore) -> Output:
        """The scores of texts under a scheme with the key of a seed."""
        return self.output(
            "score",
            {
                **({} if of.tokens is None else {"tokens": of.tokens}),
                **({} if entry.reader_model is None else {"reader": self._identity(entry.reader_model)}),
                "scheme": self._scheme_identity(entry, seed),
                "host": "" if entry.build().host_free else self.infos[entry.host].identity,
                "test": entry.test,
                **({} if entry.score == "z" else {"score": entry.score}),
                "texts": of.texts.hash,
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
            # a label that is just the attack's name gives way to the attack's own, which may name an engine
            column = self.attacks[attack.label].label if attack.label == attack.attack else attack.label
            for kind, texts, rows in clean:
                yield TextsToScore(kind, column, self.attacked(texts, attack), rows)

    def _texts(self, host: str, seed: int, scheme: dict[str, Any] | None) -> Output:
        return self.output(
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

    def _identity(self, model: str) -> str:
        if model not in self._models:
            from dewmark import hosts

            self._models[model] = hosts.host_info(model).identity
        return self._models[model]

    # Preparations

    def prompts(self, host: str, number: int) -> list[Row]:
        """The recipe's first prompts: requests in the host's chat template, or truncated openings."""
        rows = prompt_texts(self.recipe.prompts, number)
        if self.recipe.chat:
            from dewmark import hosts

            chat = hosts.chat_format(host, progress=self.progress)
            return [
                {**row, "request": row["text"], "text": chat.render(as_request(row["text"]))} for row in rows
            ]
        return truncate(rows, self.infos[host].tokenizer, tokens=self.recipe.prompt_tokens)

    def store_human_texts(self) -> None:
        """Store human-written texts as outputs, truncated to the length of completions."""
        for host in self.hosts:
            for name, file in self.human.items():
                recipe, tokenizer = self.recipe, self.infos[host].tokenizer
                tokens = recipe.decoding.max_new_tokens
                rows = human_texts(file, tokenizer, tokens=tokens, number=recipe.texts)
                stored = [
                    {"id": f"{name}:{row['id']}", "prompt": "", "text": row["text"], "seed": i}
                    for i, row in enumerate(rows)
                ]
                target = self.human_texts(host, name)

                def take(batch: range, rows: list[Row] = stored) -> list[Row]:
                    return rows[batch.start : batch.stop]

                target.fill(len(stored), take, size=len(stored))

    def build_scheme_caches(self, entries: Iterable[SchemeEntry], *, tasks: int) -> None:
        """Build the schemes' cached tables once, if several workers would otherwise each build them."""
        if min(self.workers.jobs, tasks) < 2:
            return
        distinct: dict[str, SchemeEntry] = {}
        for entry in entries:
            scheme = entry.build()
            if scheme.needs.encoder or scheme.needs.embeddings:
                distinct.setdefault(json.dumps([entry.host, scheme.to_dict()]), entry)
        caches = [_BuildSchemeCache(1, entry) for entry in distinct.values()]
        self.workers.map("preparing schemes", caches, parallel=False)


@dataclass(frozen=True)
class _BuildSchemeCache(Task):
    """Bind a scheme, which caches the tables that it needs."""

    entry: SchemeEntry

    def run(self, models: LoadedModels, on_rows: Callable[[int], None]) -> None:
        models.scheme(self.entry, 0)
