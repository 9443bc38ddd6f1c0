"""What depends on what: the cells of a recipe, by the identity of everything that decides their rows.

Unmarked texts belong to a host and a seed, not to a scheme, so all schemes of a host share them, clean and
attacked; two rows of a table that differ in their test only share the marked texts too.
Boundary: hashes and paths; nothing is written here, and no weights are loaded.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dewmark.artifacts import load_artifact
from dewmark.attacks.base import Attack, load_attack
from dewmark.lab.evaluation.results import CLEAN, HUMAN, MARKED, UNMARKED
from dewmark.lab.experiments.prompts import source_identity
from dewmark.lab.experiments.recipe import AttackEntry, Recipe, SchemeEntry, experiment_key
from dewmark.lab.experiments.store import Cell
from dewmark.workspace import HostInfo

__all__ = ["Cells", "Source"]


@dataclass(frozen=True)
class Source:
    """Texts that a scheme's detector is to score: their kind, the attack they went through, their cell.

    ``tokens`` is how many of their tokens it is shown; None is all.
    """

    kind: str
    attack: str
    cell: Cell
    rows: int
    tokens: int | None = None


@dataclass
class Cells:
    """The cells of one run. ``human`` maps names to files of people's texts."""

    recipe: Recipe
    work: Path
    human: Mapping[str, str]
    _schemes: dict[str, dict[str, Any]] = field(default_factory=dict)  # by label

    @property
    def hosts(self) -> list[str]:
        """Every host of the recipe, once."""
        return list(dict.fromkeys(entry.host for entry in self.recipe.schemes))

    @functools.cached_property
    def infos(self) -> dict[str, HostInfo]:
        """What is known of each host without its weights."""
        from dewmark import hosts

        return {name: hosts.host_info(name) for name in self.hosts}

    @functools.cached_property
    def _prompts(self) -> str:
        return source_identity(self.recipe.prompts)

    def unmarked(self, host: str, seed: int) -> Cell:
        """The host's own texts of a seed."""
        return self._texts(host, seed, None)

    def marked(self, entry: SchemeEntry, seed: int) -> Cell:
        """A scheme's texts of a seed."""
        return self._texts(entry.host, seed, self._scheme(entry, seed))

    def _scheme(self, entry: SchemeEntry, seed: int) -> dict[str, Any]:
        """Scheme, settings, artifact and key; the key by its fingerprint."""
        if entry.label not in self._schemes:
            scheme = entry.build()
            artifact = None
            if scheme.needs.artifact:
                artifact = load_artifact(getattr(scheme, "artifact", None), scheme=entry.scheme).identity
            self._schemes[entry.label] = {
                "name": entry.scheme,
                "settings": scheme.to_dict(),
                "artifact": artifact,
            }
        return {**self._schemes[entry.label], "key": experiment_key(seed).fingerprint}

    def _texts(self, host: str, seed: int, scheme: dict[str, Any] | None) -> Cell:
        return Cell(
            "generate",
            {
                "host": self.infos[host].identity,
                "prompts": self._prompts,
                "prompt_tokens": self.recipe.prompt_tokens,
                "decoding": self.recipe.decoding.to_dict(),
                "seed": seed,
                "scheme": scheme,
            },
        )

    def people(self, host: str, name: str) -> Cell:
        """People's texts, cut to as many of the host's tokens as completions have."""
        return Cell(
            "human",
            {
                "texts": source_identity(self.human[name]),
                "tokenizer": self.infos[host].tokenizer.identity,
                "tokens": self.recipe.decoding.max_new_tokens,
            },
        )

    def peoples(self, host: str) -> list[tuple[Cell, int]]:
        """Every file of people's texts as a cell, and how many of its rows count."""
        cells = [self.people(host, name) for name in self.human]
        return [(cell, min(cell.rows(self.work).count(), self.recipe.texts)) for cell in cells]

    def attacked(self, source: Cell, attack: AttackEntry) -> Cell:
        """The texts of a cell after an attack."""
        return Cell("attack", {"texts": source.hash, "attack": self._attacks[attack.label].identity()})

    @functools.cached_property
    def _attacks(self) -> dict[str, Attack]:
        return {each.label: load_attack(each.attack, **each.settings) for each in self.recipe.attacks}

    def attack(self, label: str) -> Attack:
        """An attack of the recipe by its label."""
        return self._attacks[label]

    def column(self, attack: AttackEntry) -> str:
        """What tables call an attack: the recipe's label, unless that is the attack's mere name.

        Then it is the attack's own label, which may depend on what this machine has (an engine, a language).
        """
        return self._attacks[attack.label].label if attack.label == attack.attack else attack.label

    def quality(self, source: Cell) -> Cell:
        """The judge's opinion of a cell's texts."""
        return Cell("quality", {"texts": source.hash, "judge": self._judge})

    @functools.cached_property
    def _judge(self) -> str:
        from dewmark import hosts

        return hosts.host_info(self.recipe.judge).identity

    def scored(self, entry: SchemeEntry, seed: int, source: Cell, *, tokens: int | None = None) -> Cell:
        """The scores of a cell's texts, or of their first tokens, under a scheme with the key of a seed."""
        return Cell(
            "score",
            {
                **({} if tokens is None else {"tokens": tokens}),
                "scheme": self._scheme(entry, seed),
                "host": "" if entry.build().host_free else self.infos[entry.host].identity,
                "test": entry.test,
                "texts": source.hash,
                "marked": self.marked(entry, seed).hash,  # a scheme may keep records of its texts
                "number": self.recipe.texts,
            },
        )

    def sources(self, entry: SchemeEntry, seed: int) -> Iterator[Source]:
        """All texts that a scheme's detector scores under the key of a seed, clean ones first.

        The host's texts come in all lengths of the recipe too, as if cut short by an attack.
        """
        number = self.recipe.texts
        plain = [
            (MARKED, self.marked(entry, seed), number),
            (UNMARKED, self.unmarked(entry.host, seed), number),
        ]
        short = [
            Source(kind, f"truncate-{tokens}", cell, rows, tokens)
            for kind, cell, rows in plain
            for tokens in self.recipe.lengths
            if tokens < self.recipe.decoding.max_new_tokens
        ]
        plain += [(HUMAN, *people) for people in self.peoples(entry.host)]
        for kind, cell, rows in plain:
            yield Source(kind, CLEAN, cell, rows)
        yield from short
        for attack in self.recipe.attacks:
            for kind, cell, rows in plain:
                yield Source(kind, self.column(attack), self.attacked(cell, attack), rows)
