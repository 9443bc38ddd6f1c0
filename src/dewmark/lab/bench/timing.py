"""Works timed in turn, round after round, so that a busy machine disturbs all of them alike.

A work does one round of something and says how many seconds one unit of it took. Each round brings texts and
tokens of its own, so that nothing is remembered; the first one builds tables and fills caches, and is not
counted. Figures are minima and medians over rounds; ratios are taken within rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from dewmark.workspace import Progress, silent

__all__ = ["Cost", "Work", "seconds", "time_works"]

Work = Callable[[int], float]
"""Does round i of some work; returns its seconds, per unit of whatever the measure counts."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One row of a measure, in seconds, and its ratio to the base row of that measure, if there is one."""

    least: float
    median: float
    ratio: float | None
    rounds: int

    def to_dict(self) -> dict[str, float | int | None]:
        """Plain JSON values; times in milliseconds."""
        return {
            "ms_min": round(1000.0 * self.least, 4),
            "ms_median": round(1000.0 * self.median, 4),
            "ratio": None if self.ratio is None else round(self.ratio, 4),
            "rounds": self.rounds,
        }


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long a piece of work takes until the device is done with it."""
    _wait(device)
    started = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_works(
    measure: str,
    works: Mapping[str, Work],
    *,
    repeats: int,
    base: Mapping[str, str] | None = None,
    progress: Progress = silent,
) -> dict[str, Cost]:
    """Run all works in turn; ``base`` names, for rows that have one, the row they are compared with.

    The ratio is the median over rounds of a row's seconds over its base's in the same round.
    """
    names = list(works)
    rounds: list[dict[str, float]] = []
    for number in range(repeats + 1):
        turn = number % len(names)  # nobody is always first
        taken = {}
        for done, name in enumerate(names[turn:] + names[:turn]):
            progress(measure, number * len(names) + done, (repeats + 1) * len(names))
            taken[name] = works[name](number)
        rounds.append(taken)
    progress(measure, (repeats + 1) * len(names), (repeats + 1) * len(names))
    return {name: _cost(name, rounds[1:], (base or {}).get(name)) for name in names}


def _cost(name: str, rounds: list[dict[str, float]], base: str | None) -> Cost:
    times = [taken[name] for taken in rounds]
    ratio = None if base is None else statistics.median(taken[name] / taken[base] for taken in rounds)
    return Cost(min(times), statistics.median(times), ratio, len(times))
