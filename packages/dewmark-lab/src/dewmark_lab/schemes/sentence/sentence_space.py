"""Sentences as vectors: a frozen encoder followed by a small trained map.

    v = (M_C(sentence) − μ) A,    rows normalized

μ is the mean of ordinary sentences. Around it sentences lie on all sides, so hyperplanes through the origin
divide them into bins of similar size, which fails where all sentences share a component. A (d, r) comes from
training (`dewmark_lab.training.semstamp`), which pulls a sentence and its paraphrases together and pushes
others apart. Both are public; only what a key does with the vectors is secret.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F32
from dewmark.encoders.base import Encoder
from dewmark.errors import ArtifactError
from dewmark.scheme import State
from dewmark.workspace import Workspace
from dewmark_lab.artifacts import Artifact, named_encoder, stored_encoder

_CHARACTERS = 1000  # of a sentence that the encoder reads, so that an endless one does not take forever
_AT_ONCE = 512


def cut(sentence: str) -> str:
    """What the encoder reads of a sentence."""
    return sentence[:_CHARACTERS]


def encode(encoder: Encoder, sentences: Sequence[str]) -> F32:
    """The encoder's vectors (N, d), computed in batches."""
    read = [cut(sentence) for sentence in sentences]
    parts = [encoder.encode(read[i : i + _AT_ONCE]) for i in range(0, len(read), _AT_ONCE)]
    return np.concatenate(parts) if parts else np.zeros((0, encoder.dim), dtype=np.float32)


def adapt(vectors: F32, mean: F32, matrix: F32) -> F32:
    """Encoder vectors (N, d) to unit rows (N, r)."""
    rows = (vectors - mean) @ matrix
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), dtype=np.float32)


@dataclass(frozen=True)
class SentenceSpace:
    """An encoder with its map: ``mean`` (d,), ``matrix`` (d, r), and ``centroids`` (k, r), where k may be 0.

    ``identity`` is that of the artifact they come from. ``known``, if given, keeps the vectors of sentences.
    """

    encoder: Encoder
    mean: F32
    matrix: F32
    centroids: F32
    identity: str
    known: dict[str, F32] | None = None

    @classmethod
    def of(cls, artifact: Artifact, workspace: Workspace) -> SentenceSpace:
        """The space of a trained artifact."""
        encoder = artifact.open_encoder(workspace)
        try:
            return cls._joined(encoder, artifact.arrays, artifact.identity)
        except KeyError as missing:
            raise ArtifactError(f"the artifact {artifact.path} lacks {missing}: train it again") from None

    @classmethod
    def restored(cls, state: State, workspace: Workspace) -> SentenceSpace:
        """The space of a stored detector."""
        encoder = stored_encoder(state, workspace)
        return cls._joined(encoder, state.arrays, str(state.meta["artifact"]))

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
        """r, the dimension of the vectors."""
        return int(self.matrix.shape[1])

    def remembering(self) -> SentenceSpace:
        """The same space, which embeds each sentence only once."""
        return dataclasses.replace(self, known={})

    def vectors(self, sentences: Sequence[str]) -> F32:
        """Sentences to unit rows (N, r)."""
        known = {} if self.known is None else self.known
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in known]
        if new:
            known.update(zip(new, adapt(encode(self.encoder, new), self.mean, self.matrix), strict=True))
        rows = [known[sentence] for sentence in sentences]
        return np.stack(rows) if rows else np.zeros((0, self.dim), dtype=np.float32)

    def stored(self) -> tuple[dict[str, str], dict[str, F32]]:
        """Metadata and arrays from which `restored` rebuilds the space."""
        meta = {**named_encoder(self.encoder), "artifact": self.identity}
        return meta, {"mean": self.mean, "matrix": self.matrix, "centroids": self.centroids}
