"""UnbiasedWM (Hu et al. 2024): γ-reweighting, detected by a likelihood ratio that the host supplies.

Marking doubles the upper half of a keyed order of the vocabulary (`dipmark`): Q = f P with E_key[f] = 1 for
every token.

The test ``llr`` runs the host once over the text. If a share d of the tokens was replaced, the text follows

    Q_d = (1 − d) Q + d P,    and a token x has the log-likelihood ratio    S_d(x) = log(d + (1 − d) f(x)).

This is the paper's maximin score: of all distributions within total variation d/2 of Q, Q_d is the hardest to
tell from P, up to the slot at the cut. A text's S_d is the sum over the first occurrences of its
contexts, for each d on a grid. For a fixed text and a random key, E[e^S_d] = 1, because the factors of
different contexts are independent with mean 1. So the mean M of e^S_d over the grid has mean 1, and p = 1/M
is valid by Markov's inequality; it is at most (grid points)·e^(−max S_d). This assumes nothing about the host
or the origin of the text: a wrong prompt or temperature costs power, never validity. The bound is loose (far
fewer than 1% of unmarked texts have p < 0.01), and 1 for most unmarked texts; z ranks those too, by M itself.

The test ``order`` needs no host. A token's keyed number u places it in the order, and the number of u ≥ 1/2
is Binomial(N, 1/2) on unmarked text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from scipy.special import logsumexp, ndtri_exp

from dewmark.arrays import F64, I64
from dewmark.decoding import Decoding
from dewmark.mark import Session
from dewmark.sampling import warp
from dewmark.scheme import Needs
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import Texts, Workspace
from dewmark_lab.schemes.distortion_free import DistortionFreeBound, Repeats
from dewmark_lab.schemes.host_reading import open_model
from dewmark_lab.schemes.independent_sums import binomial_test
from dewmark_lab.schemes.reweight.dipmark import DipSession, dip_factors, slot_masses, slots_of
from dewmark_lab.schemes.token_schemes import PromptBatch, TokenPairs, TokenScheme

_ALPHA = 0.5  # γ-reweighting as DiP
_ROWS_AT_ONCE = 32


@dataclass(frozen=True)
class RatioEvidence(Evidence):
    """Scores S_d at the best d of the grid, and ``log_mean``, the logarithm of the mean of e^S_d over it."""

    log_mean: float = 0.0


class BoundUnbiased(DistortionFreeBound):
    """UnbiasedWM for one key and one vocabulary."""

    tests = ("llr", "order")
    scheme: Unbiased
    variance = 0.25

    def prepare(self, workspace: Workspace) -> None:
        self.width, self.repeats = self.scheme.prefix, self.scheme.repeats
        self._open_model = open_model(workspace, None, scheme=self.scheme.name, instead="use test='order'")

    def start_session(self, prompts: PromptBatch) -> Session:
        return DipSession(prompts, self, alpha=_ALPHA)

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """The scores ±1/2 that ``order`` sums, (N,)."""
        return (self.pair_hash.uniforms(contexts, tokens) >= 0.5).astype(np.float64) - 0.5

    def evidence_of(self, texts: Texts, prompts: Texts, test: str | None) -> list[Evidence]:
        """For ``llr`` the host's likelihood ratios, for ``order`` the tokens' places in the order."""
        return self._ratios(texts, prompts) if test == "llr" else super().evidence_of(texts, prompts, test)

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """``llr``: Markov's bound on the mean ratio; ``order``: the exact distribution of the sum."""
        if test == "order":
            return binomial_test(evidence, share=0.5)
        if len(evidence) == 0 or not isinstance(evidence, RatioEvidence):
            return NOTHING
        p_value = math.exp(min(-evidence.log_mean, 0.0))
        return Statistic(ratio_z(evidence.log_mean), p_value, float(len(evidence)))

    def _ratios(self, texts: Texts, prompts: Texts) -> list[Evidence]:
        host = self._open_model()
        logits = host.next_logits([prompt.text for prompt in prompts], [text.ids for text in texts])
        shares = np.arange(self.scheme.grid) / self.scheme.grid
        found: list[Evidence] = []
        for text, prompt, rows in zip(texts, prompts, logits, strict=True):
            pairs = self.pairs_of(text, prompt, self.first_contexts(text, prompt))
            factors = self.pair_factors(pairs, rows)
            with np.errstate(divide="ignore"):  # at d = 0 a single factor of 0 rules Q out
                scores = np.log(shares[:, None] + (1.0 - shares[:, None]) * factors)
            sums = scores.sum(axis=1)
            best = Evidence.independent(scores[sums.argmax()], pairs.weights, pairs.positions)
            log_mean = float(logsumexp(sums)) - float(np.log(len(shares)))
            found.append(RatioEvidence(**vars(best), log_mean=log_mean))
        return found

    def pair_factors(self, pairs: TokenPairs, logits: torch.Tensor) -> F64:
        """f of each pair (N,), from the host's logits (L, vocab) at every position of the text."""
        scheme, device = self.scheme, logits.device
        decoding = Decoding(temperature=scheme.temperature, top_k=scheme.top_k, top_p=scheme.top_p)
        forbidden = torch.from_numpy(~self.host.markable).to(device)
        places = torch.from_numpy(pairs.places).to(device)
        factors = np.zeros(len(pairs))
        for start in range(0, len(pairs), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            scores = warp(logits[places[part]].masked_fill(forbidden, -float("inf")), decoding)
            contexts = torch.from_numpy(pairs.contexts[part]).to(device)
            slots = slots_of(self.vocabulary_hash.words(contexts))
            masses = slot_masses(scores.softmax(dim=1), slots)
            tokens = torch.from_numpy(pairs.tokens[part]).to(device).unsqueeze(1)
            chosen = dip_factors(masses, _ALPHA).gather(1, slots.gather(1, tokens))
            factors[part] = chosen.squeeze(1).cpu().numpy()
        return factors


@dataclass(frozen=True)
class Unbiased(TokenScheme):
    """Unbiased reweighting."""

    name: ClassVar[str] = "unbiased"
    summary: ClassVar[str] = "unbiased reweighting, scored by the host's own likelihood ratio"
    needs: ClassVar[Needs] = Needs(final_distribution=True, host_at_detection=True)
    bound = BoundUnbiased

    prefix: Annotated[int, "at least 1"] = 3
    """Context width: the number of preceding tokens that key the choice."""
    repeats: Repeats = "skip"
    """Whether a context seen before in the text is left to the host (skip) or marked again (keep)."""
    grid: Annotated[int, "at least 1"] = 10
    """Number of shares of replaced tokens, 0 to 1 − 1/grid, that the likelihood ratio is averaged over."""
    temperature: Annotated[float, "positive"] = 1.0
    """Temperature that the likelihood ratio assumes the text was generated with."""
    top_k: Annotated[int, "at least 0"] = 0
    """Top-k that the likelihood ratio assumes; 0 means none."""
    top_p: Annotated[float, "in (0, 1]"] = 1.0
    """Top-p that the likelihood ratio assumes; 1 means none."""


def ratio_z(log_mean: float) -> float:
    """A strictly increasing function of log M: the z of p = 1/M up to p = 1/2, from there a straight line.

    Tables rank texts by z. Where M < 1 the p-value is 1, but a smaller M is still less evidence.
    """
    beyond = log_mean - math.log(2.0)
    if beyond <= 0.0:
        return beyond * math.sqrt(math.pi / 2.0)  # the slope of z at p = 1/2
    return -float(ndtri_exp(-log_mean))
