"""From projected rows to a test's result: the evidence of a text of tokens under one key, and its tests.

The key test sums tanh(γu). It subtracts the text's mean unit from each, which is what all texts of a language
share, and normalises the differences. The paper's own tests (`gaussian`, `beta`) keep plain tokens and tanh.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np

from dewmark.arrays import F32, F64
from dewmark.core.projections import Kind
from dewmark.dew.paper.monte_carlo import Score, monte_carlo_test
from dewmark.dew.paper.null_distribution import beta_test, tanh_kernel
from dewmark.dew.reading import Pairs, Reading
from dewmark.stats.evidence import Evidence, Factor
from dewmark.stats.key_test import Statistic, gaussian_test, key_test

TESTS = ("key", "monte-carlo", "gaussian", "beta")
PLAIN = ("gaussian", "beta")
"""The tests that take tokens as they are."""


@dataclass(frozen=True)
class Scoring:
    """What tests must know of the scheme: γ, n, how keys are drawn, and which meanings count.

    ``tokens`` and ``contexts`` say whether similar ones have similar scores.
    """

    gamma: float
    n: int
    kind: Kind
    tokens: bool
    contexts: bool


@dataclass(frozen=True)
class TextEvidence:
    """One text, ready to be scored under any key.

    ``blank`` is its evidence with all scores 0. ``norms`` (N,) are ‖t_i − t̄‖ if the mean is subtracted, else
    None.
    """

    pairs: Pairs
    blank: Evidence
    norms: F32 | None
    score: Score

    @classmethod
    def of(
        cls, pairs: Pairs, reading: Reading, context_rows: F32, scoring: Scoring, *, test: str
    ) -> TextEvidence:
        """Prepare a text of a reading whose contexts have the rows ``context_rows`` (W, d_C)."""
        T, norms = _units(pairs, reading, scoring, centred=test not in PLAIN)
        blank = Evidence(
            scores=np.zeros(len(pairs.weights)),
            alignments=np.zeros(len(pairs.weights), dtype=np.float32),
            weights=pairs.weights,
            positions=pairs.positions,
            T=T,
            C=context_rows[pairs.windows] if scoring.contexts else pairs.windows,
            kernel=tanh_kernel(scoring.gamma),
        )
        return cls(pairs, blank, norms, functools.partial(saturate, scoring.gamma))

    def under(self, tokens: F32, contexts: F32) -> Evidence:
        """The evidence under a key that maps the batch's units and contexts to rows whose products are u."""
        rows = tokens[self.pairs.tokens]
        if self.norms is not None:
            rows -= _mean(rows, self.pairs)
            rows /= self.norms[:, None]
        u: F32 = np.einsum("ij,ij->i", rows, contexts[self.pairs.windows])
        return dataclasses.replace(self.blank, scores=self.score(u.astype(np.float64)), alignments=u)


def _units(pairs: Pairs, reading: Reading, scoring: Scoring, *, centred: bool) -> tuple[Factor, F32 | None]:
    """T of a text's evidence, and the norms of its rows before they were normalised, if they were."""
    if not scoring.tokens:
        return pairs.tokens, None
    T = reading.token_rows[pairs.tokens]
    if not centred or not np.any(pairs.tokens != pairs.tokens[:1]):  # a lone unit is not its own mean
        return T, None
    T -= _mean(T, pairs)
    norms: F32 = np.linalg.norm(T, axis=1)
    T /= norms[:, None]
    return T, norms


def _mean(rows: F32, pairs: Pairs) -> F32:
    """The mean (d,) of a text's rows (N, d)."""
    return np.asarray((pairs.weights / pairs.weights.sum()).astype(np.float32) @ rows)


def saturate(gamma: float, u: F64) -> F64:
    """tanh(γu)."""
    return np.asarray(np.tanh(gamma * u))


def run_test(
    text: TextEvidence,
    evidence: Evidence,
    scoring: Scoring,
    *,
    test: str,
    fpr: float,
    secret: bytes,
) -> Statistic:
    """Run the named test.

    The simulation draws its keys from ``secret`` and the text, as many as the level ``fpr`` requires.
    """
    if test == "gaussian":
        return gaussian_test(evidence)
    if test == "beta":
        return beta_test(evidence, gamma=scoring.gamma, n=scoring.n)
    if test == "monte-carlo":
        return monte_carlo_test(
            evidence, text.score, n=scoring.n, kind=scoring.kind, secret=secret, level=fpr
        )
    return key_test(evidence)
