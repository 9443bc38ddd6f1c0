"""SIR: a semantic invariant robust watermark (Liu et al. 2024).

The text so far, up to its last whole chunk of ten words, is embedded; a small trained network turns the
embedding into signs, alike for texts that mean alike and independent for others; and each token's logit goes
up or down by δ, after the sign at the place that the key gave the token. A paraphrase keeps the meaning of
what comes before, so it keeps the signs, and words that it keeps still tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import I64
from dewmark.baselines._sir import InvariantScheme
from dewmark.scheme import Needs
from dewmark.workspace import HostInfo

__all__ = ["SIR"]


@dataclass(frozen=True)
class SIR(InvariantScheme):
    """The semantic invariant watermark."""

    name: ClassVar[str] = "sir"
    summary: ClassVar[str] = "a trained network turns the meaning of the text so far into token biases"
    needs: ClassVar[Needs] = Needs(encoder=True, artifact=True)

    def labels(self, arrays: dict[str, NDArray[Any]], host: HostInfo) -> I64:
        """Every id has a label of its own."""
        return np.arange(host.vocab_size)
