"""Keyed signs, and the exact distribution over keys of their sum for a fixed text (ATW, SIR, X-SIR).

A network turns a context into K signs t ∈ {−1, 1}^K. The key gives each token x a place π(x) among them, a
sign σ(x), and for openings another sign τ(x); all are uniform and independent. A token after context t scores
σ(x) t[π(x)], and in an opening τ(x). So scores have mean 0, different tokens are independent, and the same
token after two contexts has covariance ⟨t, t'⟩/K. The sum over a text is Σ_x Y_x with independent

    Y_x = σ(x) h_x[π(x)] + τ(x) n_x,    h_x = Σ of t over its positions,    n_x = its count in the opening.

The distribution of Y_x is the histogram of the K entries of h_x, made symmetric, convolved with ±n_x: nothing
is approximated. Convolving all tokens' distributions gives the distribution of the sum.

The networks have the layers input, first and second (residual) and output, with weights (inputs, outputs).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dewmark.arrays import F32, F64, I8, I64
from dewmark.errors import ArtifactError
from dewmark.stats.evidence import Evidence
from dewmark_lab.schemes.independent_sums import convolved
from dewmark_lab.schemes.pair_hash import PairHash

LAYERS = ("input", "first", "second", "output")
LAYER_ARRAYS = tuple(f"{name}.{part}" for name in LAYERS for part in "Wb")
Layers = tuple[tuple[NDArray[Any], NDArray[Any]], ...]


def read_layers(arrays: Mapping[str, NDArray[Any]], dtype: DTypeLike) -> Layers:
    """The weights and biases of a network by their names in an artifact or a stored detector."""
    try:
        return tuple(
            (np.asarray(arrays[f"{name}.W"], dtype), np.asarray(arrays[f"{name}.b"], dtype))
            for name in LAYERS
        )
    except KeyError as missing:
        raise ArtifactError(f"the network lacks {missing}: train or export it again") from None


def apply_layers(layers: Layers, x: NDArray[Any], *, rectified: bool) -> NDArray[Any]:
    """T of rows (N, inputs), (N, K); the input layer may be rectified as the residual ones are."""
    (W, b), *residual, (V, c) = layers
    h = x @ W + b
    if rectified:
        h = np.maximum(h, 0.0)
    for W, b in residual:
        h = h + np.maximum(h @ W + b, 0.0)
    return np.asarray(h @ V + c)


def keyed_places(pair_hash: PairHash, size: int, outputs: int) -> I64:
    """A keyed place among ``outputs`` for each of ``size`` labels, (size,)."""
    words = pair_hash.table("places", size).astype(np.uint64)
    return ((words * np.uint64(outputs)) >> np.uint64(32)).astype(np.int64)


def keyed_signs(pair_hash: PairHash, purpose: str, size: int) -> I8:
    """A keyed sign for each of ``size`` labels, (size,), each −1 or 1."""
    return np.where(pair_hash.table(purpose, size) >> np.uint32(31), 1, -1).astype(np.int8)


def context_rows(signs: I8) -> F32:
    """Signs (N, K), with a row of zeros for an opening, to unit rows (N, K + 1) whose products are ⟨t, t'⟩/K.

    The opening is a context of its own: it has the last coordinate to itself.
    """
    rows = np.empty((len(signs), signs.shape[1] + 1), dtype=np.float32)
    rows[:, :-1] = signs / np.sqrt(np.float32(signs.shape[1]))
    rows[:, -1] = ~signs.any(axis=1)
    return rows


def exact_tail(evidence: Evidence) -> float:
    """P(Σ ≥ observed) over keys, for evidence with tokens as T, `context_rows` as C and integer weights."""
    weights = np.rint(evidence.weights).astype(np.int64)
    _, token, occurrences = np.unique(evidence.T, return_inverse=True, return_counts=True)
    alone = occurrences[token] == 1  # one context: the distribution is two points, ±weight
    pmfs = [_two_points(int(weight)) for weight in weights[alone]]
    K = evidence.C.shape[1] - 1
    order = np.argsort(token, kind="stable")
    ends = np.cumsum(occurrences)
    for end, count in zip(ends[occurrences > 1], occurrences[occurrences > 1], strict=True):
        members = order[end - count : end]
        signs = np.rint(evidence.C[members, :K] * np.sqrt(K)).astype(np.int64)
        opening = int(weights[members] @ np.rint(evidence.C[members, K]).astype(np.int64))
        pmfs.append(np.convolve(_symmetric(weights[members] @ signs), _two_points(opening)))
    pmf = convolved(pmfs)
    middle = len(pmf) // 2
    observed = int(np.rint(weights @ evidence.scores))
    return min(float(pmf[middle + observed :].sum()), 1.0)


def _two_points(size: int) -> F64:
    """The distribution of ±size with equal chances, on −size … size; a single point if size is 0."""
    pmf = np.zeros(2 * size + 1)
    pmf[0] += 0.5
    pmf[-1] += 0.5
    return pmf


def _symmetric(values: I64) -> F64:
    """The distribution of a random entry of ``values`` with a random sign, on −most … most."""
    most = int(np.abs(values).max())
    counts = np.bincount(values + most, minlength=2 * most + 1)
    return np.asarray((counts + counts[::-1]) / (2.0 * len(values)))
