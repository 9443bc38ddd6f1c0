"""From projected rows to a test's result: the evidence of a text under one key, and the test.

**Subtracting the mean.** A marked token was preferred to the others that could have stood in its place, so
the mark lies not in t_i but in its difference from the expected token: if the host's distribution is tilted
by exp(δ tᵀWc), the efficient score is Σ_i (t_i − E[t])ᵀ W c_i. A detector does not know the host, but the
mean token t̄ of the text itself is a fair substitute for E[t], and subtracting it removes the part of the sum
that only reflects which words the text is made of. Any function of the text alone leaves the key test valid:
the centred tokens simply replace the tokens in its covariance.

**Linear scores.** After Gumbel sampling the key test sums u itself: at its large u the tanh would discard
evidence, and a sum that is linear in the key's projections is normal over keys for texts of any length. The
paper's own tests (`gaussian`, `beta`) keep plain tokens and tanh.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np

from dewmark.arrays import F32, F64
from dewmark.dew.reading import Pairs, Reading
from dewmark.dew.settings import DewSettings
from dewmark.stats.evidence import Evidence, Factor
from dewmark.stats.key_test import Statistic, gaussian_test, key_test
from dewmark.stats.monte_carlo import Score, monte_carlo_test
from dewmark.stats.score_law import beta_test, tanh_kernel

__all__ = ["SIMULATION", "TESTS", "TextEvidence", "mean_score", "run_test", "saturate"]

TESTS = ("key", "monte-carlo", "gaussian", "beta")
SIMULATION = "dew/monte-carlo"
"""The purpose of the sub-key from which the Monte-Carlo test draws its keys."""


@dataclass(frozen=True)
class TextEvidence:
    """One text, ready to be scored under any key.

    ``blank`` is its evidence with all scores 0; ``norms`` (N,) are ‖t_i − t̄‖ where the mean is subtracted,
    and None elsewhere.
    """

    pairs: Pairs
    blank: Evidence
    norms: F32 | None
    score: Score

    @classmethod
    def of(
        cls, pairs: Pairs, reading: Reading, context_rows: F32, scheme: DewSettings, *, test: str
    ) -> TextEvidence:
        """Prepare one text of a reading whose contexts have the rows ``context_rows`` (W, d_C)."""
        ours = test not in ("gaussian", "beta")
        linear = ours and scheme.scores_linearly
        nothing = np.zeros(len(pairs.tokens), dtype=np.float32)
        T: Factor = pairs.tokens
        norms = None
        if scheme.token_semantics:
            T = reading.token_rows[pairs.tokens]
            if ours and scheme.subtracts_mean and len(np.unique(pairs.tokens)) > 1:
                T -= _mean(T, pairs)
                norms = np.linalg.norm(T, axis=1)
                T /= norms[:, None]
        blank = Evidence(
            scores=nothing.astype(np.float64),
            alignments=nothing,
            weights=pairs.weights,
            positions=pairs.positions,
            T=T,
            C=context_rows[pairs.windows] if scheme.context_semantics else pairs.windows,
            kernel=(1.0,) if linear else tanh_kernel(scheme.gamma),
        )
        score = _identity if linear else functools.partial(saturate, gamma=scheme.gamma)
        return cls(pairs, blank, norms, score)

    def under(self, tokens: F32, contexts: F32) -> Evidence:
        """The evidence under a key that maps the batch's units and contexts to rows whose products are u."""
        rows = tokens[self.pairs.tokens]
        if self.norms is not None:
            rows -= _mean(rows, self.pairs)
            rows /= self.norms[:, None]
        u: F32 = np.einsum("ij,ij->i", rows, contexts[self.pairs.windows])
        return dataclasses.replace(self.blank, scores=self.score(u.astype(np.float64)), alignments=u)


def _mean(rows: F32, pairs: Pairs) -> F32:
    """The mean row over the text's scored units, counting repetitions, (d,)."""
    share = (pairs.weights / pairs.weights.sum()).astype(np.float32)
    return np.asarray(share @ rows)


def saturate(u: F64, *, gamma: float) -> F64:
    """tanh(γu)."""
    return np.asarray(np.tanh(gamma * u))


def _identity(u: F64) -> F64:
    return u


def run_test(
    text: TextEvidence,
    evidence: Evidence,
    scheme: DewSettings,
    *,
    test: str,
    n: int,
    fpr: float,
    secret: bytes,
    variance: float | None = None,
) -> Statistic:
    """Run the named test; ``variance`` is that of the sum over keys, if already known.

    The simulation draws its keys from ``secret`` and the text, as many as the level ``fpr`` requires.
    """
    if test == "gaussian":
        return gaussian_test(evidence)
    if test == "beta":
        return beta_test(evidence, gamma=scheme.gamma, n=n)
    if test == "monte-carlo":
        return monte_carlo_test(evidence, text.score, n=n, kind=scheme.projection, secret=secret, level=fpr)
    return key_test(evidence, variance=variance)


def mean_score(evidence: Evidence, scheme: DewSettings) -> float:
    """The mean score per unit; with a bias it is the paper's, the bias itself."""
    scale = scheme.lambda_ if scheme.sampler == "bias" else 1.0
    return scale * evidence.total / max(evidence.length, 1)
