"""From projected rows to a test's result: the evidence of a text under one key, and the test.

**A text is one matrix.** With linear scores (after Gumbel sampling the key test sums u itself: at its large u
the tanh would discard evidence) and a full key matrix W, everything that a text says about any key is

    M = Σ_i w_i (t_i − μ_i) c_iᵀ,    z = ⟨M, W⟩ / ‖M‖,

exactly N(0, 1) over keys, for texts of any length. Any function of the text alone may replace M. Under one
key the correlation between the z of two texts is the cosine between their matrices, so what all texts of a
kind have in common is what makes false alarms come in blocks. Three things remove it:

- the expected unit μ_i is subtracted. A marked word was preferred to the others that could have stood in
  its place, so the mark lies in the difference from the expected word. Either a language model says what was
  expected (`dewmark.dew.expected`), or the text's mean unit t̄ stands in for it; what a language or a kind of
  text shares goes with it. The differences are not normalised afterwards;
- a word counts where it is new in the text, a frequent one up to four times (`WordReader`);
- M is flattened (`dewmark.dew.text_matrix`): what long texts share lies in few directions of M, the mark in
  all of them.

With R_T and R_C, or with tanh, the differences are those from t̄; they are normalised, and nothing is
flattened. The paper's own tests (`gaussian`, `beta`) keep plain tokens and tanh.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dewmark.arrays import F32, F64
from dewmark.dew.reading import Pairs, Reading
from dewmark.dew.settings import DewSettings
from dewmark.dew.text_matrix import Cuts, flatten
from dewmark.stats.evidence import Evidence, Factor
from dewmark.stats.key_test import Statistic, gaussian_test, key_test
from dewmark.stats.monte_carlo import Score, monte_carlo_test
from dewmark.stats.score_law import beta_test, tanh_kernel

TESTS = ("key", "monte-carlo", "gaussian", "beta")
SIMULATION = "dew/monte-carlo"
"""The purpose of the sub-key from which the Monte-Carlo test draws its keys."""
_PAIRS_AT_ONCE = 4096


@dataclass(frozen=True)
class TextEvidence:
    """One text, ready to be scored under any key.

    ``blank`` is its evidence with all scores 0. ``norms`` (N,) are ‖t_i − μ_i‖ if it is subtracted, else
    None; with ``linear`` evidence of a full key matrix, units keep these norms. ``cuts`` flatten the matrix.
    """

    pairs: Pairs
    blank: Evidence
    norms: F32 | None
    score: Score
    linear: bool
    cuts: Cuts | None

    @classmethod
    def each(
        cls, texts: Sequence[Pairs], reading: Reading, context_rows: F32, scheme: DewSettings, *, test: str
    ) -> Iterator[TextEvidence]:
        """Prepare texts of a reading whose contexts have the rows ``context_rows`` (W, d_C).

        A few at a time: a text's evidence is much larger than what is kept of it.
        """
        ours = test not in ("gaussian", "beta")
        flattens = ours and scheme.flattens
        for some in _groups(texts):
            rows = [_rows(pairs, reading, context_rows, scheme, ours=ours) for pairs in some]
            cuts: Sequence[Cuts | None] = [None] * len(rows)
            if flattens and scheme.flatten is not None:
                cuts = flatten(
                    [
                        (T.astype(np.float32, copy=False), C.astype(np.float32, copy=False), pairs.weights)
                        for pairs, (T, C, _) in zip(some, rows, strict=True)
                    ],
                    limit=scheme.flatten,
                )
            for pairs, (T, C, norms), cut in zip(some, rows, cuts, strict=True):
                yield cls._of(pairs, T, C, norms, cut, scheme, ours=ours)

    @classmethod
    def _of(
        cls,
        pairs: Pairs,
        T: Factor,
        C: Factor,
        norms: F32 | None,
        cuts: Cuts | None,
        scheme: DewSettings,
        *,
        ours: bool,
    ) -> TextEvidence:
        linear = ours and scheme.scores_linearly
        weights = pairs.weights
        if cuts is not None:
            T = np.concatenate((np.asarray(T, dtype=np.float32), cuts.left))
            C = np.concatenate((np.asarray(C, dtype=np.float32), cuts.right))
            weights = np.concatenate((weights, -cuts.sizes))
        blank = Evidence(
            scores=np.zeros(len(weights)),
            alignments=np.zeros(len(weights), dtype=np.float32),
            weights=weights,
            positions=pairs.positions,
            T=T,
            C=C,
            kernel=(1.0,) if linear else tanh_kernel(scheme.gamma),
            extra=0 if cuts is None else len(cuts.sizes),
            unit_rows=not _keeps_norms(scheme, ours=ours),
        )
        score = _identity if linear else functools.partial(saturate, gamma=scheme.gamma)
        return cls(pairs, blank, norms, score, _keeps_norms(scheme, ours=ours), cuts)

    @property
    def variance(self) -> float | None:
        """The variance of the sum over keys, where flattening has found it."""
        return None if self.cuts is None else self.cuts.square

    def under(self, tokens: F32, contexts: F32) -> Evidence:
        """The evidence under a key that maps the batch's units and contexts to rows whose products are u."""
        rows = tokens[self.pairs.tokens]
        if self.norms is not None:
            rows -= _centre(tokens, rows, self.pairs)
            if not self.linear:
                rows /= self.norms[:, None]
        around = self.blank.C[: len(rows)] if self.linear else contexts[self.pairs.windows]
        u: F32 = np.einsum("ij,ij->i", rows, around)
        shown = u
        if self.linear and self.norms is not None:
            shown = np.divide(u, self.norms, out=np.zeros_like(u), where=self.norms > 0.0)
        if self.cuts is not None:
            along: F32 = np.einsum("ij,ij->i", self.cuts.shares @ rows, self.cuts.right)
            u, shown = np.concatenate((u, along)), np.concatenate((shown, along))
        return dataclasses.replace(self.blank, scores=self.score(u.astype(np.float64)), alignments=shown)


def _groups(texts: Sequence[Pairs]) -> Iterator[Sequence[Pairs]]:
    """Texts in order, at most about `_PAIRS_AT_ONCE` pairs at a time."""
    start = size = 0
    for i, pairs in enumerate(texts):
        size += len(pairs.tokens)
        if size >= _PAIRS_AT_ONCE or i == len(texts) - 1:
            yield texts[start : i + 1]
            start, size = i + 1, 0


def _keeps_norms(scheme: DewSettings, *, ours: bool) -> bool:
    return ours and scheme.scores_linearly and scheme.key_matrix == "full"


def _rows(
    pairs: Pairs, reading: Reading, context_rows: F32, scheme: DewSettings, *, ours: bool
) -> tuple[Factor, Factor, F32 | None]:
    """T and C of a text's evidence, and the norms of T's rows before they were normalised, if they were."""
    C: Factor = context_rows[pairs.windows] if scheme.context_semantics else pairs.windows
    if not scheme.token_semantics:
        return pairs.tokens, C, None
    T = reading.token_rows[pairs.tokens]
    several = bool(np.any(pairs.tokens != pairs.tokens[:1]))  # a lone unit is not its own mean
    if not (ours and scheme.subtract_text_mean and several):
        return T, C, None
    T -= _centre(reading.token_rows, T, pairs)
    norms: F32 = np.linalg.norm(T, axis=1)
    if not _keeps_norms(scheme, ours=ours):
        T /= norms[:, None]
    return T, C, norms


def _centre(table: F32, rows: F32, pairs: Pairs) -> F32:
    """μ of the text's pairs, whose own rows are ``rows`` (N, d): (N, d), or for all of them their mean (d,).

    ``table`` (V, d) holds the rows of all units and expectations.
    """
    share = (pairs.weights / pairs.weights.sum()).astype(np.float32)
    mean = np.asarray(share @ rows)
    if pairs.expected is None:
        return mean
    assert pairs.unforeseen is not None
    return np.asarray(table[pairs.expected] + pairs.unforeseen[:, None] * mean)


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
    variance = text.variance if variance is None else variance
    if test == "gaussian":
        return gaussian_test(evidence)
    if test == "beta":
        return beta_test(evidence, gamma=scheme.gamma, n=n)
    if test == "monte-carlo":
        return monte_carlo_test(
            evidence, text.score, n=n, kind=scheme.key_matrix, secret=secret, level=fpr, variance=variance
        )
    return key_test(evidence, variance=variance)


def mean_score(evidence: Evidence, scheme: DewSettings) -> float:
    """The mean score per unit; with a bias it is the paper's, the bias itself."""
    scale = scheme.strength if scheme.sampler == "bias" else 1.0
    return scale * evidence.total / max(evidence.length, 1)
