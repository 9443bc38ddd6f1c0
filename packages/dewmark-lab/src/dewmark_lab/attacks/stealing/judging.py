"""The victim's detector as judge of an attack: p-values, z-scores and a threshold from human texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dewmark.detector import detect_texts
from dewmark.dew.scheme import BoundDEW
from dewmark.errors import InputError
from dewmark.hosts.base import Host
from dewmark.scheme import BoundScheme
from dewmark_lab.metrics import threshold_at

LEVEL = 0.01
_BATCH_SIZE = 100


@dataclass(frozen=True, slots=True)
class Judgement:
    """Each text's p-value and z-score, the share with p < 0.01, and the share above the threshold.

    ``attributable`` is the share that the detector attributes to the key's holder; None if it does not test.
    """

    p_values: tuple[float, ...]
    z: tuple[float, ...]
    found: float
    above: float
    attributable: float | None

    @property
    def mean_z(self) -> float:
        """The mean z-score."""
        return float(np.mean(self.z))


@dataclass(frozen=True)
class ForgeryJudge:
    """The victim's detector and its ``threshold``, the z-score that 1% of human texts exceed.

    ``humans`` is the number of human texts and ``human_found`` the share of them with p < 0.01, that is, the
    detector's actual false-positive rate.
    """

    victim: BoundScheme
    threshold: float
    humans: int
    human_found: float

    @classmethod
    def of(cls, victim: BoundScheme, humans: Sequence[str]) -> ForgeryJudge:
        """A judge whose threshold comes from human texts, scored without prompts."""
        if not humans:
            raise InputError("no human texts: the victim's threshold needs some")
        p_values, z, _ = _scores(victim, humans)
        return cls(
            victim, threshold_at(z, fpr=LEVEL), len(humans), float(np.mean(np.array(p_values) < LEVEL))
        )

    def judge(self, texts: Sequence[str]) -> Judgement:
        """Score texts without their prompts, as a detector would see them."""
        p_values, z, attributable = _scores(self.victim, texts)
        return Judgement(
            p_values=tuple(p_values),
            z=tuple(z),
            found=float(np.mean(np.array(p_values) < LEVEL)),
            above=float(np.mean(np.array(z) > self.threshold)),
            attributable=attributable,
        )


def median_perplexity(host: Host, prompts: Sequence[str], texts: Sequence[str]) -> float:
    """The median perplexity of completions under the host."""
    pairs = host.log_likelihood(prompts, texts)
    return float(np.median([math.exp(-total / count) for total, count in pairs if count]))


def _scores(victim: BoundScheme, texts: Sequence[str]) -> tuple[list[float], list[float], float | None]:
    """p-values and z-scores (blank texts get 1 and 0), and the share of texts that are attributed."""
    found = [
        detection
        for start in range(0, len(texts), _BATCH_SIZE)
        for detection in detect_texts(victim, texts[start : start + _BATCH_SIZE])
    ]
    share = None
    if isinstance(victim, BoundDEW) and victim.attributes:
        tests = [detection.forgery for detection in found]  # only marked texts are tested
        share = sum(test is not None and test.attributable for test in tests) / max(len(tests), 1)
    return [detection.p_value for detection in found], [detection.z for detection in found], share
