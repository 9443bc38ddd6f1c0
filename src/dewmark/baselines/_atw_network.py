"""ATW's semantic part: what was written so far becomes a vector, and a trained network turns that into signs.

The vector of a prefix is the mean of its tokens' vectors (the encoder applied to each token once ever,
whitened with statistics that the artifact carries), of unit length: no encoder runs while a text is written
or read. The network

    h ← relu(x W + b),    h ← h + relu(h W₁ + b₁),    h ← h + relu(h W₂ + b₂),    T = h V + c

has d_C inputs, 512 hidden units and K = 384 outputs; only their signs are used.

Boundary: numpy only, so marking and scoring get the same signs on every device; no key enters.
`dewmark.training.atw` trains the same network.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F16, F32, I8
from dewmark.artifacts import Artifact
from dewmark.core.whitening import Whitening, normalize_rows
from dewmark.embeddings import encoders
from dewmark.embeddings.contexts import token_vectors
from dewmark.errors import ArtifactError, VocabularyError
from dewmark.workspace import HostInfo, Workspace

__all__ = ["HIDDEN", "LAYERS", "OUTPUTS", "SemanticMap", "open_map", "prefix_vectors"]


HIDDEN, OUTPUTS = 512, 384
LAYERS = ("input", "first", "second", "output")
_ROWS = 4096


@dataclass(frozen=True, eq=False)
class SemanticMap:
    """``table`` (vocab, d_C) holds the tokens' vectors, ``layers`` the network's weights and biases."""

    table: F16
    layers: tuple[tuple[F32, F32], ...]
    artifact: str

    @classmethod
    def of(cls, table: F16, arrays: Mapping[str, NDArray[Any]], artifact: str, host: HostInfo) -> SemanticMap:
        """From arrays by name, as an artifact or a stored detector holds them."""
        try:
            layers = tuple(
                (np.asarray(arrays[f"{name}.W"], np.float32), np.asarray(arrays[f"{name}.b"], np.float32))
                for name in LAYERS
            )
        except KeyError as missing:
            raise ArtifactError(f"the semantic network lacks {missing}: train or export it again") from None
        if len(table) != host.vocab_size:
            raise VocabularyError(
                f"the semantic table has {len(table)} tokens, the vocabulary {host.vocab_size}"
            )
        return cls(table, layers, artifact)

    @property
    def outputs(self) -> int:
        """K."""
        return len(self.layers[-1][1])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What `of` takes."""
        named = zip(LAYERS, self.layers, strict=True)
        return {
            f"{name}.{part}": array for name, pair in named for part, array in zip("Wb", pair, strict=True)
        }

    def signs(self, prefixes: F32) -> I8:
        """Unit vectors of prefixes (N, d_C) to the signs of T, (N, K), each −1 or 1."""
        found = np.empty((len(prefixes), self.outputs), dtype=np.int8)
        for i in range(0, len(prefixes), _ROWS):
            (W, b), *residual, (V, c) = self.layers
            h = np.maximum(prefixes[i : i + _ROWS] * math.sqrt(prefixes.shape[1]) @ W + b, 0.0)
            for W, b in residual:
                h = h + np.maximum(h @ W + b, 0.0)
            found[i : i + _ROWS] = np.where(h @ V + c > 0.0, 1, -1)
        return found


def prefix_vectors(table: F16, ids: Sequence[int], cuts: Sequence[int]) -> F32:
    """Unit vectors (len(cuts), d_C) of the first c ids of a text, for each c of ``cuts``, which ascend."""
    known = np.array([i if i < len(table) else -1 for i in ids], dtype=np.int64)
    total = np.zeros(table.shape[1], dtype=np.float64)
    found = np.empty((len(cuts), table.shape[1]), dtype=np.float64)
    start = 0
    for row, cut in enumerate(cuts):
        chunk = known[start:cut]
        total += table[chunk[chunk >= 0]].astype(np.float64).sum(axis=0)
        found[row] = total
        start = cut
    return normalize_rows(found)


_OPEN: weakref.WeakValueDictionary[tuple[object, ...], SemanticMap] = weakref.WeakValueDictionary()


def open_map(artifact: Artifact, host: HostInfo, workspace: Workspace) -> SemanticMap:
    """The map of an artifact for a host's vocabulary; keys that are bound at the same time share it."""
    name = (artifact.identity, host.tokenizer.identity, host.vocab_size, str(workspace.cache))
    found = _OPEN.get(name)
    if found is None:
        encoder = encoders.load_encoder(artifact.encoder, progress=workspace.progress)
        artifact.require_encoder(encoder.identity, name=encoder.name)
        try:
            mean, matrix = (np.asarray(artifact.arrays[part], np.float32) for part in ("mean", "matrix"))
        except KeyError as missing:
            raise ArtifactError(f"the artifact {artifact.path} lacks {missing}: train it again") from None
        table = token_vectors(encoder, host, whitening=Whitening(mean, matrix), workspace=workspace)
        found = _OPEN[name] = SemanticMap.of(table, artifact.arrays, artifact.identity, host)
    return found
