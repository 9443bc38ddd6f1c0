"""From measures to a choice: the strongest configuration whose texts read like unmarked ones, and the noise.

A configuration is within the budget B if the ratio of median perplexities, marked to unmarked, lies in
[1/B, B] (a bias drains the tail and *lowers* perplexity: that is distortion too) and distinct-3 is at most
0.02 from the unmarked texts'. Of these the one with the highest mean z after 30% of the words were deleted is
chosen. Intervals are 95% percentile bootstraps over prompts; a prompt's texts, unmarked and marked, are drawn
together, so that what the prompt does to perplexity cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F64
from dewmark.errors import ConfigError
from dewmark.stats.metrics import Interval
from dewmark.tuning.grid import Settings, describe, flags
from dewmark.tuning.measuring import Measured

__all__ = ["DIVERSITY", "FOUND_AT", "Result", "Tuning", "check_budget", "choose"]


FOUND_AT = 1e-4  # a text counts as found below this p-value
DIVERSITY = 0.02  # how far distinct-3 may be from the unmarked texts'
_CONFIDENCE = 0.95
_RESAMPLES = 2000


@dataclass(frozen=True)
class Result:
    """One configuration's figures; ``within`` says whether it keeps to the budget.

    ``ratio`` is its median perplexity over the unmarked texts', ``change`` its distinct-3 less theirs.
    """

    settings: Settings
    perplexity: float
    ratio: Interval
    distinct_3: float
    change: Interval
    z: float
    found: float
    z_deleted: float
    within: bool

    @property
    def name(self) -> str:
        """One line for a table."""
        return describe(self.settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "settings": dict(self.settings),
            "perplexity": self.perplexity,
            "ratio": self.ratio.to_dict(),
            "distinct_3": self.distinct_3,
            "change": self.change.to_dict(),
            "z": self.z,
            "found": self.found,
            "z_deleted": self.z_deleted,
            "within": self.within,
        }


@dataclass(frozen=True)
class Tuning:
    """All results in the grid's order, the chosen one (None if none keeps to the budget), and the caveats."""

    budget: float
    texts: int
    perplexity: float
    distinct_3: float
    results: tuple[Result, ...]
    chosen: Result | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "budget": self.budget,
            "texts": self.texts,
            "unmarked": {"perplexity": self.perplexity, "distinct_3": self.distinct_3},
            "results": [result.to_dict() for result in self.results],
            "chosen": None if self.chosen is None else dict(self.chosen.settings),
            "flags": None if self.chosen is None else flags(self.chosen.settings),
            "notes": list(self.notes),
        }


def check_budget(budget: float) -> None:
    """Refuse a budget that allows nothing or is none."""
    if not 1.0 < budget < math.inf:
        raise ConfigError(f"the budget is a ratio of perplexities above 1, such as 1.05, got {budget:g}")


def choose(unmarked: Measured, measured: Sequence[Measured], *, budget: float) -> Tuning:
    """Compare configurations with the unmarked texts of the same prompts and seeds."""
    check_budget(budget)
    prompts = unmarked.perplexity.shape[1]
    draws = np.random.default_rng(0).integers(prompts, size=(_RESAMPLES, prompts))
    results = tuple(_result(one, unmarked, draws, budget) for one in measured)
    admitted = [i for i, result in enumerate(results) if result.within]
    best = max(admitted, key=lambda i: results[i].z_deleted, default=None)
    notes = _notes(results, measured, best, draws, budget)
    return Tuning(
        budget=budget,
        texts=prompts,
        perplexity=float(np.median(unmarked.perplexity)),
        distinct_3=float(unmarked.distinct_3.mean()),
        results=results,
        chosen=None if best is None else results[best],
        notes=tuple(notes),
    )


def _result(one: Measured, unmarked: Measured, draws: NDArray[np.int64], budget: float) -> Result:
    ratio = _interval(_median_ratio, one.perplexity, unmarked.perplexity, draws)
    change = _interval(_mean_difference, one.distinct_3, unmarked.distinct_3, draws)
    return Result(
        settings=one.settings,
        perplexity=float(np.median(one.perplexity)),
        ratio=ratio,
        distinct_3=float(one.distinct_3.mean()),
        change=change,
        z=float(one.z.mean()),
        found=float((one.p_value < FOUND_AT).mean()),
        z_deleted=float(one.z_deleted.mean()),
        within=1.0 / budget <= ratio.value <= budget and abs(change.value) <= DIVERSITY,
    )


def _median_ratio(left: F64, right: F64) -> F64:
    """Of samples (keys, N, prompts): (N,)."""
    ratio: F64 = np.median(left, axis=(0, -1)) / np.median(right, axis=(0, -1))
    return ratio


def _mean_difference(left: F64, right: F64) -> F64:
    """Of samples (keys, N, prompts): (N,)."""
    difference: F64 = left.mean(axis=(0, -1)) - right.mean(axis=(0, -1))
    return difference


def _interval(
    statistic: Callable[[F64, F64], F64], left: F64, right: F64, draws: NDArray[np.int64]
) -> Interval:
    """A paired bootstrap over prompts of measures (keys, prompts).

    ``statistic`` turns N samples of either, (keys, N, prompts), into N numbers.
    """
    whole = np.arange(left.shape[1])[None]
    value = float(statistic(left[:, whole], right[:, whole])[0])
    drawn = statistic(left[:, draws], right[:, draws])
    low, high = np.quantile(drawn, [(1.0 - _CONFIDENCE) / 2.0, (1.0 + _CONFIDENCE) / 2.0])
    return Interval(value, float(low), float(high), _CONFIDENCE)


def _notes(
    results: Sequence[Result],
    measured: Sequence[Measured],
    best: int | None,
    draws: NDArray[np.int64],
    budget: float,
) -> list[str]:
    """What the texts are too few to tell."""
    if best is None:
        notes = ["no configuration keeps to the budget: try weaker ones (--grid), or a larger budget"]
        return notes + [_left_out(result) for result in results if _may_fit(result, budget)]
    chosen, notes = results[best], []
    ratio = chosen.ratio
    if ratio.low < 1.0 / budget or ratio.high > budget:
        half = math.log(ratio.high / ratio.low) / 2.0
        enough = math.ceil(draws.shape[1] * (half / math.log(budget)) ** 2)  # a width shrinks as 1/√texts
        notes.append(
            f"the choice is within noise: the 95% interval of its perplexity ratio, {ratio.low:.3f} to "
            f"{ratio.high:.3f}, reaches beyond the budget; about {_round_up(enough)} texts would settle it"
        )
    for i, result in enumerate(results):
        if not result.within and _may_fit(result, budget) and result.z_deleted > chosen.z_deleted:
            notes.append(f"{_left_out(result)}, and it is stronger")
        elif result.within and i != best:
            lead = _interval(_mean_difference, measured[best].z_deleted, measured[i].z_deleted, draws)
            if lead.low <= 0.0:
                notes.append(
                    f"its lead over {result.name} is within noise ({lead.low:.2f} to {lead.high:.2f} z)"
                )
    return notes


def _left_out(result: Result) -> str:
    low, high = result.ratio.low, result.ratio.high
    return f"noise may have left out {result.name}: its perplexity ratio lies in {low:.3f} to {high:.3f}"


def _may_fit(result: Result, budget: float) -> bool:
    """Whether the intervals allow that a configuration keeps to the budget."""
    ratio, change = result.ratio, result.change
    fits = ratio.low <= budget and ratio.high >= 1.0 / budget
    return fits and change.low <= DIVERSITY and change.high >= -DIVERSITY


def _round_up(number: int) -> int:
    """To two digits: an estimate from a few texts claims no more."""
    unit = int(10 ** max(len(str(number)) - 2, 0))
    return math.ceil(number / unit) * unit
