"""The keyed race of EXP: argmax u^(1/p) is the token of largest p/E with E = −ln u.

On a CPU the logarithms and exponentials of a whole vocabulary would cost more than the hash. Nearly always
far fewer tokens decide: the likely (p ≥ p_max·e⁻⁸) and the lucky (u ≥ 1 − 2⁻⁸). Any other token has p/E below
p_max·e⁻⁸·2⁸, so if the best of those looked at lies above this, it is the winner; if not, all are looked at.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.baselines.keyed_words import to_uniforms
from dewmark.baselines.reweight.slots import ReweightSession
from dewmark.core import prf
from dewmark.sampling import race

__all__ = ["RaceSession", "keyed_race"]

_LIKELY = 8.0
_LUCKY = np.uint32((1 << 32) - (1 << 24))
_BOUND = math.exp(-_LIKELY) * 2**8  # a little above e⁻⁸ / −ln(1 − 2⁻⁸)


class RaceSession(ReweightSession):
    """Chooses the token itself: one finite logit per row."""

    def reweight(
        self, contexts: torch.Tensor, logits: torch.Tensor, candidates: torch.Tensor | None
    ) -> torch.Tensor:
        """The winner's logit 0, all others -inf."""
        chosen, sound = keyed_race(logits, self._hash.words(contexts, candidates))
        only = torch.full_like(logits, -float("inf")).scatter_(1, chosen.unsqueeze(1), 0.0)
        # a row that leaves nothing to choose goes back as it came: the host says so
        return only if bool(sound.all()) else torch.where(sound.unsqueeze(1), only, logits)


def keyed_race(scores: torch.Tensor, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The winners (batch,) of logits and int32 words, both (batch, m), and whether each row was sound."""
    if scores.device.type != "cpu":
        return race(scores, to_uniforms(words).log_().neg_())
    rows = [_race_row(*row) for row in zip(scores.numpy(), words.numpy().view(np.uint32), strict=True)]
    winners, sound = zip(*rows, strict=True)
    return torch.tensor(winners), torch.tensor(sound)


def _race_row(scores: NDArray[np.float32], words: NDArray[np.uint32]) -> tuple[int, bool]:
    top = float(scores.max())
    if not math.isfinite(top):
        return 0, False
    taken = np.flatnonzero((scores >= top - _LIKELY) | (words >= _LUCKY))
    values = _values(scores[taken], words[taken], top)
    at = int(values.argmax())
    if values[at] > _BOUND:
        return int(taken[at]), True
    return int(_values(scores, words, top).argmax()), True


def _values(scores: NDArray[np.float32], words: NDArray[np.uint32], top: float) -> NDArray[np.float64]:
    """p/E up to a factor common to the row."""
    values: NDArray[np.float64] = np.exp(scores.astype(np.float64) - top) / -np.log(prf.to_uniforms(words))
    return values
