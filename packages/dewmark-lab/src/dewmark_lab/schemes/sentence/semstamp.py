"""SemStamp and k-SemStamp: sentences are drafted until one falls into a bin that the key accepts.

SemStamp (Hou et al. 2024): the signs of cosines with d secret hyperplanes' normals make 2^d bins, and a
sentence is rejected if a cosine is within the margin of 0. k-SemStamp (Hou et al. 2024): the bins are k
public clusters of ordinary sentences, and a sentence must be closer to its centroid than to the next one by
more than the margin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dewmark.arrays import F32, F64, I64
from dewmark.config import check_rules
from dewmark.errors import ArtifactError
from dewmark_lab.schemes.sentence.rejection_sampling import SentenceBins, SentenceScheme, key_stream
from dewmark_lab.schemes.sentence.sentence_space import SentenceSpace


@dataclass(frozen=True)
class SemStamp(SentenceScheme):
    """Rejection sampling of sentences by locality-sensitive hashing."""

    name: ClassVar[str] = "semstamp"
    summary: ClassVar[str] = "sentences are drawn until secret hyperplanes put one into an accepted bin"

    dimensions: int = 3
    """Number d of hyperplanes; they make 2^d bins."""
    margin: float = 0.01
    """Least absolute cosine of an accepted sentence with every hyperplane's normal."""

    def validate(self) -> None:
        """Check that all values are in range."""
        super().validate()
        check_rules(
            (1 <= self.dimensions <= 8, "dimensions", "lie between 1 and 8", self.dimensions),
            (0.0 <= self.margin < 1.0, "margin", "lie in [0, 1)", self.margin),
        )

    def bins(self, secret: bytes, space: SentenceSpace) -> SentenceBins:
        """The bins between the key's hyperplanes."""
        normals = key_stream(secret, "hyperplanes").normals(self.dimensions, space.dim)
        return HyperplaneBins(normals / np.linalg.norm(normals, axis=1, keepdims=True), self.margin)


@dataclass(frozen=True)
class KSemStamp(SentenceScheme):
    """Rejection sampling of sentences by clusters."""

    name: ClassVar[str] = "ksemstamp"
    summary: ClassVar[str] = "sentences are drawn until one falls into an accepted cluster of meanings"

    margin: float = 0.035
    """Least lead of an accepted sentence's cosine with its own centroid over that with the next one."""

    def validate(self) -> None:
        """Check that all values are in range."""
        super().validate()
        check_rules((0.0 <= self.margin < 2.0, "margin", "lie in [0, 2)", self.margin))

    def bins(self, secret: bytes, space: SentenceSpace) -> SentenceBins:
        """The clusters of the artifact."""
        if len(space.centroids) < 2:
            raise ArtifactError("the artifact has no centroids: train it again with dewmark train ksemstamp")
        return CentroidBins(space.centroids, self.margin)


class HyperplaneBins(SentenceBins):
    """Bins by the signs of cosines with unit normals (d, r)."""

    def __init__(self, normals: F64, margin: float) -> None:
        self.count = 1 << len(normals)
        self._normals = normals
        self._margin = margin

    def assign(self, vectors: F32) -> tuple[I64, F64]:
        """The signs of the cosines as a number, and the least cosine's size less the margin."""
        cosines = vectors.astype(np.float64) @ self._normals.T
        bins = (cosines > 0.0) @ (1 << np.arange(len(self._normals)))
        return bins.astype(np.int64), np.abs(cosines).min(axis=1) - self._margin


class CentroidBins(SentenceBins):
    """Bins by the nearest of the unit centroids (k, r)."""

    def __init__(self, centroids: F32, margin: float) -> None:
        self.count = len(centroids)
        self._centroids = centroids
        self._margin = margin

    def assign(self, vectors: F32) -> tuple[I64, F64]:
        """The nearest centroid, and its lead over the next one less the margin."""
        cosines = vectors.astype(np.float64) @ self._centroids.T.astype(np.float64)
        ordered = np.sort(cosines, axis=1)
        return cosines.argmax(axis=1), ordered[:, -1] - ordered[:, -2] - self._margin
