"""The pieces of work that workers run: write texts, attack them, judge them; scoring is in `scoring`.

Every task is plain data that travels to another process, reads finished rows and appends to one or more
cells, a batch at a time. Boundary: what depends on what is decided in `stages`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dewmark.config import cache_dir
from dewmark.lab.experiments.recipe import AttackEntry, SchemeEntry, experiment_key
from dewmark.lab.experiments.store import Row, Rows
from dewmark.workspace import Progress, Workspace, silent

if TYPE_CHECKING:
    from dewmark.attacks.base import Attack
    from dewmark.decoding import Decoding
    from dewmark.hosts.transformers.model import TransformersHost
    from dewmark.scheme import BoundScheme
    from dewmark.workspace import LanguageModel

__all__ = ["Attacking", "Bench", "Judging", "Preparing", "Task", "Tell", "Writing"]

Tell = Callable[[int], None]  # how many rows of a task are done


class Bench:
    """The models that one process keeps open: one host, one scheme, one attack, the last of each."""

    def __init__(
        self, device: str = "auto", dtype: str = "auto", *, threads: int = 0, progress: Progress = silent
    ) -> None:
        """``threads`` is how many an attack may start; 0 is as many as there are cores."""
        self.device, self.dtype, self.threads, self.progress = device, dtype, threads, progress
        self._host: TransformersHost | None = None
        self._host_name = ""
        self._scheme: tuple[object, BoundScheme] | None = None
        self._attack: tuple[AttackEntry, Attack] | None = None

    def host(self, name: str) -> TransformersHost:
        """A host with its weights; another one takes its place in memory."""
        if self._host is None or self._host_name != name:
            from dewmark import hosts

            self._host = None  # two at once may not fit
            self._host = hosts.load_host(name, device=self.device, dtype=self.dtype, progress=self.progress)
            self._host_name = name
        return self._host

    def scheme(self, entry: SchemeEntry, seed: int, *, wrote: tuple[Rows, int] | None = None) -> BoundScheme:
        """A scheme under the key of a seed; one that runs the host to detect shares ours.

        ``wrote`` holds the scheme's own texts and their number: one that keeps records of what it wrote hears
        of them before it detects.
        """
        wanted = (entry.scheme, entry.settings, entry.host, seed, wrote)  # whatever its label and test
        if self._scheme is None or self._scheme[0] != wanted:
            from dewmark import hosts

            def open_host(other: str | None) -> LanguageModel:
                return self.host(other or entry.host)

            self._scheme = None
            workspace = Workspace(
                cache=cache_dir(), progress=self.progress, find_host=hosts.host_info, open_host=open_host
            )
            info = hosts.host_info(entry.host, progress=self.progress)
            bound = entry.build().bind(experiment_key(seed), info, workspace)
            if wrote is not None:
                own = wrote[0].read(wrote[1])
                bound.finished([row["text"] for row in own], seeds=[row["seed"] for row in own])
            self._scheme = wanted, self._on_device(bound)
        return self._scheme[1]

    def _on_device(self, bound: BoundScheme) -> BoundScheme:
        """A scheme whose test can run on a device does so on ours."""
        from dewmark.hosts.transformers.model import torch_device

        move = getattr(bound, "on", None)
        return bound if move is None else move(str(torch_device(self.device)))

    def attack(self, entry: AttackEntry) -> Attack:
        """An attack with its settings."""
        if self._attack is None or self._attack[0] != entry:
            from dewmark.attacks.base import attack_class, load_attack

            kind = attack_class(entry.attack, engine=entry.settings.get("engine"))
            ours = {"device": self.device, "jobs": self.threads}  # how it runs, not what it makes
            known = {f.name for f in dataclasses.fields(kind)}
            ours = {name: value for name, value in ours.items() if name in known}
            self._attack = entry, load_attack(entry.attack, **{**ours, **entry.settings})
        return self._attack[1]


@dataclass(frozen=True)
class Task(ABC):
    """Some rows to be made."""

    rows: int

    @abstractmethod
    def run(self, bench: Bench, tell: Tell) -> None:
        """Make them, unless they are there."""


@dataclass(frozen=True)
class Preparing(Task):
    """Build the tables that a scheme keeps in the cache, once, before many processes would."""

    entry: SchemeEntry

    def run(self, bench: Bench, tell: Tell) -> None:
        """Bind it."""
        bench.scheme(self.entry, 0)


@dataclass(frozen=True)
class Writing(Task):
    """Continue prompts, marked by ``entry`` under the key of ``seed``, or unmarked by ``host``."""

    target: Rows
    host: str
    entry: SchemeEntry | None
    seed: int
    prompts: Sequence[Row]
    decoding: Decoding
    batch_size: int

    def run(self, bench: Bench, tell: Tell) -> None:
        """Write batch by batch; text i of a seed always has the same sampling seed."""
        with self.target.growing(self.rows, batch=self.batch_size) as batches:
            for batch in batches:
                bound = None if self.entry is None else bench.scheme(self.entry, self.seed)
                prompts = [self.prompts[i] for i in batch]
                made = bench.host(self.host).generate(
                    [prompt["text"] for prompt in prompts],
                    scheme=bound,
                    seeds=[text_seed(self.seed, i) for i in batch],
                    batch_size=self.batch_size,
                    decoding=self.decoding,
                )
                self.target.append(
                    [
                        {
                            "id": prompt["id"],
                            "prompt": one.prompt,
                            "text": one.text,
                            "tokens": one.tokens,
                            "seed": one.seed,
                            "scheme": one.scheme,
                            "config_hash": one.config_hash,
                            **({} if one.drafts is None else {"drafts": one.drafts.to_dict()}),
                        }
                        for prompt, one in zip(prompts, made, strict=True)
                    ]
                )
                tell(batch.stop)


def text_seed(seed: int, index: int) -> int:
    """The sampling seed of text ``index`` of a run's seed."""
    return 1_000_000 * seed + index


@dataclass(frozen=True)
class Attacking(Task):
    """Put texts through an attack, seeded by each text's own seed."""

    source: Rows
    target: Rows
    attack: AttackEntry

    def run(self, bench: Bench, tell: Tell) -> None:
        """Attack batch by batch; every other field of a row stays."""
        attack = bench.attack(self.attack)
        identity = attack.identity()
        with self.target.growing(self.rows, batch=attack.at_once) as batches:
            for batch in batches:
                rows = self.source.read(batch.stop)[batch.start :]
                texts = [row["text"] for row in rows]
                made = attack.apply(texts, seeds=[row["seed"] for row in rows])
                self.target.append(
                    [
                        {**row, "text": text, "attack": identity, "original_text": row["text"]}
                        for row, text in zip(rows, made, strict=True)
                    ]
                )
                tell(batch.stop)


@dataclass(frozen=True)
class Judging(Task):
    """Perplexity under the judge and the cheap checks, for texts of one cell."""

    source: Rows
    target: Rows
    judge: str
    batch_size: int

    def run(self, bench: Bench, tell: Tell) -> None:
        """Judge batch by batch."""
        from dewmark.lab.evaluation.quality import quality

        with self.target.growing(self.rows, batch=self.batch_size) as batches:
            for batch in batches:
                rows = self.source.read(batch.stop)[batch.start :]
                found: list[dict[str, Any]] = [
                    one.to_dict()
                    for one in quality(
                        bench.host(self.judge),
                        [row["prompt"] for row in rows],
                        [row["text"] for row in rows],
                    )
                ]
                self.target.append([{"id": row["id"], **one} for row, one in zip(rows, found, strict=True)])
                tell(batch.stop)
