"""SWEET: KGW that skips positions where the host is certain (Lee et al. 2023, Who Wrote This Code?).

Green logits are raised, and tokens counted, only where the entropy of the host's next-token distribution
exceeds a threshold. Low-entropy text (code, quotations) keeps its quality, and positions that could carry no
mark do not dilute the test. Detection runs the host over the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from dewmark.config import check_rules
from dewmark.sampling import Session
from dewmark.workspace import HostInfo, Workspace
from dewmark_lab.schemes.green.green_list import EntropyBound, EntropyScheme, GreenListSession, as_numbers
from dewmark_lab.schemes.host_reading import entropy
from dewmark_lab.schemes.token_schemes import PromptBatch
from dewmark_lab.schemes.vocabulary_hash import VocabularyHash


@dataclass(frozen=True)
class SWEET(EntropyScheme):
    """The entropy-gated green list."""

    name: ClassVar[str] = "sweet"
    summary: ClassVar[str] = "green lists only where the model is unsure, in marking and in detection"

    threshold: float = 0.9
    """Entropy, in nats, above which a position is marked and counted."""

    def validate(self) -> None:
        """Check that all values are in range."""
        super().validate()
        check_rules((self.threshold >= 0.0, "threshold", "not be negative", self.threshold))

    def bind_secret(
        self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace
    ) -> BoundSWEET:
        """Bind SWEET to a secret and a vocabulary."""
        return BoundSWEET(self, host, fingerprint, secret=secret, workspace=workspace)


class BoundSWEET(EntropyBound):
    """SWEET for one key and one vocabulary."""

    scheme: SWEET

    def start_session(self, prompts: PromptBatch) -> Session:
        """Start marking a batch of prompts."""
        scheme = self.scheme
        return GatedSession(
            prompts, self.vocabulary_hash, self.limit, delta=scheme.delta, threshold=scheme.threshold
        )

    def weigh(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits (n, vocab) to 1 where the entropy exceeds the threshold, else 0: (n,)."""
        return (entropy(logits) > self.scheme.threshold).float()


class GatedSession(GreenListSession):
    """Leaves rows alone whose entropy does not exceed the threshold."""

    def __init__(
        self,
        prompts: PromptBatch,
        vocabulary_hash: VocabularyHash,
        limit: np.uint32,
        *,
        delta: float,
        threshold: float,
    ) -> None:
        super().__init__(prompts, vocabulary_hash, limit, delta=delta)
        self._threshold = threshold

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with δ added to those of green tokens, in rows of high entropy."""
        unsure = as_numbers(entropy(scores) > self._threshold, scores)
        return scores.addcmul(as_numbers(self.green(windows), scores), unsure[:, None], value=self._delta)
