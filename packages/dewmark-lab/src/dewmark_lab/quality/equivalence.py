"""Is a mark's effect within a margin? Intervals over prompts and keys, and the worst key.

The data of a measure are differences D (keys, prompts), marked minus unmarked, each from texts of the same
prompt and seed. Prompts and keys are both samples: D = μ + key + prompt + rest, each part random. With the
mean squares of that two-way table, MS_k, MS_p and MS_e, the variance of the mean is

    V = (MS_k + MS_p − MS_e) / (K P),

at least that of either factor alone, and Student's quantile has Satterthwaite's degrees of freedom. So keys
that differ widen the interval as few keys must, and keys that do not differ cost nothing. (Resampling prompts
and keys is no substitute: with four keys that differ, its 95% intervals hold the mean 82 times in 100.)

A rare event that did not happen has an interval too: ``grain`` is the effect of one event on one text, and
two prompts are added on which it happened once in each direction with weight ½ (Agresti and Min's correction
for paired shares, with a prompt as the unit, since the keys of one prompt may agree).

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
from dewmark.stats.rates import Interval


class Outcome(enum.StrEnum):
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

    outcome: Outcome
    difference: Interval
    margin: float
    prompts: int
    by_key: tuple[float, ...]
    worst: int
    worst_difference: Interval


def equivalence(
    differences: F64, *, margin: float, grain: float = 0.0, confidence: float = 0.95
) -> Equivalence:
    """Compare the mean of ``differences`` (keys, prompts) with ±margin.

    A prompt with a NaN under any key is left out; at least two must remain.
    """
    if not 0.0 < margin < math.inf:
        raise ConfigError(f"a margin must be a positive number, got {margin}")
    found = differences[:, ~np.isnan(differences).any(axis=0)]
    keys, prompts = found.shape
    if prompts < 2 or keys < 1:
        raise InputError(f"an interval needs at least two prompts with texts under every key, got {prompts}")
    difference = mean_interval(found, grain=grain, confidence=confidence)
    by_key = found.mean(axis=1)
    worst = int(np.abs(by_key).argmax())
    alone = mean_interval(found[[worst]], grain=grain, confidence=1.0 - (1.0 - confidence) / keys)
    outcome = _outcome(difference, margin)
    return Equivalence(outcome, difference, margin, prompts, tuple(by_key.tolist()), worst, alone)


def mean_interval(differences: F64, *, grain: float = 0.0, confidence: float = 0.95) -> Interval:
    """The mean of a table (keys, prompts) with its interval over prompts and, if there are several, keys."""
    from scipy.special import stdtrit

    keys = len(differences)
    mean = float(differences.mean())
    half = grain * math.sqrt(0.5)
    events = np.tile([half, -half], (keys, 1))
    table = np.hstack([differences, events]) if grain else differences
    columns = table.shape[1]
    of_prompts = keys * float(table.mean(axis=0).var(ddof=1))
    squares, freedom = [of_prompts], [columns - 1.0]
    total = of_prompts
    if keys > 1:
        of_keys = columns * float(table.mean(axis=1).var(ddof=1))
        rest = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
        of_rest = float((rest**2).sum()) / ((keys - 1) * (columns - 1))
        squares += [of_keys, of_rest]
        freedom += [keys - 1.0, (keys - 1.0) * (columns - 1.0)]
        total = max(of_prompts + of_keys - of_rest, of_prompts, of_keys)
    if total == 0.0:
        return Interval(mean, mean, mean, confidence)
    degrees = total**2 / sum(square**2 / each for square, each in zip(squares, freedom, strict=True))
    degrees = max(degrees, min(freedom))  # the difference of mean squares may be small by chance
    error = math.sqrt(total / (keys * columns))
    width = float(stdtrit(degrees, (1.0 + confidence) / 2.0)) * error
    return Interval(mean, mean - width, mean + width, confidence)


def _outcome(difference: Interval, margin: float) -> Outcome:
    if -margin <= difference.low and difference.high <= margin:
        return Outcome.WITHIN
    if difference.low > margin or difference.high < -margin:
        return Outcome.EXCEEDED
    return Outcome.INCONCLUSIVE
