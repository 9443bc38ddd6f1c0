"""EWD (Lu et al. 2024): KGW's marking, and a test that weights tokens by the host's spike entropy.

The weight is the spike entropy of the host's distribution p, less its minimum 1 / (1 + z),

    W = Σ_i p_i / (1 + z p_i) − 1 / (1 + z),    z = (1 − γ)(e^δ − 1) / (1 + γ(e^δ − 1)),

and the statistic is the sum of W over green tokens. Given the weights, its distribution over keys is computed
exactly for up to `EXACT_LIMIT` pairs: weights are rounded to `LEVELS` integers (the test may choose any
weights, so rounding costs no validity), and the distribution of Σ n_j B_j with B_j ~ Bernoulli(γ) is built by
convolution. Beyond that, the normal approximation is used, as the paper does for every length (``z``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from dewmark.sampling import Session
from dewmark.stats.evidence import Evidence
from dewmark.stats.independent_sums import weighted_bernoulli_pmf, z_test
from dewmark.stats.key_test import Statistic
from dewmark.workspace import HostInfo, Workspace
from dewmark_lab.schemes.green.green_list import EntropyBound, EntropyScheme, GreenListSession
from dewmark_lab.schemes.token_schemes import PromptBatch

LEVELS = 64
EXACT_LIMIT = 1024


@dataclass(frozen=True)
class EWD(EntropyScheme):
    """The green list with entropy-weighted detection."""

    name: ClassVar[str] = "ewd"
    summary: ClassVar[str] = "KGW whose test weighs tokens by the model's spike entropy"

    @property
    def modulus(self) -> float:
        """z of the spike entropy."""
        alpha = math.expm1(self.delta)
        return (1.0 - self.gamma) * alpha / (1.0 + self.gamma * alpha)

    def bind_secret(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundEWD:
        """Bind EWD to a secret and a vocabulary."""
        return BoundEWD(self, host, fingerprint, secret=secret, workspace=workspace)


class BoundEWD(EntropyBound):
    """EWD for one key and one vocabulary."""

    tests = ("exact", "z")
    scheme: EWD

    def start_session(self, prompts: PromptBatch) -> Session:
        """Start marking a batch of prompts."""
        return GreenListSession(prompts, self.vocabulary_hash, self.limit, delta=self.scheme.delta)

    def weigh(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits (n, vocab) to W as a share of its upper bound 1 − 1 / (1 + z), (n,)."""
        p, z = logits.softmax(dim=-1), self.scheme.modulus
        least = 1.0 / (1.0 + z)
        return (((p / (1.0 + z * p)).sum(dim=-1) - least) / (1.0 - least)).clamp_(min=0.0)

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``exact``: the distribution of the weighted sum; ``z``: its normal approximation."""
        normal = z_test(evidence)
        if test == "z" or not 0 < len(evidence) <= EXACT_LIMIT:
            return normal
        levels = np.rint(evidence.weights * (LEVELS / evidence.weights.max())).astype(np.int64)
        pmf = weighted_bernoulli_pmf(levels, np.full(len(levels), self.gamma))
        observed = int(levels[evidence.scores > 0.0].sum())
        return Statistic(normal.z, min(float(pmf[observed:].sum()), 1.0), normal.effective_length)
