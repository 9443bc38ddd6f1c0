"""Algorithms 1 and 2 of the paper, literally, for one generation step.

Slow and in float64: it is here to be read, and to test the fast path against (`projection` must give the same
numbers). Names are the paper's. Rows of E_T are token embeddings, already whitened if whitening is used.
"""

from __future__ import annotations

import math

import numpy as np

from dewmark.arrays import F64


def normalize(v: F64) -> F64:
    """v / ‖v‖ along the last axis."""
    return np.asarray(v / np.linalg.norm(v, axis=-1, keepdims=True))


def insert(
    logits: F64, e_C: F64, E_T: F64, *, R_T: F64, R_C: F64, m: int, lambda_: float, gamma: float
) -> F64:
    """Algorithm 1: logits ℓ (|V|,), context e_C (d_C,), tokens E_T (|V|, d_T) to marked logits ℓ′ (|V|,)."""
    n = R_T.shape[1]
    # Projected context embedding
    p_C = normalize(normalize(e_C) @ R_C)
    # Projected token embeddings of the top-m tokens
    top = np.argsort(-logits, kind="stable")[:m]
    P_T = normalize(normalize(E_T[top]) @ R_T)
    # Biases, added to the logits
    b = lambda_ * np.tanh(gamma * math.sqrt(n) * P_T @ p_C)
    marked = logits.copy()
    marked[top] += b
    return marked


def score(e_T: F64, e_C: F64, *, R_T: F64, R_C: F64, lambda_: float, gamma: float) -> float:
    """Algorithm 2: the score of an observed token e_T (d_T,) after the context e_C (d_C,)."""
    n = R_T.shape[1]
    p_C = normalize(normalize(e_C) @ R_C)
    p_T = normalize(normalize(e_T) @ R_T)
    return float(lambda_ * np.tanh(gamma * math.sqrt(n) * p_T @ p_C))
