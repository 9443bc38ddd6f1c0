"""The key test of a passage: it is flattened by itself, as a whole text is.

A scan of a text's windows (`dewmark.stats.scan`) sums the scores of words, from which nothing is cut. What
unrelated texts have in common grows with the length of a window as it does with that of a text, and would
make false alarms on passages come in blocks. So a window that a scan picks out must stand this test too, and
the larger p-value counts. The passage's own matrix says what is cut, never the words around it: these may be
marked, and would tell the test something about the key.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np

from dewmark.arrays import F32, F64
from dewmark.dew.matrix import (
    cut_sizes,
    leading_directions,
    most_directions,
    statistic,
    testable,
    z_scores,
)
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic, effective_length, key_test


@dataclass(frozen=True)
class KeyedEvidence(Evidence):
    """Evidence with the matrix W (d_T, d_C) under which its scores are."""

    W: F32 | None = field(default=None, repr=False)

    @classmethod
    def of(cls, evidence: Evidence, W: F32) -> KeyedEvidence:
        """The same evidence with its matrix."""
        return cls(**{each.name: getattr(evidence, each.name) for each in dataclasses.fields(Evidence)}, W=W)


def passage_test(evidence: Evidence, *, limit: float | None) -> Statistic:
    """The key test of some words of a text, flattened to ``limit`` unless it is None."""
    if limit is None or not isinstance(evidence, KeyedEvidence) or evidence.W is None or not evidence.pairs:
        return key_test(evidence)
    F, whole = flattened(evidence, limit=limit)
    square = float(np.sum(np.square(F)))
    energy = float(np.sum(np.square(evidence.weights[: evidence.pairs]) * evidence.sizes))
    if not testable(square, whole, energy):  # it has a length, but nothing to test
        return dataclasses.replace(NOTHING, effective_length=effective_length(evidence, whole))
    z = float(z_scores(F[None], np.array([square]), evidence.W[None])[0, 0])
    return statistic(z, square, effective_length(evidence, square))


def flattened(evidence: Evidence, *, limit: float) -> tuple[F64, float]:
    """f(M) (d_T, d_C) of the words of an evidence, and ‖M‖²."""
    n = evidence.pairs
    weights = evidence.weights[:n]
    T, C = (np.asarray(rows[:n], dtype=np.float64) for rows in (evidence.T, evidence.C))
    M, d, length = (T * weights[:, None]).T @ C, min(T.shape[1], C.shape[1]), float(weights.sum())
    whole = float(np.sum(np.square(M)))
    values, left, right = (
        each[0] for each in leading_directions(M[None].astype(np.float32), most_directions(n, length, d=d))
    )
    sizes = cut_sizes(values, whole, length, d=d, limit=limit)
    return M - (left[:, : len(sizes)] * sizes) @ right[:, : len(sizes)].T, whole
