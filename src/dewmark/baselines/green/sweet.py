"""SWEET: KGW that leaves places alone where the host is sure (Lee et al. 2023, "Who wrote this code?").

Only where the entropy of the host's next-token distribution exceeds a threshold are green logits raised, and
only there are tokens counted: low-entropy text (code, quotations) keeps its quality, and places that could
carry no mark do not dilute the test. Detection runs the host over the text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dewmark.baselines.green.entropy import EntropyBound, GreenEntropyScheme
from dewmark.baselines.token_schemes import check
from dewmark.scheme import Session
from dewmark.workspace import HostInfo, Workspace

if TYPE_CHECKING:
    import torch

__all__ = ["SWEET"]


@dataclass(frozen=True)
class SWEET(GreenEntropyScheme):
    """The entropy-gated green list."""

    name: ClassVar[str] = "sweet"
    summary: ClassVar[str] = "green lists only where the model is unsure, in marking and in detection"

    threshold: float = 0.9
    """Entropy, in nats, above which a place is marked and counted."""

    def validate(self) -> None:
        """Refuse values out of range."""
        super().validate()
        check((self.threshold >= 0.0, "threshold", "not be negative", self.threshold))

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundSWEET:
        """SWEET with a secret and a vocabulary."""
        return BoundSWEET(
            self,
            host,
            fingerprint,
            secret=secret,
            gamma=self.gamma,
            width=self.prefix,
            workspace=workspace,
        )


class BoundSWEET(EntropyBound):
    """SWEET for one key and one vocabulary."""

    scheme: SWEET

    def weigh(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits (n, vocab) to 1 where the entropy exceeds the threshold, else 0, (n,)."""
        from dewmark.baselines.green.lists import entropy

        return (entropy(logits) > self.scheme.threshold).float()

    def marker(self) -> Callable[[torch.Tensor, torch.Tensor | None], Session]:
        """What makes sessions."""
        from dewmark.baselines.green.lists import GatedSession

        return functools.partial(GatedSession, self, delta=self.scheme.delta, threshold=self.scheme.threshold)
