"""Who is deceived: texts before the victim's own detector, beside human texts.

Boundary: scores and shares; what is written, and how, is in `stealing`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dewmark.errors import InputError
from dewmark.hosts.base import Host
from dewmark.scheme import BoundScheme
from dewmark.stats.metrics import threshold_at

__all__ = ["LEVEL", "Judge", "Judged", "median_perplexity"]

LEVEL = 0.01
_TEXTS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Judged:
    """How texts fared: each one's p-value and z, the share with p < 0.01, the share above the threshold."""

    p_values: tuple[float, ...]
    z: tuple[float, ...]
    found: float
    above: float

    @property
    def mean_z(self) -> float:
        """The mean z-score."""
        return float(np.mean(self.z))


@dataclass(frozen=True)
class Judge:
    """A victim's detector, and the z that 1% of ``humans`` human texts exceed.

    ``human_found`` is the share of them with p < 0.01: what the p-value really is worth.
    """

    victim: BoundScheme
    threshold: float
    humans: int
    human_found: float

    @classmethod
    def of(cls, victim: BoundScheme, humans: Sequence[str]) -> Judge:
        """A judge with human texts, each scored without a prompt."""
        if not humans:
            raise InputError("no human texts: the victim's threshold needs some")
        p_values, z = _scores(victim, humans)
        return cls(
            victim, threshold_at(z, fpr=LEVEL), len(humans), float(np.mean(np.array(p_values) < LEVEL))
        )

    def judge(self, texts: Sequence[str]) -> Judged:
        """Score texts without their prompts, as a detector meets them."""
        p_values, z = _scores(self.victim, texts)
        return Judged(
            p_values=tuple(p_values),
            z=tuple(z),
            found=float(np.mean(np.array(p_values) < LEVEL)),
            above=float(np.mean(np.array(z) > self.threshold)),
        )


def median_perplexity(host: Host, prompts: Sequence[str], texts: Sequence[str]) -> float:
    """The median perplexity of completions under the host."""
    pairs = host.log_likelihood(prompts, texts)
    return float(np.median([math.exp(-total / count) for total, count in pairs if count]))


def _scores(victim: BoundScheme, texts: Sequence[str]) -> tuple[list[float], list[float]]:
    """p-values and z-scores; a blank text carries no evidence."""
    clean = [text.replace("\0", " ") for text in texts]  # small models write one now and then
    known = [i for i, text in enumerate(clean) if text.strip()]
    p_values, z = [1.0] * len(clean), [0.0] * len(clean)
    for start in range(0, len(known), _TEXTS_AT_ONCE):
        some = known[start : start + _TEXTS_AT_ONCE]
        for i, found in zip(some, victim.detect_batch([clean[i] for i in some]), strict=True):
            p_values[i], z[i] = found.p_value, found.z
    return p_values, z
