"""EWD (Lu et al. 2024): KGW's marking, and a test that weighs tokens by how much mark their place could take.

The weight is the spike entropy of the host's distribution p there, above its least value 1 / (1 + z),

    W = Σ_i p_i / (1 + z p_i) − 1 / (1 + z),    z = (1 − γ)(e^δ − 1) / (1 + γ(e^δ − 1)),

and Σ W over green tokens is the statistic. Its law over keys, given the weights, is computed exactly for up
to `EXACT_LIMIT` pairs: weights are rounded to `LEVELS` whole numbers (they are the test's own choice, so
rounding costs no validity), and the law of Σ n_j B_j with B_j ~ Bernoulli(γ) is built by convolution. Beyond,
the normal law stands in, as it does in the paper for every length (``z``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dewmark.arrays import F64, I64
from dewmark.baselines.green.entropy import EntropyBound, GreenEntropyScheme
from dewmark.baselines.token_schemes import z_test
from dewmark.scheme import Session
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.workspace import HostInfo, Workspace

if TYPE_CHECKING:
    import torch

__all__ = ["EWD", "weighted_law"]

LEVELS = 64
EXACT_LIMIT = 1024


@dataclass(frozen=True)
class EWD(GreenEntropyScheme):
    """The green list with entropy-weighted detection."""

    name: ClassVar[str] = "ewd"
    summary: ClassVar[str] = "KGW whose test weighs tokens by the model's spike entropy"

    @property
    def modulus(self) -> float:
        """z of the spike entropy."""
        alpha = math.expm1(self.delta)
        return (1.0 - self.gamma) * alpha / (1.0 + self.gamma * alpha)

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundEWD:
        """EWD with a secret and a vocabulary."""
        return BoundEWD(
            self,
            host,
            fingerprint,
            secret=secret,
            gamma=self.gamma,
            width=self.prefix,
            workspace=workspace,
        )


class BoundEWD(EntropyBound):
    """EWD for one key and one vocabulary."""

    tests = ("exact", "z")
    scheme: EWD

    def weigh(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits (n, vocab) to W as a share of its upper bound 1 − 1 / (1 + z), (n,)."""
        p, z = logits.softmax(dim=-1), self.scheme.modulus
        least = 1.0 / (1.0 + z)
        return (((p / (1.0 + z * p)).sum(dim=-1) - least) / (1.0 - least)).clamp_(min=0.0)

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``exact``: the law of the weighted sum; ``z``: its normal approximation."""
        normal = z_test(evidence)
        if test == "z" or not 0 < len(evidence) <= EXACT_LIMIT:
            return normal
        levels = np.rint(evidence.weights * (LEVELS / evidence.weights.max())).astype(np.int64)
        law = weighted_law(levels, self.gamma)
        observed = int(levels[evidence.scores > 0.0].sum())
        return Statistic(normal.z, min(float(law[observed:].sum()), 1.0), normal.effective_length)

    def marker(self) -> Callable[[torch.Tensor, torch.Tensor | None], Session]:
        """What makes sessions."""
        from dewmark.baselines.green.lists import BiasSession

        return functools.partial(BiasSession, self, delta=self.scheme.delta)


def weighted_law(levels: I64, gamma: float) -> F64:
    """The probabilities of Σ n_j B_j = 0, 1, …, Σ n_j: whole n_j (N,), independent B_j ~ Bernoulli(γ)."""
    law = np.zeros(int(levels.sum()) + 1)
    law[0], top = 1.0, 0
    for n in levels.tolist():
        raised = gamma * law[: top + 1]
        law[: top + 1] *= 1.0 - gamma
        law[n : n + top + 1] += raised
        top += n
    return law
