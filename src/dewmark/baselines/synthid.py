"""SynthID-Text (Dathathri et al.): tournament sampling with 30 keyed bits per token and context.

After a context every token has ``depth`` keyed bits g_1 … g_depth. The next token is the winner of a
knock-out tournament: candidates are drawn from the host's final distribution, and in layer l those with
g_l = 1 beat those with g_l = 0, ties being drawn. No tournament is held: `_tournament` computes the
winner's distribution in closed form.

- ``leaves`` is the number of candidates in a match. With two, a token's chance averaged over keys is the
  host's: this is the non-distortionary variant, the default. With three or more the mark is stronger and
  the chance grows for likely tokens: this is the distortionary variant.
- A context that occurred within the last ``history`` steps of the same text is left to the host's own
  sampling, so that not only one step but the whole text keeps the host's distribution.
- The first contexts reach back into the prompt. (The original starts from an empty context and may skip the
  first tokens; here a detector that is not told the prompt leaves out the tokens whose context it cannot
  know.)

On unmarked text the bits of distinct pairs are fair coins over keys, whatever the text. Tests: ``mean`` (the
number of ones is binomial, exactly), ``weighted`` (first layers count more, weights 10 to 1; normal with
the exact variance: the sum is symmetric, with lighter tails than the normal's), and, once fitted with
`fit_bayesian`, ``bayesian`` (`_bayesian`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F64, I64
from dewmark.baselines._bayesian import Bayesian, fit
from dewmark.baselines._reweight import ReweightBound
from dewmark.baselines._tests import binomial_test, check, z_test
from dewmark.baselines._tokens import TokenScheme, stored_secret
from dewmark.evidence import Evidence
from dewmark.scheme import Needs, Session, State
from dewmark.stats.key_test import Statistic
from dewmark.workspace import HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

__all__ = ["BoundSynthID", "SynthID", "fit_bayesian"]

_MOST_LAYERS = 32  # the bits of a keyed word


@dataclass(frozen=True)
class SynthID(TokenScheme):
    """Tournament sampling."""

    name: ClassVar[str] = "synthid"
    summary: ClassVar[str] = "tournament sampling over keyed bits (SynthID-Text)"
    needs: ClassVar[Needs] = Needs(final=True)

    depth: int = 30
    """How many layers the tournament has."""
    leaves: int = 2
    """How many candidates meet in a match: 2 keeps the host's distribution, more distort it."""
    prefix: int = 3
    """Context width: how many tokens before the one that is chosen."""
    history: int = 1024
    """For how many steps a context counts as seen; seen contexts are not marked again."""
    bayesian: str | None = None
    """A folder with a fitted Bayesian detector, which adds the test ``bayesian``."""

    def validate(self) -> None:
        """Refuse values out of range."""
        check(
            (1 <= self.depth <= _MOST_LAYERS, "depth", f"lie in 1 … {_MOST_LAYERS}", self.depth),
            (self.leaves >= 2, "leaves", "be at least 2", self.leaves),
            (self.prefix >= 1, "prefix", "be at least 1", self.prefix),
            (self.history >= 1, "history", "be at least 1", self.history),
        )

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundSynthID:
        """The scheme with its secret and a host's vocabulary, and the fitted detector if there is one."""
        fitted = None
        if self.bayesian is not None:
            fitted = Bayesian.load(Path(self.bayesian), depth=self.depth, leaves=self.leaves)
        return self._with(fitted, secret, host, fingerprint)

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundSynthID:
        """Take secret and fitted detector from a stored one."""
        fitted = None
        if self.bayesian is not None:
            fitted = Bayesian.from_arrays(state.arrays, depth=self.depth, leaves=self.leaves)
        return self._with(fitted, stored_secret(state), host, fingerprint)

    def _with(self, fitted: Bayesian | None, secret: bytes, host: HostInfo, fingerprint: str) -> BoundSynthID:
        if fitted is None:
            return BoundSynthID(self, host, fingerprint, secret=secret)
        return BayesianSynthID(self, host, fingerprint, secret=secret, fitted=fitted)


class BoundSynthID(ReweightBound):
    """SynthID for one key and one vocabulary. A pair scores the (weighted) mean of g − 1/2 over layers."""

    tests: ClassVar[tuple[str, ...]] = ("mean", "weighted")
    scheme: SynthID

    def __init__(self, scheme: SynthID, host: HostInfo, fingerprint: str, *, secret: bytes) -> None:
        super().__init__(scheme, host, fingerprint, secret=secret, prefix=scheme.prefix, repeats="skip")
        self.variance = 0.25 / scheme.depth

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts (batch, length)."""
        from dewmark.baselines._tournament import TournamentSession

        return TournamentSession(self, prompt_ids, attention_mask)

    def bits(self, contexts: I64, tokens: I64) -> NDArray[np.uint8]:
        """g of pairs, contexts (N, h) and tokens (N,): (N, depth)."""
        layers = np.arange(self.scheme.depth, dtype=np.uint32)
        return ((self.hash.words(contexts, tokens)[:, None] >> layers) & np.uint32(1)).astype(np.uint8)

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """The mean over layers of g − 1/2, (N,)."""
        mean: F64 = self.bits(contexts, tokens).mean(axis=1)
        return mean - 0.5

    def evidence_for(
        self, test: str, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]
    ) -> list[Evidence]:
        """Pairs scored by the test's own weights of the layers."""
        if test != "weighted":
            return super().evidence_for(test, texts, prompts)
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

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``mean``: the exact law of the number of ones; ``weighted``: normal."""
        if test == "weighted":
            return z_test(evidence)
        return binomial_test(evidence, share=0.5, trials=self.scheme.depth)


class BayesianSynthID(BoundSynthID):
    """SynthID with a fitted detector. Under its test a pair scores its log-likelihood ratio."""

    tests = ("mean", "weighted", "bayesian")

    def __init__(
        self, scheme: SynthID, host: HostInfo, fingerprint: str, *, secret: bytes, fitted: Bayesian
    ) -> None:
        super().__init__(scheme, host, fingerprint, secret=secret)
        self._fitted = fitted

    def evidence_for(
        self, test: str, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]
    ) -> list[Evidence]:
        """Pairs scored as the test wants them."""
        if test != "bayesian":
            return super().evidence_for(test, texts, prompts)
        return [
            Evidence.independent(
                self._fitted.log_ratios(self.bits(pairs.contexts, pairs.tokens)),
                pairs.weights,
                pairs.positions,
                variance=self._fitted.null.variance,
            )
            for pairs in self.pairs(texts, prompts)
        ]

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``bayesian``: the law of the sum of log-likelihood ratios on unmarked text."""
        if test != "bayesian":
            return super().statistic(evidence, test=test)
        return self._fitted.null.test(evidence.total, len(evidence))

    def state(self) -> State:
        """The secret and the fitted detector. As secret as the key."""
        secret = super().state()
        return State(meta=secret.meta, arrays={**secret.arrays, **self._fitted.arrays})


def fit_bayesian(
    bound: BoundSynthID, texts: Sequence[str], *, prompts: Sequence[str | None] | None = None
) -> Bayesian:
    """Fit a Bayesian detector to marked texts; unmarked ones are not needed, their law is known.

    It belongs to a host, a decoding and a ``prefix``, not to a key: fit under one key, detect under any.
    """
    tokenizer = bound.host.tokenizer
    starts = tokenizer.encode([prompt or "" for prompt in prompts or [""] * len(texts)])
    found = bound.pairs(tokenizer.encode(list(texts)), starts)
    # texts that share contexts share bits: every pair is one observation
    rows = np.concatenate([np.column_stack((pairs.contexts, pairs.tokens)) for pairs in found])
    distinct = np.unique(rows, axis=0)
    return fit(bound.bits(distinct[:, :-1], distinct[:, -1]), leaves=bound.scheme.leaves)
