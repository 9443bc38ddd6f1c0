"""Metrics for experiments: how well the scores of marked texts separate from those of unmarked ones.

A score is a number per text, larger if marked; *positives* are the scores of marked texts, *negatives* those
of unmarked ones. A text is called marked if its score is above the threshold τ.

**The threshold at a false-positive rate** is the smallest negative τ with #{negatives > τ} ≤ fpr · N. It is
conservative: there is no interpolation, and negatives with equal scores pass together or not at all. With
fewer than 1/fpr negatives it is the largest of them.

Boundary: numbers in, small frozen results out, each with ``to_dict()``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dewmark.errors import ConfigError, InputError
from dewmark.types import Plain
from dewmark_audit.intervals import Interval, Scores, checked
from dewmark_audit.rates import check_confidence


@dataclass(frozen=True, slots=True)
class Spread(Plain):
    """A figure over seeds: its mean, and half its range."""

    mean: float
    half_range: float
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class HeldOut(Plain):
    """One seed, evaluated at the threshold from the other seeds' negatives: the shares above it."""

    seed: int | str
    threshold: float
    tpr: float
    fpr: float


def auroc(positives: Scores, negatives: Scores) -> float:
    """P(a positive scores above a negative), equal scores counting half (the Mann-Whitney statistic)."""
    from scipy.stats import rankdata

    high, low = checked(positives, "positives"), checked(negatives, "negatives")
    ranks = rankdata(np.concatenate([high, low]))[: len(high)].sum()
    return float((ranks - len(high) * (len(high) + 1) / 2) / (len(high) * len(low)))


def auroc_interval(value: float, *, positives: int, negatives: int, confidence: float = 0.95) -> Interval:
    """The AUROCs θ compatible with an observed ``value``: |value − θ| ≤ z·√Var(θ).

    Var(θ) = θ(1−θ)·(1 + (N−1)·((1−θ)/(2−θ) + θ/(1+θ))) / (positives·negatives), where N is their mean number:
    the variance for exponential scores (Hanley and McNeil) in Newcombe's symmetric form. As in Wilson's
    interval it is taken at θ, not at ``value``, so the interval has positive width at 0 and 1 too.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtri

    check_confidence(confidence)
    if not 0.0 <= value <= 1.0 or positives < 1 or negatives < 1:
        raise InputError(
            f"an AUROC must lie in [0, 1] and have positives and negatives, got {value} "
            f"from {positives} and {negatives}"
        )
    z, mean = float(ndtri((1.0 + confidence) / 2.0)), (positives + negatives) / 2.0

    def excess(theta: float) -> float:
        spread = 1.0 + (mean - 1.0) * ((1.0 - theta) / (2.0 - theta) + theta / (1.0 + theta))
        return abs(value - theta) - z * math.sqrt(theta * (1.0 - theta) * spread / (positives * negatives))

    tiny = 1e-12  # distance from the ends of the range, where variance and distance are both 0
    low = float(brentq(excess, 0.0, min(value, 1.0 - tiny))) if value > tiny else 0.0
    high = float(brentq(excess, max(value, tiny), 1.0)) if value < 1.0 - tiny else 1.0
    return Interval(value, low, high, confidence)


def threshold_at(negatives: Scores, *, fpr: float) -> float:
    """The smallest negative τ with #{negatives > τ} ≤ fpr · N."""
    scores = np.sort(checked(negatives, "negatives"))[::-1]
    if not 0.0 <= fpr < 1.0:
        raise ConfigError(f"fpr must lie in [0, 1), got {fpr}")
    allowed = math.floor(fpr * len(scores) * (1.0 + 1e-12))  # 0.29 · 100 is 28.999… in floating point
    return float(scores[min(allowed, len(scores) - 1)])


def held_out(
    positives: Mapping[Any, Scores], negatives: Mapping[Any, Scores], *, fpr: float
) -> tuple[HeldOut, ...]:
    """Evaluate each seed at the threshold from the other seeds' negatives, so none is fitted on itself.

    A single seed has no others: its threshold comes from its own negatives.
    """
    if positives.keys() != negatives.keys() or not negatives:
        raise InputError(
            "thresholds need at least one seed, the same seeds for positives and negatives, "
            f"got {sorted(map(str, positives))} and {sorted(map(str, negatives))}"
        )
    found = []
    for seed in positives:
        high, low = checked(positives[seed], "positives"), checked(negatives[seed], "negatives")
        others = [checked(each, "negatives") for other, each in negatives.items() if other != seed]
        threshold = threshold_at(np.concatenate(others or [low]), fpr=fpr)
        tpr, real = (float(np.mean(scores > threshold)) for scores in (high, low))
        found.append(HeldOut(seed, threshold, tpr, real))
    return tuple(found)


def spread(values: Scores) -> Spread:
    """Mean and half-range of one figure over seeds."""
    figures = checked(values, "figures")
    return Spread(float(figures.mean()), float(figures.max() - figures.min()) / 2.0, tuple(figures.tolist()))


def mean_interval(values: ArrayLike, *, grain: float = 0.0, confidence: float = 0.95) -> Interval:
    """The mean of independent values (prompts,), or of a table (keys, prompts), with its interval.

    Of one sample it is Student's. In a table prompts and keys are both samples, D = μ + key + prompt + rest,
    each part random. With the mean squares of that two-way table, MS_k, MS_p and MS_e, the variance of the
    mean is

        V = (MS_k + MS_p − MS_e) / (K P),

    at least that of either factor alone, and Student's quantile has Satterthwaite's degrees of freedom. So
    keys that differ widen the interval as few keys must, and keys that do not differ cost nothing.
    (Resampling prompts and keys is no substitute: with four keys that differ, its 95% intervals hold the mean
    82 times in 100.)

    A rare event that did not happen has an interval too: ``grain`` is the effect of one event on one text,
    and two prompts are added on which it happened once in each direction with weight ½ (Agresti and Min's
    correction for paired shares, with a prompt as the unit, since the keys of one prompt may agree).
    """
    from scipy.special import stdtrit

    check_confidence(confidence)
    given = np.atleast_2d(np.asarray(values, dtype=np.float64))
    if given.shape[1] < 2:
        raise InputError(f"an interval for a mean needs at least two values, got {given.shape[1]}")
    keys, mean, half = len(given), float(given.mean()), grain * math.sqrt(0.5)
    table = np.hstack([given, np.tile([half, -half], (keys, 1))]) if grain else given
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
    width = float(stdtrit(degrees, (1.0 + confidence) / 2.0)) * math.sqrt(total / (keys * columns))
    return Interval(mean, mean - width, mean + width, confidence)
