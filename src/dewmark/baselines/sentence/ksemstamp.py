"""k-SemStamp: sentences are drawn until one falls into an accepted cluster of meanings.

Hou et al. 2024 (k-SemStamp: a clustering-based semantic watermark). As SemStamp, with k clusters of ordinary
sentences for bins: a sentence belongs to the centroid of the largest cosine, and is rejected unless it is
nearer to it than to the next one by more than the margin. The centroids are public, a part of the artifact;
which clusters are accepted after which comes from the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dewmark.arrays import F32, F64, I64
from dewmark.baselines.sentence.bins import SentenceBound, SentenceScheme
from dewmark.baselines.sentence.space import SentenceSpace
from dewmark.baselines.token_schemes import check
from dewmark.errors import ArtifactError
from dewmark.workspace import HostInfo

__all__ = ["KSemStamp"]


@dataclass(frozen=True)
class KSemStamp(SentenceScheme):
    """Rejection sampling of sentences by clusters."""

    name: ClassVar[str] = "ksemstamp"
    summary: ClassVar[str] = "sentences are drawn until one falls into an accepted cluster of meanings"

    margin: float = 0.035
    """By how much an accepted sentence's cosine with its own centroid exceeds that with the next one."""

    def validate(self) -> None:
        """Refuse values out of range."""
        super().validate()
        check((0.0 <= self.margin < 2.0, "margin", "lie in [0, 2)", self.margin))

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, space: SentenceSpace) -> BoundKSemStamp:
        """k-SemStamp with a secret and its space of sentences."""
        if len(space.centroids) < 2:
            raise ArtifactError("the artifact has no centroids: train it again with dewmark train ksemstamp")
        return BoundKSemStamp(self, host, fingerprint, secret=secret, space=space, bins=len(space.centroids))


class BoundKSemStamp(SentenceBound):
    """k-SemStamp for one key."""

    scheme: KSemStamp

    def assign(self, vectors: F32) -> tuple[I64, F64]:
        """The nearest centroid, and its lead over the next beyond the margin."""
        cosines = vectors.astype(np.float64) @ self.space.centroids.T.astype(np.float64)
        ordered = np.sort(cosines, axis=1)
        return cosines.argmax(axis=1), ordered[:, -1] - ordered[:, -2] - self.scheme.margin
