"""X-SIR: SIR whose biases survive translation (He et al. 2024, "Can watermarks survive translation?").

As in SIR the meaning of the text so far becomes signs, with an encoder that knows many languages. But words
that translate each other share one place and sign: the vocabulary is cut into clusters of translations (from
a bilingual lexicon, or from nearest neighbours where there is none), and the key treats a cluster as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import I64
from dewmark.artifacts import Artifact
from dewmark.baselines.learned.sir import InvariantScheme
from dewmark.errors import ArtifactError
from dewmark.scheme import Needs
from dewmark.workspace import HostInfo

__all__ = ["XSIR"]


@dataclass(frozen=True)
class XSIR(InvariantScheme):
    """The cross-lingual semantic invariant watermark."""

    name: ClassVar[str] = "xsir"
    summary: ClassVar[str] = "SIR with one bias for each cluster of words that translate each other"
    needs: ClassVar[Needs] = Needs(encoder=True, artifact=True)

    def require(self, artifact: Artifact, host: HostInfo) -> None:
        """Clusters are clusters of one tokenizer's ids."""
        artifact.require_tokenizer(host)

    def labels(self, arrays: dict[str, NDArray[Any]], host: HostInfo) -> I64:
        """An id's label is its cluster."""
        if "labels" not in arrays:
            raise ArtifactError("the artifact of xsir holds no clusters: train it again")
        return np.asarray(arrays["labels"], dtype=np.int64)
