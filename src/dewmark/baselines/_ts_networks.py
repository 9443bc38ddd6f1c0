"""TS's two networks, which turn a token's input embedding into the γ and δ of the place after it.

    x = (e − ē) / rms(e − ē),    γ = 0.1 + 0.8 sigmoid(g(x)),    δ = softplus(d(x)),
    g, d:  x ↦ relu(x A + a) B + b,    A (d_T, 64), B (64, 1)

ē is the mean of the host's embedding table; centred and scaled, every host's tokens have coordinates of size
1 and one learning rate fits all. Of a place without a token before it (the start of a text, a special token)
x = 0. What a scheme uses is a table: both numbers of every id, made once per host and artifact.

Boundary: numpy only; `dewmark.training.ts` trains the same networks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F32, F64
from dewmark.artifacts import Artifact
from dewmark.errors import ArtifactError
from dewmark.storage import load_bundle, save_bundle
from dewmark.workspace import HostInfo, Workspace

__all__ = ["ARRAYS", "HIDDEN", "LEAST", "Tables", "inputs", "token_tables"]


HIDDEN = 64
ARRAYS = tuple(f"{net}.{part}" for net in ("gamma", "delta") for part in ("A", "a", "B", "b"))
LEAST = 0.1  # γ stays within [0.1, 0.9]; z alone would drive it to 0, where a few lucky tokens decide
_ROWS = 8192


@dataclass(frozen=True)
class Tables:
    """γ and δ after every id, and last after no token, both (vocab + 1,)."""

    gamma: F64
    delta: F64


def inputs(embeddings: F32) -> F32:
    """A host's embedding table (vocab, d_T) to what the networks see, (vocab + 1, d_T); the last row is 0."""
    centred = embeddings - embeddings.mean(axis=0, dtype=np.float64).astype(np.float32)
    scale = np.sqrt(np.mean(centred**2, axis=1, keepdims=True))
    rows = np.divide(centred, scale, out=np.zeros_like(centred), where=scale > 1e-12)
    return np.concatenate((rows, np.zeros((1, rows.shape[1]), dtype=np.float32)))


def token_tables(artifact: Artifact, host: HostInfo, workspace: Workspace) -> Tables:
    """Both networks on every token of a host; cached on the disk."""
    name = f"1|{artifact.identity}|{host.identity}|{host.vocab_size}"
    path = workspace.cache / "ts" / hashlib.sha256(name.encode()).hexdigest()[:20]
    try:
        stored = load_bundle(path).arrays
        return Tables(np.array(stored["gamma"]), np.array(stored["delta"]))
    except (ArtifactError, KeyError):
        tables = _evaluate(artifact.arrays, inputs(host.embeddings()))
        arrays = {"gamma": tables.gamma, "delta": tables.delta}
        save_bundle(path, meta={"artifact": artifact.identity, "host": host.identity}, arrays=arrays)
        return tables


def _evaluate(arrays: Mapping[str, NDArray[Any]], x: F32) -> Tables:
    if set(arrays) != set(ARRAYS) or arrays["gamma.A"].shape[0] != x.shape[1]:
        raise ArtifactError("the artifact of ts does not fit this host's embeddings: train it again")
    logit, raw = (_network(arrays, net, x) for net in ("gamma", "delta"))
    gamma = LEAST + (1.0 - 2.0 * LEAST) / (1.0 + np.exp(-logit))
    return Tables(gamma=gamma, delta=np.logaddexp(0.0, raw))


def _network(arrays: Mapping[str, NDArray[Any]], net: str, x: F32) -> F64:
    A, a, B, b = (arrays[f"{net}.{part}"].astype(np.float32) for part in ("A", "a", "B", "b"))
    blocks = [np.maximum(x[i : i + _ROWS] @ A + a, 0.0) @ B for i in range(0, len(x), _ROWS)]
    return np.concatenate(blocks)[:, 0].astype(np.float64) + float(b[0])
