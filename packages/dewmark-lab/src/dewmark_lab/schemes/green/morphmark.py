"""MorphMark (Wang et al. 2025): moves probability from red to green, more where green is already likely.

With P_G the green mass of a row and P_R the red mass, a share r of P_R moves from red to green tokens, spread
in proportion to their probabilities:

    r = 0 if P_G < p0, else   k P_G (linear),   e^(k P_G) − 1 (exponential),   ln(k P_G + 1) (logarithmic),

at most 1. The masses are those of the distribution that is sampled from, so the scheme sees it after
temperature, top-k and top-p. Detection counts green tokens as KGW does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from dewmark.mark import Session
from dewmark.scheme import Needs
from dewmark_lab.schemes.green.green_list import GreenBound, GreenSession, as_numbers
from dewmark_lab.schemes.token_schemes import PromptBatch, TokenScheme

_STRENGTHS = {"linear": 1.55, "exponential": 1.3, "logarithmic": 2.15}  # the authors' k for each form
_MAX_MOVED = 1.0 - 1e-6  # of the red mass; all of it would make red logits infinite


class BoundMorphMark(GreenBound):
    """MorphMark for one key and one vocabulary."""

    scheme: MorphMark

    def start_session(self, prompts: PromptBatch) -> Session:
        return MorphSession(prompts, self)


@dataclass(frozen=True)
class MorphMark(TokenScheme):
    """Green lists with a strength that adapts to the green mass."""

    name: ClassVar[str] = "morphmark"
    summary: ClassVar[str] = "green lists whose strength grows with the mass that is green already"
    needs: ClassVar[Needs] = Needs(final_distribution=True)
    bound = BoundMorphMark

    gamma: Annotated[float, "in (0, 1)"] = 0.5
    """Share γ of the vocabulary that is green."""
    form: Literal["linear", "exponential", "logarithmic"] = "exponential"
    """How r grows with the green mass."""
    k: Annotated[float | None, "positive"] = None
    """How fast r grows; by default 1.55 (linear), 1.3 (exponential) or 2.15 (logarithmic)."""
    p0: Annotated[float, "in [0, 1)"] = 0.15
    """Green mass below which nothing is moved."""
    prefix: Annotated[int, "at least 1"] = 1
    """Context width h: the number of preceding ids that decide the green list."""

    @property
    def strength(self) -> float:
        """The k in use."""
        return _STRENGTHS[self.form] if self.k is None else self.k

    def moved_share(self, P_G: torch.Tensor) -> torch.Tensor:
        """r, the share of the red mass that moves, for green masses (batch, 1)."""
        grown = self.strength * P_G
        if self.form == "exponential":
            grown = grown.expm1()
        elif self.form == "logarithmic":
            grown = grown.log1p()
        return grown.masked_fill(P_G < self.p0, 0.0)  # noqa: SIM300 - P_G is no constant


class MorphSession(GreenSession):
    """Multiplies green probabilities by 1 + r P_R / P_G and red ones by 1 − r."""

    unbiased = False

    def __init__(self, prompts: PromptBatch, bound: BoundMorphMark) -> None:
        super().__init__(prompts, bound)
        self._moved_share = bound.scheme.moved_share
        self._unmarkable = torch.from_numpy(np.flatnonzero(~prompts.host.markable))

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) of the final distribution to those of the morphed one, up to a constant."""
        green = as_numbers(self.green(windows), scores)
        p = scores.float().softmax(dim=-1)
        self._unmarkable = self._unmarkable.to(scores.device)
        P_G = (p * green).sum(dim=-1, keepdim=True)
        P_R = (1.0 - P_G - p[:, self._unmarkable].sum(dim=-1, keepdim=True)).clamp_(min=0.0)
        r = self._moved_share(P_G).clamp_(0.0, _MAX_MOVED)
        up = torch.log1p(r * P_R / P_G.clamp(min=torch.finfo(P_G.dtype).tiny))
        down = torch.log1p(-r)
        # all logits less the constant ``down``: so the red ones, half of the vocabulary, stay as they are
        marked = scores.addcmul(green, (up - down).to(scores.dtype))
        marked[:, self._unmarkable] -= down.to(scores.dtype)
        return marked
