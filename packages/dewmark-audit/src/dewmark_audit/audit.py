"""The actual false-positive rate of one key, from the p-values of unmarked texts.

The key test is valid on average over keys; a single key may still be biased in one language or kind of text.

**Counting.** Given the key, the number of texts with p at or below a level is binomial: its interval
(Clopper-Pearson) and the test "is the rate above the level?" are exact, with each set of near-copies counted
as one text. Every level in every group of texts is one cell, and Holm's method corrects the tests of all
cells together: a key that is valid in every cell fails with probability at most `ALPHA`.

**Predicting.** Where the texts' directions are known, the distribution of z under this key
(`dewmark_audit.one_key`) predicts its rate on each group at every level, from a few texts and with a bound. A
cell is *trusted* if the bound is at most `TOLERANCE` times the level, and not trusted if the prediction
itself is above that or the count is significantly above the level.

**Without directions** only counts remain. A cell *resolves* its level if it would detect twice that rate with
probability `POWER`; it is trusted if it does.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, ndtri

from dewmark.arrays import F32, I64
from dewmark.errors import InputError
from dewmark.stats.multiple_testing import holm
from dewmark_audit import one_key
from dewmark_audit.one_key import KeyOnKind
from dewmark_audit.rates import Rate, rate

LEVELS = (0.001, 0.01, 0.05)
VERDICT_LEVEL = 0.01  # the level at which every group must be trusted for a key to pass
ALPHA = 0.05
POWER = 0.8
TOLERANCE = 3.0
_BANDS = (50, 100, 200, 400, 1000, 2000, 5000)  # tokens; each band ends below its bound
_SMALLEST_COUNTED = 20  # texts; a smaller group resolves nothing, and every cell costs the others power
_SMALLEST_PREDICTED = 8  # texts; enough to estimate r and this key's mean
_BOUND = 0.95  # confidence of a prediction's bounds
_KINDS = ("kind", "language", "length")


class Outcome(enum.StrEnum):
    """The outcome of an audit."""

    PASSES = "passes"
    FAILS = "fails"
    CANNOT_TELL = "cannot tell"


class Trust(enum.StrEnum):
    """Whether a key's alarms can be trusted at one level, on one group of texts."""

    TRUSTED = "trusted"
    NOT_TRUSTED = "not trusted"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class Prediction:
    """This key's rate on a group as its z predict it, with bounds.

    Over keys the rate's 1st percentile is ``floor`` and its 99th ``ceiling``.
    """

    rate: float
    low: float
    high: float
    floor: float
    ceiling: float


@dataclass(frozen=True, slots=True)
class Together(KeyOnKind):
    """How far the texts of a group are called marked together, and the distribution of z under this key.

    ``r`` is the mean correlation over keys of two texts' z, ``error`` its standard error. ``matched`` is the
    correlation that, were it the same for all pairs, would give a key's rate at `VERDICT_LEVEL` the variance
    over keys that it has: larger than r where some texts are much more alike than others. Over keys the texts
    vary like ``effective_number`` independent ones; ``largest_block`` of them are one block, which a key
    calls marked as a whole or not at all.
    """

    r: float
    error: float
    matched: float
    effective_number: float
    largest_block: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One group of texts at one level.

    ``kind`` is "all", "kind", "language" or "length". ``alarms`` of ``texts`` have p ≤ level; with
    near-copies counted as one these are ``hits`` of ``independent`` texts. ``p_value`` is the exact
    probability of at least this many false alarms if the rate equals the level, ``corrected`` the same after
    Holm; ``needed`` is the number of texts that would reveal a doubled rate.
    """

    kind: str
    group: str
    level: float
    texts: int
    alarms: int
    independent: int
    hits: float
    p_value: float
    corrected: float
    needed: int
    prediction: Prediction | None = None

    @property
    def name(self) -> str:
        """The group's display name."""
        return f"{self.group} tokens" if self.kind == "length" else self.group

    @property
    def rate(self) -> Rate:
        """The share of texts that raise an alarm, near-copies counted as one, with an exact 95% interval."""
        return rate(self.hits, self.independent)

    @property
    def resolves(self) -> bool:
        """Whether there are enough texts to detect a doubled rate."""
        return self.independent >= self.needed

    @property
    def significant(self) -> bool:
        """Whether the rate is above the level, after correction for all cells."""
        return self.corrected < ALPHA

    @property
    def trust(self) -> Trust:
        """Whether this key's alarms at this level can be trusted on such texts."""
        most = TOLERANCE * self.level
        if self.significant or (self.prediction is not None and self.prediction.rate > most):
            return Trust.NOT_TRUSTED
        shown = self.resolves if self.prediction is None else self.prediction.high <= most
        return Trust.TRUSTED if shown else Trust.CANNOT_TELL

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        share = self.rate
        return {
            **asdict(self),
            "rate": share.rate,
            "low": share.low,
            "high": share.high,
            "resolves": self.resolves,
            "trust": self.trust.value,
        }


@dataclass(frozen=True, slots=True)
class Group:
    """A group of texts: its cells by ascending level, and how far its texts go together, if that is known."""

    kind: str
    group: str
    cells: tuple[Cell, ...]
    together: Together | None

    @property
    def name(self) -> str:
        """The group's display name."""
        return self.cells[0].name

    @property
    def trust(self) -> Trust:
        """The verdict on this group at `VERDICT_LEVEL`."""
        return self.cells[LEVELS.index(VERDICT_LEVEL)].trust

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        lowest = self.trusted_from
        if lowest is None:
            bad = any(cell.trust is Trust.NOT_TRUSTED for cell in self.cells)
            return str(Trust.NOT_TRUSTED if bad else Trust.CANNOT_TELL)
        return str(Trust.TRUSTED) if lowest == LEVELS[0] else f"trusted from {percent(lowest)}"

    @property
    def trusted_from(self) -> float | None:
        """The lowest level at which, and at all higher ones, the key is trusted; None if there is none."""
        lowest = None
        for cell in reversed(self.cells):
            if cell.trust is not Trust.TRUSTED:
                break
            lowest = cell.level
        return lowest

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; the cells are listed with the audit."""
        return {
            "kind": self.kind,
            "group": self.group,
            "texts": self.cells[0].texts,
            "independent": self.cells[0].independent,
            "together": None if self.together is None else asdict(self.together),
            "verdict": self.verdict,
            "trusted_from": self.trusted_from,
        }


@dataclass(frozen=True, slots=True)
class Audit:
    """The actual false-positive rates of one key; the first group is that of all texts together.

    ``common`` names the kind, language or length that all texts share, where they share one: then only the
    first group stands for it.
    """

    groups: tuple[Group, ...]
    common: Mapping[str, str]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of all groups."""
        return tuple(cell for group in self.groups for cell in group.cells)

    @property
    def overall(self) -> tuple[Cell, ...]:
        """The cells of all texts together, by ascending level."""
        return self.groups[0].cells

    @property
    def texts(self) -> int:
        """The number of texts."""
        return self.overall[0].texts

    @property
    def worst(self) -> Cell:
        """The cell with the smallest p-value."""
        return min(self.cells, key=lambda cell: cell.p_value)

    @property
    def untrusted(self) -> list[Cell]:
        """The cells of groups that are not trusted at `VERDICT_LEVEL`, worst prediction first."""
        cells = [cell for cell in self._judged if cell.trust is Trust.NOT_TRUSTED]
        return sorted(cells, key=lambda cell: -(cell.prediction.rate if cell.prediction else cell.rate.rate))

    @property
    def outcome(self) -> Outcome:
        """Whether the key passes."""
        if self.worst.significant or self.untrusted:
            return Outcome.FAILS
        if self.groups[0].together is None:
            shown = any(cell.resolves for cell in self.overall)
        else:
            shown = all(cell.trust is Trust.TRUSTED for cell in self._judged)
        return Outcome.PASSES if shown else Outcome.CANNOT_TELL

    @property
    def _judged(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.level == VERDICT_LEVEL]

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if self.worst.significant:
            worst = self.worst
            return (
                f"The key fails for {worst.name}: at {percent(worst.level)} it calls {_observed(worst)}. "
                f"By chance alone that has probability {worst.p_value:.1g} there, and at most "
                f"{worst.corrected:.1g} in any of the {len(self.cells)} cells."
            )
        if self.untrusted:
            worst = self.untrusted[0]
            assert worst.prediction is not None
            return (
                f"The key fails for {worst.name}: at {percent(worst.level)} its scores there predict that it "
                f"calls {percent(worst.prediction.rate)} of such texts marked; {worst.alarms} of "
                f"{worst.texts} were."
            )
        middle = self.overall[LEVELS.index(VERDICT_LEVEL)]
        if self.groups[0].together is None:
            unseen = [cell for cell in self.overall if not cell.resolves]
            needs = ", ".join(f"{cell.needed:,} at {percent(cell.level)}" for cell in unseen)
            if self.outcome is Outcome.CANNOT_TELL:
                count = f"{self.texts:,} {'text is' if self.texts == 1 else 'texts are'}"
                return f"Cannot tell: {count} too few to see a doubled rate; it takes {needs}."
            seen = " and ".join(percent(cell.level) for cell in self.overall if cell.resolves)
            return (
                f"The key passes: at {percent(middle.level)} it calls {_observed(middle)}, and no rate is "
                f"significantly above its level. One twice as high would have shown at {seen}"
                + (f"; elsewhere that takes more texts, {needs}." if unseen else ".")
            )
        if self.outcome is Outcome.CANNOT_TELL:
            unsure = [cell.name for cell in self._judged if cell.trust is Trust.CANNOT_TELL]
            return (
                f"Too few texts of {', '.join(unsure)} to judge: at {percent(VERDICT_LEVEL)} the key may "
                f"call more than {percent(TOLERANCE * VERDICT_LEVEL)} of them marked. Add more."
            )
        most = max(cell.prediction.high for cell in self._judged if cell.prediction is not None)
        return (
            f"The key passes: at {percent(middle.level)} it calls {_observed(middle)}; its rate is at most "
            f"{percent(most)} in each of the {len(self.groups)} groups, with 95% confidence in each."
        )

    @property
    def remarks(self) -> list[str]:
        """What else an operator should know: which texts are one block."""
        found = []
        for group in self.groups[1:]:
            together, texts = group.together, group.cells[0].texts
            if together is not None and together.largest_block > max(2, texts // 4):
                found.append(
                    f"{together.largest_block} of {texts} texts of {group.name} are one block: a key calls "
                    "most of them marked, or none."
                )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "outcome": self.outcome.value,
            "sentence": self.sentence,
            "remarks": self.remarks,
            "texts": self.texts,
            "common": dict(self.common),
            "groups": [group.to_dict() for group in self.groups],
            "cells": [cell.to_dict() for cell in self.cells],
        }


def audit(
    p_values: ArrayLike,
    *,
    languages: Sequence[str],
    lengths: ArrayLike,
    kinds: Sequence[str | None] | None = None,
    directions: F32 | None = None,
    p_of_whole: ArrayLike | None = None,
) -> Audit:
    """Audit the p-values (N,) of unmarked texts with their languages (N) and lengths in tokens (N,).

    ``kinds`` (N) name the kind of each text, such as "code", where it is known; ``directions`` (N, D) are the
    unit vectors of `dewmark_audit.one_key.direction`. They correlate the z of whole texts, whose p-values
    are ``p_of_whole`` (N,) where those of the verdicts count more.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if len(p) == 0:
        raise InputError("no text is long enough for a verdict: give longer texts")
    labels: Mapping[str, Sequence[str | None]] = {
        "kind": [None] * len(p) if kinds is None else kinds,
        "language": languages,
        "length": [length_band(int(length)) for length in np.asarray(lengths)],
    }
    chosen = _groups(labels, fewest=_SMALLEST_COUNTED if directions is None else _SMALLEST_PREDICTED)
    whole = p if p_of_whole is None else np.asarray(p_of_whole, dtype=np.float64)
    z = -ndtri(np.clip(whole, 1e-300, 1.0 - 1e-16))
    groups: list[Group] = []
    for kind, name, mine in chosen:
        # 1. which texts are near-copies, and how far the texts go together
        label: I64 = np.arange(int(mine.sum()))
        together, m = None, None if directions is None or len(label) < 2 else directions[mine]
        if m is not None:
            correlation = one_key.mean_correlation(m)
            label = one_key.copies(m, correlation.r)
            together = Together(
                **asdict(one_key.key_on_kind(z[mine], m)),
                r=correlation.r,
                error=correlation.error,
                matched=one_key.matching_correlation(m, VERDICT_LEVEL),
                effective_number=one_key.effective_number(len(m), correlation.r),
                largest_block=int(np.bincount(one_key.blocks(m)).max()),
            )
        # 2. alarms at each level, near-copies counted as one, and the rate that the directions predict
        members = np.bincount(label)
        cells = []
        for level in LEVELS:
            alarm, prediction = p[mine] <= level, None
            if together is not None and m is not None:
                matched = one_key.matching_correlation(m, level)
                prediction = Prediction(
                    rate=together.rate(level),
                    low=together.rate(level, confidence=1.0 - _BOUND),
                    high=together.rate(level, confidence=_BOUND),
                    floor=one_key.rate_ceiling(matched, level, share=0.01),
                    ceiling=one_key.rate_ceiling(matched, level),
                )
            hits = float(np.sum(np.bincount(label, weights=alarm) / members))
            cell = Cell(
                kind=kind,
                group=name,
                level=level,
                texts=len(label),
                alarms=int(np.count_nonzero(alarm)),
                independent=len(members),
                hits=hits,
                p_value=_tail(hits, len(members), level),
                corrected=1.0,
                needed=texts_needed(level, alpha=ALPHA / (len(chosen) * len(LEVELS))),
                prediction=prediction,
            )
            cells.append(cell)
        groups.append(Group(kind, name, tuple(cells), together))
    # 3. the tests of all cells, corrected together
    corrected = iter(holm([cell.p_value for group in groups for cell in group.cells]).tolist())
    for i, group in enumerate(groups):
        judged = tuple(replace(cell, corrected=next(corrected)) for cell in group.cells)
        groups[i] = replace(group, cells=judged)
    common = {kind: str(names[0]) for kind, names in labels.items() if len(set(names)) == 1 and names[0]}
    return Audit(tuple(groups), common)


def _groups(
    labels: Mapping[str, Sequence[str | None]], *, fewest: int
) -> list[tuple[str, str, NDArray[np.bool_]]]:
    """All texts together, and the groups by each kind of label that are large enough."""
    count = len(labels["language"])
    found: list[tuple[str, str, NDArray[np.bool_]]] = [("all", "all texts", np.ones(count, dtype=bool))]
    bands = [length_band(bound - 1) for bound in (*_BANDS, _BANDS[-1] + 1)]
    for kind in _KINDS:
        names = bands if kind == "length" else sorted({name for name in labels[kind] if name is not None})
        for name in names:
            mine = np.array([label == name for label in labels[kind]])
            if fewest <= mine.sum() < count:  # a group of all texts would repeat "all"
                found.append((kind, name, mine))
    return found


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


def _tail(alarms: float, texts: int, share: float) -> float:
    """P(X ≥ alarms), X ~ Binomial(texts, share), extended to fractions of alarms."""
    if alarms <= 0.0:
        return 1.0
    return 0.0 if alarms > texts else float(betainc(alarms, texts - alarms + 1.0, share))


def percent(share: float) -> str:
    """A share as a percentage, with two digits where they say something."""
    value = 100.0 * share
    if value >= 9.95:
        return f"{value:.0f}%"
    return f"{value:.2g}%" if value >= 0.001 or value == 0.0 else "<0.001%"


def _observed(cell: Cell) -> str:
    share = cell.rate
    counted = "" if cell.independent == cell.texts else f", near-copies counted once: {cell.independent:,}"
    return (
        f"{cell.alarms:,} of {cell.texts:,} unmarked texts marked{counted}, {percent(share.rate)} "
        f"(95% interval {percent(share.low)} to {percent(share.high)})"
    )
