"""The actual false-positive rate of one key, from the p-values of unmarked texts.

The key test is valid on average over keys; a single key may still be biased in one language or kind of text.
The number of unmarked texts with p below a level is binomial, so its interval (Clopper-Pearson) and the test
"is the rate above the level?" are exact. Every level in every group of texts is one cell, and the tests of
all cells are corrected together by Holm's method: a key that is valid in every cell fails with probability at
most `ALPHA`, however the cells overlap.

A test that finds nothing proves little without power. A cell *resolves* its level if it would detect twice
that rate with probability `POWER`; a key passes at the levels that the whole sample resolves, and if there
are none the outcome is "cannot tell".

Boundary: numbers and labels in, a verdict out.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc

from dewmark.errors import InputError
from dewmark.stats.metrics import Rate, rate
from dewmark.stats.multiple_testing import holm

__all__ = ["LEVELS", "Audit", "Cell", "Outcome", "audit", "length_band", "texts_needed"]

LEVELS = (0.001, 0.01, 0.05)
ALPHA = 0.05
POWER = 0.8
_BANDS = (50, 100, 200, 400)  # tokens; each band ends below its bound
_SMALLEST_GROUP = 20  # texts; a smaller group resolves nothing, and every cell costs the others power


class Outcome(enum.StrEnum):
    """The outcome of an audit."""

    PASSES = "passes"
    FAILS = "fails"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class Cell:
    """One group of texts at one level.

    ``kind`` is "all", "language" or "length". ``p_value`` is the exact probability of at least this many
    false alarms if the rate equals the level, ``corrected`` the same after Holm; ``needed`` is the number of
    texts that would reveal a doubled rate.
    """

    kind: str
    group: str
    level: float
    texts: int
    alarms: int
    p_value: float
    corrected: float
    needed: int

    @property
    def name(self) -> str:
        """The group's display name."""
        return f"{self.group} tokens" if self.kind == "length" else self.group

    @property
    def rate(self) -> Rate:
        """The share of texts that raise an alarm, with an exact 95% interval."""
        return rate(self.alarms, self.texts)

    @property
    def resolves(self) -> bool:
        """Whether there are enough texts to detect a doubled rate."""
        return self.texts >= self.needed

    @property
    def significant(self) -> bool:
        """Whether the rate is above the level, after correction for all cells."""
        return self.corrected < ALPHA

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        share = self.rate
        return {
            **asdict(self),
            "rate": share.rate,
            "low": share.low,
            "high": share.high,
            "resolves": self.resolves,
        }


@dataclass(frozen=True, slots=True)
class Audit:
    """The actual false-positive rates of one key; the first cells are those of all texts together."""

    cells: tuple[Cell, ...]

    @property
    def overall(self) -> tuple[Cell, ...]:
        """The cells of all texts together, by ascending level."""
        return tuple(cell for cell in self.cells if cell.kind == "all")

    @property
    def texts(self) -> int:
        """The number of texts."""
        return self.cells[0].texts

    @property
    def worst(self) -> Cell:
        """The cell with the smallest p-value."""
        return min(self.cells, key=lambda cell: cell.p_value)

    @property
    def outcome(self) -> Outcome:
        """Whether the key passes."""
        if self.worst.significant:
            return Outcome.FAILS
        return Outcome.PASSES if any(cell.resolves for cell in self.overall) else Outcome.CANNOT_TELL

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if self.outcome is Outcome.FAILS:
            worst = self.worst
            return (
                f"The key fails for {worst.name}: at {_percent(worst.level)} it calls {_observed(worst)}. "
                f"By chance alone that has probability {worst.p_value:.1g} there, and at most "
                f"{worst.corrected:.1g} in any of the {len(self.cells)} cells."
            )
        unseen = [cell for cell in self.overall if not cell.resolves]
        needs = ", ".join(f"{cell.needed:,} at {_percent(cell.level)}" for cell in unseen)
        if self.outcome is Outcome.CANNOT_TELL:
            return f"Cannot tell: {self.texts:,} texts are too few to see a doubled rate; it takes {needs}."
        seen = " and ".join(_percent(cell.level) for cell in self.overall if cell.resolves)
        middle = self.overall[len(LEVELS) // 2]
        return (
            f"The key passes: at {_percent(middle.level)} it calls {_observed(middle)}, and no rate is "
            f"significantly above its level. One twice as high would have shown at {seen}"
            + (f"; elsewhere that takes more texts, {needs}." if unseen else ".")
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "outcome": self.outcome.value,
            "sentence": self.sentence,
            "texts": self.texts,
            "cells": [cell.to_dict() for cell in self.cells],
        }


def audit(p_values: ArrayLike, *, languages: Sequence[str], lengths: ArrayLike) -> Audit:
    """Audit the p-values (N,) of unmarked texts with their languages (N) and lengths in tokens (N,)."""
    p = np.asarray(p_values, dtype=np.float64)
    if len(p) == 0:
        raise InputError("no text is long enough for a verdict: give longer texts")
    groups = [("all", "all texts", np.ones(len(p), dtype=bool))]
    bands = [length_band(int(length)) for length in np.asarray(lengths)]
    order = [length_band(bound - 1) for bound in (*_BANDS, _BANDS[-1] + 1)]
    for kind, labels, names in (("language", languages, sorted(set(languages))), ("length", bands, order)):
        members = {name: np.array([label == name for label in labels]) for name in names}
        if max(mine.sum() for mine in members.values()) < len(p):  # a single group would repeat "all"
            groups += [(kind, name, mine) for name, mine in members.items() if mine.sum() >= _SMALLEST_GROUP]
    tests = len(groups) * len(LEVELS)
    counts = [
        (kind, name, level, int(chosen.sum()), int(np.count_nonzero(p[chosen] < level)))
        for kind, name, chosen in groups
        for level in LEVELS
    ]
    raw = [_tail(alarms, texts, level) for _, _, level, texts, alarms in counts]
    return Audit(
        tuple(
            Cell(
                kind=kind,
                group=name,
                level=level,
                texts=texts,
                alarms=alarms,
                p_value=p_value,
                corrected=float(corrected),
                needed=texts_needed(level, alpha=ALPHA / tests),
            )
            for (kind, name, level, texts, alarms), p_value, corrected in zip(
                counts, raw, holm(raw), strict=True
            )
        )
    )


def length_band(tokens: int) -> str:
    """The display name of the length band of a text."""
    low = 0
    for bound in _BANDS:
        if tokens < bound:
            return f"{low}–{bound - 1}" if low else f"under {bound}"
        low = bound
    return f"{low}+"


@functools.cache
def texts_needed(level: float, *, alpha: float) -> int:
    """The number of texts from which the exact one-sided test at ``alpha`` detects 2 ``level`` with `POWER`.

    The power drops at each number of texts that requires one more alarm, so it is evaluated there.
    """
    alarms, texts = 1, 1
    while True:
        # the fewest texts for which this many alarms are no longer significant
        low, high = texts - 1, texts
        while _tail(alarms, high, level) <= alpha:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _tail(alarms, middle, level) <= alpha else (low, middle)
        texts, alarms = high, alarms + 1
        if _tail(alarms, texts, 2.0 * level) >= POWER:
            return texts


def _tail(alarms: int, texts: int, share: float) -> float:
    """P(X ≥ alarms), X ~ Binomial(texts, share)."""
    if alarms <= 0:
        return 1.0
    return 0.0 if alarms > texts else float(betainc(alarms, texts - alarms + 1, share))


def _percent(share: float) -> str:
    return f"{100.0 * share:.2g}%"


def _observed(cell: Cell) -> str:
    share = cell.rate
    return (
        f"{cell.alarms:,} of {cell.texts:,} unmarked texts marked, {_percent(share.rate)} "
        f"(95% interval {_percent(share.low)} to {_percent(share.high)})"
    )
