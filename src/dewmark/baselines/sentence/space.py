"""Sentences as vectors: a frozen encoder and a small trained map on top of it.

    v = (M_C(sentence) − μ) A,    rows normalised

μ is the mean of ordinary sentences: around it they lie on all sides, so hyperplanes through the origin cut
them into bins of like size, which they do not where all sentences share a component. A (d, r) comes from
training (`dewmark.lab.training.semstamp`): it draws a sentence and its paraphrases together and others apart.
Both are public; what is secret is what a key makes of the vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F32
from dewmark.artifacts import Artifact
from dewmark.encoders import load_encoder
from dewmark.encoders.base import Encoder
from dewmark.errors import ArtifactError, VocabularyError
from dewmark.scheme import State
from dewmark.workspace import Workspace

__all__ = ["SentenceSpace", "adapt", "encode"]


_CHARACTERS = 1000  # of a sentence that the encoder reads: one without an end must not take for ever
_AT_ONCE = 512


def encode(encoder: Encoder, sentences: Sequence[str]) -> F32:
    """The encoder's vectors (N, d), a limited number at a time."""
    cut = [sentence[:_CHARACTERS] for sentence in sentences]
    parts = [encoder.encode(cut[i : i + _AT_ONCE]) for i in range(0, len(cut), _AT_ONCE)]
    return np.concatenate(parts) if parts else np.zeros((0, encoder.dim), dtype=np.float32)


def adapt(vectors: F32, mean: F32, matrix: F32) -> F32:
    """Encoder vectors (N, d) to unit rows (N, r)."""
    rows = (vectors - mean) @ matrix
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), dtype=np.float32)


@dataclass(frozen=True)
class SentenceSpace:
    """An encoder with its map: ``mean`` (d,), ``matrix`` (d, r), and ``centroids`` (k, r); k may be 0.

    ``identity`` is the artifact's that they come from.
    """

    encoder: Encoder
    mean: F32
    matrix: F32
    centroids: F32
    identity: str

    @classmethod
    def of(cls, artifact: Artifact, workspace: Workspace) -> SentenceSpace:
        """The space that was trained."""
        encoder = load_encoder(artifact.encoder, progress=workspace.progress)
        artifact.require_encoder(encoder.identity, name=encoder.name)
        try:
            return cls._joined(encoder, artifact.arrays, artifact.identity)
        except KeyError as missing:
            raise ArtifactError(f"the artifact {artifact.path} lacks {missing}: train it again") from None

    @classmethod
    def restored(cls, state: State, workspace: Workspace) -> SentenceSpace:
        """The space of a stored detector."""
        try:
            encoder = load_encoder(state.meta["encoder"], progress=workspace.progress)
            if encoder.identity != state.meta["encoder_identity"]:
                raise VocabularyError(
                    f"the detector was made with encoder {state.meta['encoder_identity']}, "
                    f"{encoder.identity} is here; export the detector again"
                )
            return cls._joined(encoder, state.arrays, str(state.meta["artifact"]))
        except KeyError as missing:
            raise ArtifactError(f"the stored detector lacks {missing}; export it again") from None

    @classmethod
    def _joined(cls, encoder: Encoder, arrays: Mapping[str, NDArray[Any]], identity: str) -> SentenceSpace:
        matrix = arrays["matrix"]
        centroids = arrays.get("centroids", matrix[:0])
        mean, matrix, centroids = (
            np.asarray(array, dtype=np.float32) for array in (arrays["mean"], matrix, centroids)
        )
        return cls(encoder, mean, matrix, centroids, identity)

    @property
    def dim(self) -> int:
        """r, the width of the vectors."""
        return int(self.matrix.shape[1])

    def vectors(self, sentences: Sequence[str]) -> F32:
        """Sentences to unit rows (N, r)."""
        return adapt(encode(self.encoder, sentences), self.mean, self.matrix)

    def stored(self) -> tuple[dict[str, str], dict[str, F32]]:
        """Metadata and arrays from which `restored` makes the same space."""
        meta = {
            "encoder": self.encoder.name,
            "encoder_identity": self.encoder.identity,
            "artifact": self.identity,
        }
        return meta, {"mean": self.mean, "matrix": self.matrix, "centroids": self.centroids}
