"""Checks of probability: p-values that are valid over keys, and evidence that has the moments it claims.

Under the null hypothesis a text does not depend on the key, so the text is fixed and keys are drawn.
"""

from __future__ import annotations

import dataclasses
import math
import unittest

import numpy as np
from scipy.stats import kurtosis

from dewmark.errors import ConfigError
from dewmark.evidence import Evidence
from dewmark.stats.key_test import score_variance
from dewmark.testing.expectations import expect, expect_valid
from dewmark.testing.trial import Trial

__all__ = ["CHECKS"]

_SIGMAS = 4.5  # a right scheme fails one comparison in 150,000
_APPROXIMATION = 0.05  # of a variance: closed forms for large n, on vectors of 32 numbers


def p_values_are_valid(trial: Trial) -> None:
    """On unmarked text of every kind, P(p ≤ a) ≤ a over keys."""
    for kind in trial.nulls:
        expect_valid(trial.p_values[kind], kind)


def wrong_keys_find_nothing(trial: Trial) -> None:
    """Text that another key marked is unmarked text: the same holds."""
    expect_valid(trial.p_values["text marked with another key"], "text marked with another key")


def evidence_keeps_its_claims(trial: Trial) -> None:
    """Over keys, sums of scores have mean 0 and the variance that the evidence claims.

    Each sum is divided by its claimed standard deviation (which scores count may depend on the key). The
    margins follow from the number of keys K: the mean of K numbers of variance 1 has a standard deviation of
    1/√K, their sample variance one of √((kurtosis − 1)/K).
    """
    for kind, texts in trial.nulls.items():
        text, prompt = trial.bound.tokenize([texts[0], trial.prompts[0]])
        try:
            found = [bound.evidence([text], [prompt])[0] for bound in trial.others]
        except ConfigError as reason:
            raise unittest.SkipTest(str(reason)) from None
        for evidence in found:
            _expect_complete(evidence, kind, tokens=len(text.ids))
        # the whole sum, and one in which neighbouring pairs count against each other
        for what, sign in (("sum", 1.0), ("difference", -1.0)):
            sums = np.array([_standardised(evidence, sign) for evidence in found])
            mean, variance = float(sums.mean()), float(sums.var(ddof=1))
            margin = _SIGMAS / math.sqrt(len(sums))
            expect(
                abs(mean) <= margin,
                f"{kind}, {what}: expected mean 0 over keys within {margin:.2f} claimed standard deviations, "
                f"got {mean:.2f}",
            )
            margin = _SIGMAS * math.sqrt((max(0.0, float(kurtosis(sums))) + 2.0) / len(sums)) + _APPROXIMATION
            expect(
                abs(variance - 1.0) <= margin,
                f"{kind}, {what}: expected the claimed variance over keys within {margin:.0%}, "
                f"got {variance:.2f} times it",
            )


def _expect_complete(evidence: Evidence, kind: str, *, tokens: int) -> None:
    expect(len(evidence) > 0, f"{kind}: expected evidence in a text of {tokens} tokens, there is none")
    expect(
        len(evidence.positions) == tokens and int(evidence.positions.max()) == len(evidence) - 1,
        f"{kind}: expected in positions, for each of {tokens} tokens, its pair or -1",
    )


def _standardised(evidence: Evidence, sign: float) -> float:
    """Σ w_i s_i over its claimed standard deviation, every other weight multiplied by ``sign``."""
    weights = evidence.weights * np.where(np.arange(len(evidence)) % 2 == 0, 1.0, sign)
    weighted = dataclasses.replace(evidence, weights=weights)
    return weighted.total / math.sqrt(score_variance(weighted))


CHECKS = (p_values_are_valid, wrong_keys_find_nothing, evidence_keeps_its_claims)
