"""SynthID-Text (Dathathri et al. 2024): tournament sampling with 30 keyed bits per token and context.

After a context every token has ``depth`` keyed bits g_1 … g_depth. The next token is the winner of a
knock-out tournament: candidates are drawn from the host's final distribution, and in layer l those with g_l =
1 beat those with g_l = 0, ties being broken at random.

- ``leaves`` is the number of candidates in a match. With two, a token's probability averaged over keys is the
  host's (the non-distortionary variant, the default). With three or more the mark is stronger, and likely
  tokens become likelier (the distortionary variant).
- A context that occurred within the last ``history`` steps of the same text is left to the host's own
  sampling, so that not only each step but the whole text follows the host's distribution.
- The first contexts reach back into the prompt. (The original starts from an empty context and may skip the
  first tokens; here a detector without the prompt skips the tokens whose context it cannot know.)

The tournament is played in closed form (`engines.transformers_synthid.tournament`).

On unmarked text the bits of distinct pairs are fair coins over keys, whatever the text. Tests: ``mean`` (the
number of ones is binomial, exactly) and ``weighted`` (earlier layers count more, with weights 10 to 1; normal
with the exact variance, and conservative, since the sum has lighter tails than the normal distribution).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F64, I64
from dewmark.mark import Session
from dewmark.scheme import Needs
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import Texts, Workspace
from dewmark_lab.schemes.distortion_free import DistortionFreeBound, ReweightingSession
from dewmark_lab.schemes.engines.transformers_synthid import tournament
from dewmark_lab.schemes.independent_sums import binomial_test, z_test
from dewmark_lab.schemes.token_schemes import PromptBatch, TokenScheme

_MAX_LAYERS = 32  # the bits of a keyed word


class BoundSynthID(DistortionFreeBound):
    """SynthID for one key and one vocabulary. A pair scores the (weighted) mean of g − 1/2 over layers."""

    tests: ClassVar[tuple[str, ...]] = ("mean", "weighted")
    scheme: SynthID

    def prepare(self, workspace: Workspace) -> None:
        self.width, self.memory = self.scheme.prefix, self.scheme.history
        self.variance = 0.25 / self.scheme.depth

    def start_session(self, prompts: PromptBatch) -> Session:
        return TournamentSession(prompts, self)

    def bits(self, contexts: I64, tokens: I64) -> NDArray[np.uint8]:
        """g of pairs, contexts (N, h) and tokens (N,): (N, depth)."""
        layers = np.arange(self.scheme.depth, dtype=np.uint32)
        return ((self.pair_hash.words(contexts, tokens)[:, None] >> layers) & np.uint32(1)).astype(np.uint8)

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """The mean over layers of g − 1/2, (N,)."""
        mean: F64 = self.bits(contexts, tokens).mean(axis=1)
        return mean - 0.5

    def evidence_of(self, texts: Texts, prompts: Texts, test: str | None) -> list[Evidence]:
        """The pairs, scored with the test's own weights of the layers."""
        if test != "weighted":
            return super().evidence_of(texts, prompts, test)
        weights = np.linspace(10.0, 1.0, self.scheme.depth)
        weights /= weights.sum()
        variance = 0.25 * float(weights @ weights)
        return [
            Evidence.independent(
                (self.bits(pairs.contexts, pairs.tokens) - 0.5) @ weights,
                pairs.weights,
                pairs.positions,
                variance=variance,
            )
            for pairs in self.pairs(texts, prompts)
        ]

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """``mean``: the exact distribution of the number of ones; ``weighted``: normal."""
        if test == "weighted":
            return z_test(evidence)
        return binomial_test(evidence, share=0.5, trials=self.scheme.depth)


@dataclass(frozen=True)
class SynthID(TokenScheme):
    """Tournament sampling."""

    name: ClassVar[str] = "synthid"
    summary: ClassVar[str] = "tournament sampling over keyed bits (SynthID-Text)"
    needs: ClassVar[Needs] = Needs(final_distribution=True)
    bound = BoundSynthID

    depth: Annotated[int, f"in [1, {_MAX_LAYERS}]"] = 30
    """Number of layers in the tournament."""
    leaves: Annotated[int, "at least 2"] = 2
    """Number of candidates in a match: 2 keeps the host's distribution, more distort it."""
    prefix: Annotated[int, "at least 1"] = 4
    """Context width: the number of preceding tokens that key the choice."""
    history: Annotated[int, "at least 1"] = 1024
    """Number of steps for which a context counts as seen; seen contexts are not marked again."""


class TournamentSession(ReweightingSession):
    """Plays the tournament in every row whose context is new."""

    def __init__(self, prompts: PromptBatch, bound: BoundSynthID) -> None:
        super().__init__(prompts, bound)
        self._depth, self._leaves = bound.scheme.depth, bound.scheme.leaves

    def reweight(
        self, contexts: torch.Tensor, logits: torch.Tensor, candidates: torch.Tensor | None
    ) -> torch.Tensor:
        """Log-probabilities (batch, m) after the tournament."""
        words = self._hash.words(contexts, candidates)
        return tournament(logits.softmax(dim=1), words, depth=self._depth, leaves=self._leaves).log_()
