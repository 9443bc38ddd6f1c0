"""Green lists whose detection weights each token by the host's distribution at its position.

`SWEET` (Lee et al. 2023, Who Wrote This Code?) is KGW that skips positions where the host is certain: green
logits are raised, and tokens counted, only where the entropy of the host's next-token distribution exceeds a
threshold. Low-entropy text (code, quotations) keeps its quality, and positions that carry no mark do not
dilute the test.

`EWD` (Lu et al. 2024) marks as KGW does, and weights tokens by the spike entropy of the host's distribution
p, less its minimum 1 / (1 + z),

    W = Σ_i p_i / (1 + z p_i) − 1 / (1 + z),    z = (1 − γ)(e^δ − 1) / (1 + γ(e^δ − 1)).

The statistic is the sum of W over green tokens. Given the weights, its distribution over keys is computed
exactly for up to `EXACT_LIMIT` pairs: weights are rounded to `LEVELS` integers (the test may choose any
weights, so rounding costs no validity), and the distribution of Σ n_j B_j with B_j ~ Bernoulli(γ) is built by
convolution. Beyond that, the normal approximation is used, as the paper does for every length (``z``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from dewmark.mark import Session
from dewmark.scheme import Needs
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import Workspace
from dewmark_lab.schemes.green.green_list import GreenBound, GreenListSession, as_numbers
from dewmark_lab.schemes.host_reading import (
    HostReadings,
    ReadingScheme,
    WeightedBound,
    entropy,
    open_model,
    weighted_bernoulli_pmf,
)
from dewmark_lab.schemes.independent_sums import z_test
from dewmark_lab.schemes.token_schemes import PromptBatch

LEVELS = 64
EXACT_LIMIT = 1024


@dataclass(frozen=True)
class EntropyScheme(ReadingScheme):
    """The parameters that both schemes share."""

    needs: ClassVar[Needs] = Needs(host_at_detection=True)

    gamma: Annotated[float, "in (0, 1)"] = 0.5
    """Share γ of the vocabulary that is green."""
    delta: Annotated[float, "positive"] = 2.0
    """Bias δ added to green logits."""
    prefix: Annotated[int, "at least 1"] = 1
    """Context width h: the number of preceding ids that decide the green list."""


class EntropyBound(WeightedBound, GreenBound):
    """Such a scheme, bound."""

    scheme: EntropyScheme

    def prepare(self, workspace: Workspace) -> None:
        super().prepare(workspace)
        self.readings = HostReadings(open_model(workspace, None, scheme=self.scheme.name))


class BoundSWEET(EntropyBound):
    """SWEET for one key and one vocabulary."""

    scheme: SWEET

    def start_session(self, prompts: PromptBatch) -> Session:
        return GatedSession(prompts, self)

    def weigh(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits (n, vocab) to 1 where the entropy exceeds the threshold, else 0: (n,)."""
        return (entropy(logits) > self.scheme.threshold).float()


@dataclass(frozen=True)
class SWEET(EntropyScheme):
    """The entropy-gated green list."""

    name: ClassVar[str] = "sweet"
    summary: ClassVar[str] = "green lists only where the model is unsure, in marking and in detection"
    bound = BoundSWEET

    threshold: Annotated[float, "at least 0"] = 0.9
    """Entropy, in nats, above which a position is marked and counted."""


class GatedSession(GreenListSession):
    """Leaves rows alone whose entropy does not exceed the threshold."""

    def __init__(self, prompts: PromptBatch, bound: BoundSWEET) -> None:
        super().__init__(prompts, bound)
        self._threshold = bound.scheme.threshold

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with δ added to those of green tokens, in rows of high entropy."""
        unsure = as_numbers(entropy(scores) > self._threshold, scores)
        return scores.addcmul(as_numbers(self.green(windows), scores), unsure[:, None], value=self._delta)


class BoundEWD(EntropyBound):
    """EWD for one key and one vocabulary."""

    tests = ("exact", "z")
    scheme: EWD

    def weigh(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits (n, vocab) to W as a share of its upper bound 1 − 1 / (1 + z), (n,)."""
        p, z = logits.softmax(dim=-1), self.scheme.modulus
        least = 1.0 / (1.0 + z)
        return (((p / (1.0 + z * p)).sum(dim=-1) - least) / (1.0 - least)).clamp_(min=0.0)

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """``exact``: the distribution of the weighted sum; ``z``: its normal approximation."""
        normal = z_test(evidence)
        if test == "z" or not 0 < len(evidence) <= EXACT_LIMIT:
            return normal
        levels = np.rint(evidence.weights * (LEVELS / evidence.weights.max())).astype(np.int64)
        pmf = weighted_bernoulli_pmf(levels, np.full(len(levels), self.gamma))
        observed = int(levels[evidence.scores > 0.0].sum())
        return Statistic(normal.z, min(float(pmf[observed:].sum()), 1.0), normal.effective_length)


@dataclass(frozen=True)
class EWD(EntropyScheme):
    """The green list with entropy-weighted detection."""

    name: ClassVar[str] = "ewd"
    summary: ClassVar[str] = "KGW whose test weighs tokens by the model's spike entropy"
    bound = BoundEWD

    @property
    def modulus(self) -> float:
        """z of the spike entropy."""
        alpha = math.expm1(self.delta)
        return (1.0 - self.gamma) * alpha / (1.0 + self.gamma * alpha)
