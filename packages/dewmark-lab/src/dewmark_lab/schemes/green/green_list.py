"""Green lists: a keyed share γ of the vocabulary for each context, and tests that count green tokens.

A token is green after a context if the pair's keyed word is below γ·2³², so a pair costs one hash and no list
is ever built. Fix the text and let the key be random: the number of green pairs among N distinct ones follows
Binomial(N, γ) exactly.

`EntropyScheme` and `EntropyBound` add detection that weights each token by the host's distribution at its
position (SWEET, EWD).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from dewmark.arrays import F64, I64
from dewmark.config import check_rules
from dewmark.scheme import Needs
from dewmark.stats.evidence import Evidence
from dewmark.stats.independent_sums import binomial_test, z_test
from dewmark.stats.key_test import Statistic
from dewmark.workspace import HostInfo, Workspace
from dewmark_lab.schemes.host_reading import HostReadings, HostReadingScheme, WeightedBound, open_model
from dewmark_lab.schemes.token_schemes import PromptBatch, TokenBound, TokenScheme, TokenSession
from dewmark_lab.schemes.vocabulary_hash import VocabularyHash


class GreenBound(TokenBound):
    """A green-list scheme, bound. A pair scores 1 − γ if it is green, else −γ."""

    tests = ("binomial", "z")

    def __init__(
        self,
        scheme: TokenScheme,
        host: HostInfo,
        fingerprint: str,
        *,
        secret: bytes,
        gamma: float,
        width: int,
    ) -> None:
        super().__init__(scheme, host, fingerprint, secret=secret)
        self.gamma = gamma
        self.width = width
        self.variance = gamma * (1.0 - gamma)
        self.limit = np.uint32(min(max(round(gamma * 2**32), 1), 2**32 - 1))

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """1 − γ for green pairs, −γ for the others, (N,)."""
        green = self.pair_hash.words(contexts, tokens) < self.limit
        return green.astype(np.float64) - self.gamma

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``binomial``: the exact distribution of the green pairs' number; ``z``: its normal limit."""
        return binomial_test(evidence, share=self.gamma) if test == "binomial" else z_test(evidence)


class GreenSession(TokenSession):
    """Knows which tokens are green after each row's window."""

    def __init__(self, prompts: PromptBatch, vocabulary_hash: VocabularyHash, limit: np.uint32) -> None:
        super().__init__(prompts)
        self._hash = vocabulary_hash
        self._limit = limit

    def green(self, windows: torch.Tensor) -> torch.Tensor:
        """The green tokens after each window (batch, h): (batch, vocab) bool. Special tokens never are."""
        return self.listed(windows).logical_and_(self._markable)

    def listed(self, windows: torch.Tensor) -> torch.Tensor:
        """The tokens on each window's green list, special or not: (batch, vocab) bool."""
        return self._hash.below(windows, self._limit)


class GreenListSession(GreenSession):
    """Adds δ to the logits of green tokens."""

    def __init__(
        self, prompts: PromptBatch, vocabulary_hash: VocabularyHash, limit: np.uint32, *, delta: float
    ) -> None:
        super().__init__(prompts, vocabulary_hash, limit)
        self._delta = delta

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with δ added to those of green tokens."""
        return scores.add(as_numbers(self.green(windows), scores), alpha=self._delta)


@dataclass(frozen=True)
class EntropyScheme(HostReadingScheme):
    """A green list whose detection also looks at the host's distribution at each position."""

    needs: ClassVar[Needs] = Needs(host_at_detection=True)

    gamma: float = 0.5
    """Share γ of the vocabulary that is green."""
    delta: float = 2.0
    """Bias δ added to green logits."""
    prefix: int = 1
    """Context width h: the number of preceding ids that decide the green list."""

    def validate(self) -> None:
        """Check that all values are in range."""
        check_rules(
            (0.0 < self.gamma < 1.0, "gamma", "lie in (0, 1)", self.gamma),
            (self.delta > 0.0, "delta", "be positive", self.delta),
            (self.prefix >= 1, "prefix", "be at least 1", self.prefix),
        )


class EntropyBound(WeightedBound, GreenBound):
    """Such a scheme, bound."""

    def __init__(
        self, scheme: EntropyScheme, host: HostInfo, fingerprint: str, *, secret: bytes, workspace: Workspace
    ) -> None:
        super().__init__(scheme, host, fingerprint, secret=secret, gamma=scheme.gamma, width=scheme.prefix)
        self.readings = HostReadings(open_model(workspace, None, scheme=scheme.name))


def as_numbers(chosen: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Booleans to 0 and 1 in another tensor's type; going through bytes is several times faster."""
    return chosen.view(torch.uint8).to(like.dtype)
