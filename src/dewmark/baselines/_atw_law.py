"""The law over keys of ATW's statistic, for a text that is fixed.

A token x has a keyed place π(x) among K, a keyed sign σ(x), and for openings another, τ(x); all are uniform
and independent. After a context with signs t ∈ {−1, 1}^K it scores σ(x) t[π(x)], in the opening τ(x). So
scores have mean 0, different tokens are independent, and the same token after two contexts has covariance ⟨t,
t'⟩/K. The sum over a text is Σ_x Y_x with independent

    Y_x = σ(x) h_x[π(x)] + τ(x) n_x,    h_x = Σ of t over its places,    n_x = its count in the opening,

whose law is a histogram of h_x over its K entries, made symmetric, with ±n_x convolved in: nothing about it
is approximate. The convolution of all tokens' laws is the law of the sum.

Which weights the places have is the test's own choice, as long as they depend on the text alone. A text that
says the same word ten times after contexts that hardly differ has one observation there, not ten: with
weights n / Var(Y_x) for a token of n places, z is largest if all places lean by the same amount.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F32, F64, I64
from dewmark.evidence import Evidence

__all__ = ["LONGEST", "balanced", "context_rows", "exact_tail"]


LONGEST = 1 << 14  # of a law: the work grows with its square
_LEVELS = 16


def context_rows(signs: NDArray[np.int8]) -> F32:
    """Signs (N, K), a row of zeros for the opening, to unit rows (N, K + 1) whose products are ⟨t, t'⟩/K.

    The opening is a context of its own: it has the last coordinate to itself.
    """
    rows = np.empty((len(signs), signs.shape[1] + 1), dtype=np.float32)
    rows[:, :-1] = signs / np.sqrt(np.float32(signs.shape[1]))
    rows[:, -1] = ~signs.any(axis=1)
    return rows


def balanced(evidence: Evidence) -> Evidence:
    """The same pairs, each weighing n / Var(Y_x) more, in up to `_LEVELS` whole levels."""
    if len(evidence) == 0:
        return evidence
    _, token = np.unique(evidence.T, return_inverse=True)
    sums = np.zeros((int(token.max()) + 1, evidence.C.shape[1]))
    np.add.at(sums, token, evidence.C * evidence.weights[:, None])
    n = np.bincount(token, weights=evidence.weights)
    best = n / np.maximum((sums**2).sum(axis=1), 0.5 * n)  # contexts that all but cancel earn no more
    levels = min(_LEVELS, max(LONGEST // evidence.length, 1))
    steps = np.maximum(np.rint(best * (levels / best.max())), 1.0)
    return dataclasses.replace(evidence, weights=evidence.weights * steps[token])


def exact_tail(evidence: Evidence) -> float:
    """P(Σ ≥ observed) over keys; ``evidence`` has tokens as T, `context_rows` as C and whole weights."""
    weights = np.rint(evidence.weights).astype(np.int64)
    _, token, occurrences = np.unique(evidence.T, return_inverse=True, return_counts=True)
    alone = occurrences[token] == 1  # one context: the law is two points, ±weight
    laws = [_two_points(int(weight)) for weight in weights[alone]]
    K = evidence.C.shape[1] - 1
    order = np.argsort(token, kind="stable")
    ends = np.cumsum(occurrences)
    for end, count in zip(ends[occurrences > 1], occurrences[occurrences > 1], strict=True):
        members = order[end - count : end]
        signs = np.rint(evidence.C[members, :K] * np.sqrt(K)).astype(np.int64)
        opening = int(weights[members] @ np.rint(evidence.C[members, K]).astype(np.int64))
        laws.append(np.convolve(_symmetric(weights[members] @ signs), _two_points(opening)))
    law = _convolved(laws)
    middle = len(law) // 2
    observed = int(np.rint(weights @ evidence.scores))
    return min(float(law[middle + observed :].sum()), 1.0)


def _two_points(size: int) -> F64:
    """The law of ±size with equal chances, on −size … size; of 0 if it is 0."""
    law = np.zeros(2 * size + 1)
    law[0] += 0.5
    law[-1] += 0.5
    return law


def _symmetric(values: I64) -> F64:
    """The law of a random entry of ``values`` with a random sign, on −most … most."""
    most = int(np.abs(values).max())
    counts = np.bincount(values + most, minlength=2 * most + 1)
    return np.asarray((counts + counts[::-1]) / (2.0 * len(values)))


def _convolved(laws: list[F64]) -> F64:
    """The law of a sum of independent numbers; terms are positive, so small tails keep their precision."""
    if len(laws) <= 1:
        return laws[0] if laws else np.ones(1)
    middle = len(laws) // 2
    return np.convolve(_convolved(laws[:middle]), _convolved(laws[middle:]))
