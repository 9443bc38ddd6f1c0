"""Unigram: one keyed green list for all contexts (Zhao et al. 2023, provable robust watermarking).

Nothing but the token decides, so a token counts once per text (the paper's test over unique tokens): its
other occurrences say nothing new about the key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dewmark.baselines.green.lists import GreenBound
from dewmark.baselines.token_schemes import TokenScheme, check
from dewmark.scheme import Session
from dewmark.workspace import HostInfo, Workspace

if TYPE_CHECKING:
    import torch

__all__ = ["Unigram"]


@dataclass(frozen=True)
class Unigram(TokenScheme):
    """One fixed green list."""

    name: ClassVar[str] = "unigram"
    summary: ClassVar[str] = "one keyed green list for all contexts, and a bias towards it"

    gamma: float = 0.5
    """Share γ of the vocabulary that is green."""
    delta: float = 2.0
    """What is added to green logits, δ."""

    def validate(self) -> None:
        """Refuse values out of range."""
        check(
            (0.0 < self.gamma < 1.0, "gamma", "lie in (0, 1)", self.gamma),
            (self.delta > 0.0, "delta", "be positive", self.delta),
        )

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundUnigram:
        """Unigram with a secret and a vocabulary."""
        return BoundUnigram(self, host, fingerprint, secret=secret, gamma=self.gamma, width=0)


class BoundUnigram(GreenBound):
    """Unigram for one key and one vocabulary."""

    scheme: Unigram

    def marker(self) -> Callable[[torch.Tensor, torch.Tensor | None], Session]:
        """What makes sessions."""
        from dewmark.baselines.green.lists import FixedSession

        return functools.partial(FixedSession, self, delta=self.scheme.delta)
