"""Is a mark's effect within a margin? Intervals over prompts and keys, and the worst key.

The data of a measure are differences D (keys, prompts), marked minus unmarked, each from texts of the same
prompt and seed; `metrics.mean_interval` has the interval of their mean.

The verdict is *within* if the 95% interval lies inside ±margin, which is two one-sided tests at 2.5%;
*exceeded* if it lies wholly outside; otherwise *inconclusive*. All measures together need no correction: a
mark passes only if every single one does.

Boundary: arrays in, frozen results out.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np

from dewmark.arrays import F64
from dewmark.errors import ConfigError, InputError
from dewmark_audit.intervals import Interval
from dewmark_lab.metrics import mean_interval


class MarginOutcome(enum.StrEnum):
    """Whether a difference is within its margin."""

    WITHIN = "within"
    EXCEEDED = "exceeded"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Equivalence:
    """A mean difference against its margin.

    ``worst`` is the index of the key whose mean is farthest from 0 and ``worst_difference`` that mean, with
    an interval over prompts that holds for all keys together (Bonferroni).
    """

    outcome: MarginOutcome
    difference: Interval
    margin: float
    prompts: int
    by_key: tuple[float, ...]
    worst: int
    worst_difference: Interval


def equivalence(differences: F64, *, margin: float, grain: float = 0.0) -> Equivalence:
    """Compare the mean of ``differences`` (keys, prompts) with ±margin.

    A prompt with a NaN under any key is left out; at least two must remain.
    """
    if not 0.0 < margin < math.inf:
        raise ConfigError(f"a margin must be a positive number, got {margin}")
    found = differences[:, ~np.isnan(differences).any(axis=0)]
    keys, prompts = found.shape
    if prompts < 2 or keys < 1:
        raise InputError(f"an interval needs at least two prompts with texts under every key, got {prompts}")
    difference = mean_interval(found, grain=grain)
    by_key = found.mean(axis=1)
    worst = int(np.abs(by_key).argmax())
    for_all_keys = 1.0 - (1.0 - 0.95) / keys
    alone = mean_interval(found[[worst]], grain=grain, confidence=for_all_keys)
    outcome = _outcome(difference, margin)
    return Equivalence(outcome, difference, margin, prompts, tuple(by_key.tolist()), worst, alone)


def _outcome(difference: Interval, margin: float) -> MarginOutcome:
    if -margin <= difference.low and difference.high <= margin:
        return MarginOutcome.WITHIN
    if difference.low > margin or difference.high < -margin:
        return MarginOutcome.EXCEEDED
    return MarginOutcome.INCONCLUSIVE
