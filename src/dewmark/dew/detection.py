"""From projected rows to a verdict: the evidence of a text, the test that was asked for, the result.

Shared by one key's detector (`bound`) and by the sweep over many keys (`sweep`).

**Centred evidence.** A marked token was preferred to the others that could have stood there, so what carries
the mark is not t_i but t_i minus what was to be expected in its place: for a tilt of the host's distribution
by exp(δ tᵀWc) the efficient score is Σ_i (t_i − E[t])ᵀ W c_i. The host is unknown to a detector, but the mean
token t̄ of the text itself is a fair stand-in for E[t], and subtracting it removes the part of the sum that
only says which words the text is made of. Any function of the text alone leaves the key test valid: the
centred tokens simply take the place of the tokens in its covariance.

**Linear scores.** Where the Gumbel sampler marked, the key test sums u itself: at its large u the tanh throws
evidence away, and a sum that is linear in the key's projections is normal over keys without any limit in the
text's length. The paper's own tests (`gaussian`, `beta`) keep plain tokens and tanh.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dewmark.arrays import F32, F64
from dewmark.dew.reading import Pairs, Reading
from dewmark.scheme import decide
from dewmark.stats.evidence import Evidence, Factor
from dewmark.stats.key_test import Statistic, gaussian_test, key_test
from dewmark.stats.monte_carlo import Score, monte_carlo_test
from dewmark.stats.score_law import beta_test, tanh_kernel
from dewmark.types import Detection, TokenScore
from dewmark.workspace import Tokenized

if TYPE_CHECKING:
    from dewmark.dew.scheme import DEW

__all__ = ["TESTS", "Scored", "detection_of", "saturate", "statistic_of", "token_scores"]


TESTS = ("key", "monte-carlo", "gaussian", "beta")


@dataclass(frozen=True)
class Scored:
    """One text, ready to be scored under any key.

    ``blank`` is its evidence with all scores 0; ``norms`` (N,) are ‖t_i − t̄‖ where tokens are centred, and
    None where they are not.
    """

    pairs: Pairs
    blank: Evidence
    norms: F32 | None
    score: Score

    @classmethod
    def of(cls, pairs: Pairs, reading: Reading, context_rows: F32, scheme: DEW, *, test: str) -> Scored:
        """Prepare one text of a reading whose windows have the rows ``context_rows`` (W, d_C)."""
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
        return cls(pairs, blank, norms, _as_is if linear else functools.partial(saturate, gamma=scheme.gamma))

    def under(self, tokens: F32, contexts: F32) -> Evidence:
        """The evidence under a key that maps the batch's tokens and contexts to rows whose products are u."""
        rows = tokens[self.pairs.tokens]
        if self.norms is not None:
            rows -= _mean(rows, self.pairs)
            rows /= self.norms[:, None]
        u: F32 = np.einsum("ij,ij->i", rows, contexts[self.pairs.windows])
        return dataclasses.replace(self.blank, scores=self.score(u.astype(np.float64)), alignments=u)


def _mean(rows: F32, pairs: Pairs) -> F32:
    """The mean row over the text's scored tokens, repetitions counted, (d,)."""
    share = (pairs.weights / pairs.weights.sum()).astype(np.float32)
    return np.asarray(share @ rows)


def saturate(u: F64, *, gamma: float) -> F64:
    """tanh(γu)."""
    return np.asarray(np.tanh(gamma * u))


def _as_is(u: F64) -> F64:
    return u


def statistic_of(
    scored: Scored, evidence: Evidence, scheme: DEW, *, test: str, n: int, variance: float | None = None
) -> Statistic:
    """The chosen test; ``variance`` of the sum over keys, if it is known already."""
    if test == "gaussian":
        return gaussian_test(evidence)
    if test == "beta":
        return beta_test(evidence, gamma=scheme.gamma, n=n)
    if test == "monte-carlo":
        return monte_carlo_test(evidence, scored.score, n=n, kind=scheme.projection)
    return key_test(evidence, variance=variance)


def detection_of(
    text: Tokenized,
    evidence: Evidence,
    statistic: Statistic,
    scheme: DEW,
    *,
    test: str,
    fpr: float,
    fingerprint: str,
    tokens: bool = True,
) -> Detection:
    """The result for one text; ``tokens`` says whether it carries every token's score."""
    scale = scheme.lambda_ if scheme.sampler == "bias" else 1.0  # the paper's score is the bias itself
    return Detection(
        verdict=decide(statistic.p_value, statistic.effective_length, fpr),
        p_value=statistic.p_value,
        z=statistic.z,
        score=scale * evidence.total / max(evidence.length, 1),
        effective_length=statistic.effective_length,
        tokens_scored=evidence.length,
        test=test,
        fpr=fpr,
        scheme=scheme.name,
        key_fingerprint=fingerprint,
        tokens=token_scores(text, evidence) if tokens else (),
    )


def token_scores(text: Tokenized, evidence: Evidence) -> tuple[TokenScore, ...]:
    """Every token of the text with its alignment and its place."""
    if not text.offsets:
        return ()
    scores = np.append(evidence.alignments, 0.0)[evidence.positions].tolist()
    pieces = [text.text[start:end] for start, end in text.offsets]
    starts, ends = zip(*text.offsets, strict=True)
    return tuple(map(TokenScore, pieces, starts, ends, scores, (evidence.positions >= 0).tolist()))
