"""Which draft of a stretch of text to keep: the one whose words fit the key best, for what they cost.

A host that would rather spend compute than words writes the next tokens of a text several times, and keeps
one draft. Large noise alone must not decide: drafts with much to choose from have it by the race. A token of
probability p wins the race at a time τ ~ Exp(1), whatever p is, with the noise x = Φ⁻¹(e^(−pτ)). So a word
counts by how much its x exceeds the mean g(p) over τ:

    R = Σ_i (x_i − g(p_i)),    kept is the draft with the largest R / √(Σ_i h(p_i))

where h(p) is the variance of x over τ. Given a draft's text, R has mean 0 and this variance over keys
(`dewmark.dew.noise` makes the x of a text independent), so each of the drafts is kept equally often: what is
kept is a text as the host writes it. This is exact up to what the drafts of one text share of the key.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from dewmark.room import LEAST, POINTS, race_moments

STRETCH = 24
"""Tokens between two choices."""


class Drawn(NamedTuple):
    """One step of a batch: tokens (B,), whether a row had usable logits, and how the tokens won.

    ``noise`` (B,) is x of the winners and ``log_p`` (B,) their log-probabilities. ``marked`` (B,) says which
    carry the mark, and ``begins`` (B,) which do not extend the open word.
    """

    tokens: torch.Tensor
    sound: torch.Tensor
    noise: torch.Tensor
    log_p: torch.Tensor
    marked: torch.Tensor
    begins: torch.Tensor


class DraftScores:
    """R of the drafts of a batch and its variance, (2, rows); the drafts of one text lie together."""

    def __init__(self, size: int, *, device: torch.device) -> None:
        self._moments = torch.from_numpy(np.stack(race_moments())).to(device)
        self._total = torch.zeros((2, size), dtype=torch.float64, device=device)
        self._open = torch.zeros_like(self._total)  # of the word that is open

    def add(self, drawn: Drawn, live: torch.Tensor) -> None:
        """Count the next tokens of the drafts (rows,) that are ``live``."""
        at = (drawn.log_p.double() / LEAST).clamp(0.0, 1.0) * (POINTS - 1)
        mean, variance = self._moments[:, POINTS - 1 - at.round().long()]
        new = torch.where(drawn.marked, torch.stack((drawn.noise - mean, variance)), 0.0)
        # an extension replaces what the shorter word scored
        self._total += torch.where(live & drawn.begins, self._open, 0.0)
        self._open = torch.where(live, new, self._open)

    def best(self, drafts: int) -> torch.Tensor:
        """The row of the draft to keep of each text, (rows / drafts,); counting begins anew."""
        excess, variance = self._total + self._open
        scores = torch.where(variance > 0.0, excess / variance.clamp_min(1e-9).sqrt(), 0.0)
        places = scores.view(-1, drafts).argmax(dim=1)
        self._total.zero_()
        self._open.zero_()
        return places + torch.arange(len(places), device=places.device) * drafts
