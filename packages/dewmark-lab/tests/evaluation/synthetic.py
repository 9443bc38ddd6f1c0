"""Scores of a simulated run: standard normal without a mark, plus what an attack keeps and shifts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dewmark.stats.key_test import one_sided_p
from dewmark_lab.evaluation.results import CLEAN, HUMAN, MARKED, UNMARKED, ScoreRow

Attacks = Mapping[str, tuple[float, float]]  # share of the mark that an attack keeps, shift of the null


def scored(
    schemes: Mapping[str, float],
    attacks: Attacks,
    *,
    texts: int,
    seeds: int = 3,
    human: bool = False,
    seed: int = 0,
    tokens: Mapping[str, int] | None = None,
) -> list[ScoreRow]:
    """Rows of all kinds; ``schemes`` gives the mean score of marked texts."""
    return list(_scored(schemes, attacks, texts, seeds, human, np.random.default_rng(seed), tokens or {}))


def _scored(
    schemes: Mapping[str, float],
    attacks: Attacks,
    texts: int,
    seeds: int,
    human: bool,
    rng: np.random.Generator,
    tokens: Mapping[str, int],
) -> Iterator[ScoreRow]:
    for scheme, strength in schemes.items():
        for attack, (kept, shift) in attacks.items():
            for seed in range(seeds):
                for kind in (MARKED, UNMARKED, *(HUMAN,) * human):
                    mean = shift + (strength * kept if kind == MARKED else 0.0)
                    for i, z in enumerate(rng.normal(mean, 1.0, size=texts)):
                        p = float(one_sided_p(float(z)))
                        yield ScoreRow(
                            scheme, attack, seed, kind, str(i), float(z), p, tokens.get(attack, 200)
                        )


UNCHANGED: Attacks = {CLEAN: (1.0, 0.0)}
