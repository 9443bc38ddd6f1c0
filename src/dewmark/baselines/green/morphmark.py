"""MorphMark (Wang et al. 2025): moves probability from red to green, the more the likelier green already is.

With P_G the green mass of a row and P_R the red one, r P_R of probability moves from red to green, spread in
proportion to what tokens had:

    r = 0 if P_G < p0, else   k P_G (linear),   e^(k P_G) − 1 (exponential),   ln(k P_G + 1) (logarithmic),

at most 1. Every row has its own P_G. The masses are those of the distribution that is sampled from, so the
scheme sees it after temperature, top-k and top-p. Detection counts green tokens as KGW does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from dewmark.baselines.green.lists import GreenBound
from dewmark.baselines.token_schemes import TokenScheme, check
from dewmark.scheme import Needs, Session
from dewmark.workspace import HostInfo, Workspace

if TYPE_CHECKING:
    import torch

__all__ = ["MorphMark"]

# the authors' k for each form
_STRENGTHS = {"linear": 1.55, "exponential": 1.3, "logarithmic": 2.15}


@dataclass(frozen=True)
class MorphMark(TokenScheme):
    """Green lists with a strength that adapts to the green mass."""

    name: ClassVar[str] = "morphmark"
    summary: ClassVar[str] = "green lists whose strength grows with the mass that is green already"
    needs: ClassVar[Needs] = Needs(final=True)

    gamma: float = 0.5
    """Share γ of the vocabulary that is green."""
    form: Literal["linear", "exponential", "logarithmic"] = "exponential"
    """How r grows with the green mass."""
    k: float | None = None
    """How fast; by default 1.55 (linear), 1.3 (exponential) or 2.15 (logarithmic)."""
    p0: float = 0.15
    """Green mass below which nothing is moved."""
    prefix: int = 1
    """Context width h: how many ids before a token decide its green list."""

    def validate(self) -> None:
        """Refuse values out of range."""
        check(
            (0.0 < self.gamma < 1.0, "gamma", "lie in (0, 1)", self.gamma),
            (self.strength > 0.0, "k", "be positive", self.k),
            (0.0 <= self.p0 < 1.0, "p0", "lie in [0, 1)", self.p0),
            (self.prefix >= 1, "prefix", "be at least 1", self.prefix),
        )

    @property
    def strength(self) -> float:
        """The k that is used."""
        return _STRENGTHS[self.form] if self.k is None else self.k

    def share(self, P_G: torch.Tensor) -> torch.Tensor:
        """r, the share of the red mass that moves, for green masses (batch, 1)."""
        grown = self.strength * P_G
        if self.form == "exponential":
            grown = grown.expm1()
        elif self.form == "logarithmic":
            grown = grown.log1p()
        return grown.masked_fill(P_G < self.p0, 0.0)  # noqa: SIM300 - P_G is no constant

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundMorphMark:
        """MorphMark with a secret and a vocabulary."""
        return BoundMorphMark(self, host, fingerprint, secret=secret, gamma=self.gamma, width=self.prefix)


class BoundMorphMark(GreenBound):
    """MorphMark for one key and one vocabulary."""

    scheme: MorphMark

    def marker(self) -> Callable[[torch.Tensor, torch.Tensor | None], Session]:
        """What makes sessions."""
        from dewmark.baselines.green.lists import MorphSession

        return functools.partial(MorphSession, self)
