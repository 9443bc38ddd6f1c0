"""SemStamp: sentences are drawn until one falls on the right side of secret hyperplanes.

Hou et al. 2024 (SemStamp: a semantic watermark with paraphrastic robustness). d hyperplanes cut the space of
sentence vectors into 2^d bins (locality-sensitive hashing by signs). After each bin the key accepts a share γ
of them; a sentence is rejected while its bin is not accepted or one of the cosines with the hyperplanes'
normals is within the margin of 0. Here both the normals and the accepted bins come from the key.

Given the hyperplanes the accepted bins are uniform over keys, so the exact law holds for each set of
hyperplanes, and therefore over all keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dewmark.arrays import F32, F64, I64
from dewmark.baselines.sentence.bins import SentenceBound, SentenceScheme
from dewmark.baselines.sentence.space import SentenceSpace
from dewmark.baselines.token_schemes import check
from dewmark.workspace import HostInfo

__all__ = ["SemStamp"]


@dataclass(frozen=True)
class SemStamp(SentenceScheme):
    """Rejection sampling of sentences by locality-sensitive hashing."""

    name: ClassVar[str] = "semstamp"
    summary: ClassVar[str] = "sentences are drawn until secret hyperplanes put one into an accepted bin"

    dimensions: int = 3
    """Number d of hyperplanes; they make 2^d bins."""
    margin: float = 0.01
    """Least cosine, in absolute value, of an accepted sentence with every hyperplane's normal."""

    def validate(self) -> None:
        """Refuse values out of range."""
        super().validate()
        check(
            (1 <= self.dimensions <= 8, "dimensions", "lie between 1 and 8", self.dimensions),
            (0.0 <= self.margin < 1.0, "margin", "lie in [0, 1)", self.margin),
        )

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, space: SentenceSpace) -> BoundSemStamp:
        """SemStamp with a secret and its space of sentences."""
        return BoundSemStamp(self, host, fingerprint, secret=secret, space=space, bins=1 << self.dimensions)


class BoundSemStamp(SentenceBound):
    """SemStamp for one key."""

    scheme: SemStamp

    def __init__(
        self,
        scheme: SemStamp,
        host: HostInfo,
        fingerprint: str,
        *,
        secret: bytes,
        space: SentenceSpace,
        bins: int,
    ) -> None:
        super().__init__(scheme, host, fingerprint, secret=secret, space=space, bins=bins)
        normals = self.stream("hyperplanes").normals(scheme.dimensions, space.dim)
        self._normals = normals / np.linalg.norm(normals, axis=1, keepdims=True)

    def assign(self, vectors: F32) -> tuple[I64, F64]:
        """The signs of the cosines as a number, and the least cosine's size beyond the margin."""
        cosines = vectors.astype(np.float64) @ self._normals.T
        bins = (cosines > 0.0) @ (1 << np.arange(len(self._normals)))
        return bins.astype(np.int64), np.abs(cosines).min(axis=1) - self.scheme.margin
