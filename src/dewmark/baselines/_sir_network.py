"""SIR's transform: the meaning of a context becomes K signs, one for each part of the vocabulary.

With e the centred unit embedding of the context, the network

    h = e W + b,    h ← h + relu(h W₁ + b₁),    h ← h + relu(h W₂ + b₂),    T = h V + c

has d_C inputs, 500 hidden units and K = 300 outputs; the signs are those of T − mean(T). (The original takes
tanh(1000 (T − mean)), which is the sign of all but one output in thousands: training keeps them off zero.)

Boundary: numpy in float64 on the CPU, so marking and scoring get the same signs; no key enters.
`dewmark.training.sir` trains the same network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F64, I8
from dewmark.embeddings.encoders import Encoder
from dewmark.errors import ArtifactError

__all__ = ["HIDDEN", "LAYERS", "OUTPUTS", "Transform", "open_transform"]


HIDDEN, OUTPUTS = 500, 300
LAYERS = ("input", "first", "second", "output")
_REMEMBERED = 50_000  # contexts: 15 MB
_KEPT_OPEN = 4


class Transform:
    """An encoder and a trained network. It remembers the signs of contexts, under a hash of their text."""

    def __init__(self, encoder: Encoder, arrays: Mapping[str, NDArray[Any]]) -> None:
        try:
            named = ("mean", *(f"{name}.{part}" for name in LAYERS for part in "Wb"))
            self.arrays = {name: arrays[name] for name in named}
        except KeyError as missing:
            raise ArtifactError(f"the transform network lacks {missing}: train or export it again") from None
        self.encoder = encoder
        self._layers = [
            tuple(np.asarray(self.arrays[f"{name}.{part}"], dtype=np.float64) for part in "Wb")
            for name in LAYERS
        ]
        self._known: dict[bytes, I8] = {}

    @property
    def outputs(self) -> int:
        """K."""
        return len(self._layers[-1][1])

    def signs(self, contexts: Sequence[str]) -> I8:
        """Contexts (N) to signs (N, K), each −1 or 1; those that are new are encoded at once."""
        names = [hashlib.blake2b(context.encode(), digest_size=16).digest() for context in contexts]
        new = {
            name: context for name, context in zip(names, contexts, strict=True) if name not in self._known
        }
        found = {name: self._known[name] for name in names if name not in new}
        if new:
            rows = self.of_vectors(np.asarray(self.encoder.encode(list(new.values())), dtype=np.float64))
            found.update(zip(new, rows, strict=True))
            if len(self._known) + len(new) > _REMEMBERED:
                self._known = {}
            self._known.update((name, found[name]) for name in new)
        return np.stack([found[name] for name in names]) if names else np.zeros((0, self.outputs), np.int8)

    def of_vectors(self, vectors: F64) -> I8:
        """Embeddings (N, d_C), of any length but 0, to signs (N, K)."""
        (W, b), *residual, (V, c) = self._layers
        h = _unit(_unit(vectors) - self.arrays["mean"].astype(np.float64)) @ W + b
        for W, b in residual:
            h = h + np.maximum(h @ W + b, 0.0)
        T = h @ V + c
        above = T - T.mean(axis=1, keepdims=True) >= 0.0
        return np.where(above, 1, -1).astype(np.int8)


def _unit(rows: F64) -> F64:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


_OPEN: dict[tuple[str, str], Transform] = {}


def open_transform(encoder: Encoder, identity: str, arrays: Mapping[str, NDArray[Any]]) -> Transform:
    """The transform of the artifact with this identity; all keys of a process share it and what it knows."""
    name = (encoder.identity, identity)
    if name not in _OPEN:
        while len(_OPEN) >= _KEPT_OPEN:
            del _OPEN[next(iter(_OPEN))]
        _OPEN[name] = Transform(encoder, arrays)
    return _OPEN[name]
