"""Tasks timed in turns, round after round, so that a busy machine disturbs all of them alike.

A task does one round of something and returns the seconds of one unit of it. Every round uses new texts and
tokens, so that caches do not help; the first round builds tables, and is not counted. Times are minima and
medians over rounds; ratios are taken within rounds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from dewmark.workspace import Progress, silent

Task = Callable[[int], float]
"""Does round i of a task and returns its seconds, per unit of what the measure counts."""

_MIN_ROUNDS = 6  # for a 95% interval of a median


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a task, and the median of its ratios to its baseline, if it has one.

    ``quartiles`` are of the rounds; ``interval`` is the 95% interval of the median ratio, None with fewer
    than 6 rounds.
    """

    fastest: float
    median: float
    quartiles: tuple[float, float]
    ratio: float | None
    interval: tuple[float, float] | None
    rounds: int

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values; times in milliseconds."""
        return {
            "ms_min": round(1000.0 * self.fastest, 4),
            "ms_median": round(1000.0 * self.median, 4),
            "ms_quartiles": [round(1000.0 * value, 4) for value in self.quartiles],
            "ratio": None if self.ratio is None else round(self.ratio, 4),
            "ratio_interval": None if self.interval is None else [round(end, 4) for end in self.interval],
            "rounds": self.rounds,
        }


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long the work takes until the device has finished it."""
    _wait(device)
    started = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_tasks(
    measure: str,
    tasks: Mapping[str, Task],
    *,
    repeats: int,
    baselines: Mapping[str, str] | None = None,
    progress: Progress = silent,
) -> dict[str, Cost]:
    """Time all tasks in turns; ``baselines`` maps a task to the one that it is compared with."""
    names = list(tasks)
    rounds: list[dict[str, float]] = []
    total = (repeats + 1) * len(names)
    for number in range(repeats + 1):
        turn = number % len(names)  # no task is always first
        taken = {}
        for done, name in enumerate(names[turn:] + names[:turn]):
            progress(measure, number * len(names) + done, total)
            taken[name] = tasks[name](number)
        rounds.append(taken)
    progress(measure, total, total)
    return {name: _cost(name, rounds[1:], (baselines or {}).get(name)) for name in names}


def _cost(name: str, rounds: Sequence[Mapping[str, float]], baseline: str | None) -> Cost:
    times = [taken[name] for taken in rounds]
    ratios = [] if baseline is None else sorted(taken[name] / taken[baseline] for taken in rounds)
    return Cost(
        fastest=min(times),
        median=statistics.median(times),
        quartiles=_quartiles(times),
        ratio=statistics.median(ratios) if ratios else None,
        interval=median_interval(ratios),
        rounds=len(times),
    )


def _quartiles(times: Sequence[float]) -> tuple[float, float]:
    """The first and the third quartile."""
    if len(times) == 1:
        return times[0], times[0]
    first, _, third = statistics.quantiles(times, n=4, method="inclusive")
    return first, third


def median_interval(ordered: Sequence[float]) -> tuple[float, float] | None:
    """The 95% interval of the median: the number of values below it is Binomial(n, 1/2), so 0.98 √n ranks."""
    n = len(ordered)
    if n < _MIN_ROUNDS:
        return None
    reach = 0.98 * math.sqrt(n)
    return ordered[max(math.floor(n / 2 - reach), 0)], ordered[min(math.ceil(n / 2 + reach), n - 1)]
