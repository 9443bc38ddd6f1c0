"""Texts made of numbers for tests of scans: correlated contexts, repeated pairs, scores under fresh keys."""

from __future__ import annotations

import dataclasses

import numpy as np

from dewmark.core.whitening import normalize_rows
from dewmark.stats.evidence import Evidence
from dewmark.stats.scan import Scan
from dewmark.stats.score_law import tanh_kernel

GAMMA = 0.5


def text_like(units: int, *, seed: int = 0, d: int = 20) -> Evidence:
    """A text of ``units`` units with what real text has: repeated tokens, contexts that share a component and
    drift, unscored units at the start, and a stretch of 30 units that occurs twice. All scores are 0.
    """
    rng = np.random.default_rng(seed)
    vocabulary = normalize_rows(rng.normal(size=(max(units // 3, 2), d)))
    T = vocabulary[rng.integers(len(vocabulary), size=units)]
    drift = np.cumsum(rng.normal(size=(units, d)), axis=0) / np.sqrt(units)
    C = normalize_rows(rng.normal(size=(units, d)) + 0.3 + drift)
    positions = np.arange(units)
    positions[-40:-10] = positions[20:50]
    positions[:3] = -1
    pairs, inverse, counts = np.unique(positions[3:], return_inverse=True, return_counts=True)
    positions[3:] = inverse
    nothing = np.zeros(len(pairs))
    return Evidence(nothing, nothing, counts.astype(float), positions, T[pairs], C[pairs], tanh_kernel(GAMMA))


def scores_under_keys(evidence: Evidence, keys: int, *, seed: int = 1) -> np.ndarray:
    """tanh(γ t_iᵀ W c_i) for fresh Gaussian W, (keys, N): the alignments have covariance ρ exactly."""
    rng = np.random.default_rng(seed)
    outer = np.einsum("ia,ib->iab", evidence.T, evidence.C).reshape(len(evidence), -1)
    return np.tanh(GAMMA * (rng.normal(size=(keys, outer.shape[1])) @ outer.T))


def under(evidence: Evidence, scores: np.ndarray) -> Evidence:
    """The same text with the scores (N,) of another key."""
    return dataclasses.replace(evidence, scores=scores, alignments=scores)


def with_scores(windows: Scan, z: np.ndarray) -> Scan:
    """The same windows with other z: what a scan draws does not depend on the scores."""
    return dataclasses.replace(windows, z=z)
