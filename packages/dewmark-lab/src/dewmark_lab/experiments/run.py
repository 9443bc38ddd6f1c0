"""A run of a recipe: the values that its stages share, and the preparations that several of them need."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dewmark.batch.inputs import as_request
from dewmark.errors import ConfigError
from dewmark.prompts import Row
from dewmark.workspace import Progress
from dewmark_lab.evaluation.results import PER_SEED
from dewmark_lab.experiments.outputs import RunOutputs
from dewmark_lab.experiments.recipe import Recipe, SchemeEntry
from dewmark_lab.experiments.workers import LoadedModels, Task, Workers
from dewmark_lab.prompt_sources import human_texts, prompt_texts, truncate


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
        self.outputs = RunOutputs(self.recipe, self.work, self.human)

    def with_key_per_seed(self) -> Run:
        """The same run with a key of its own for each seed; it shares this run's texts where it can."""
        recipe = dataclasses.replace(self.recipe, keys="per-seed")
        return dataclasses.replace(self, recipe=recipe, out=self.out / PER_SEED)

    @property
    def seeds(self) -> range:
        """The seeds of the run."""
        return range(self.recipe.seeds)

    @property
    def progress(self) -> Progress:
        """The callback for progress bars."""
        return self.workers.progress

    def prompts(self, host: str, number: int) -> list[Row]:
        """The recipe's first prompts: requests in the host's chat template, or truncated openings."""
        rows = prompt_texts(self.recipe.prompts, number)
        if self.recipe.chat:
            from dewmark import hosts

            chat = hosts.chat_format(host, progress=self.progress)
            return [
                {**row, "request": row["text"], "text": chat.render(as_request(row["text"]))} for row in rows
            ]
        return truncate(rows, self.outputs.infos[host].tokenizer, tokens=self.recipe.prompt_tokens)

    def store_human_texts(self) -> None:
        """Store human-written texts as outputs, truncated to the length of completions."""
        for host in self.outputs.hosts:
            for name, file in self.human.items():
                target = self.outputs.human_texts(host, name).rows(self.work)
                recipe, tokenizer = self.recipe, self.outputs.infos[host].tokenizer
                rows = human_texts(
                    file, tokenizer, tokens=recipe.decoding.max_new_tokens, number=recipe.texts
                )
                stored = [
                    {"id": f"{name}:{row['id']}", "prompt": "", "text": row["text"], "seed": i}
                    for i, row in enumerate(rows)
                ]
                with target.missing_batches(len(stored), size=len(stored)) as batches:
                    for batch in batches:
                        target.append(stored[batch.start : batch.stop])

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
        """Bind it."""
        models.scheme(self.entry, 0)
