"""UnbiasedWM (Hu et al.): γ- and δ-reweighting, scored by a likelihood ratio that the host itself supplies.

Marking is a reweighting of a keyed order of the vocabulary (`_slots`): γ doubles its upper half, δ leaves one
slot. Either way Q = f P with E_key[f] = 1 for every token.

``llr`` runs the host once over the text. If a share d of the tokens was replaced, the text follows

    Q_d = (1 − d) Q + d P,    and a token x has the log-likelihood ratio    S_d(x) = log(d + (1 − d) f(x)).

For γ this is the maximin score of the paper: of all distributions within total variation d/2 of Q, Q_d is the
hardest to tell from P, up to the slot at the cut. A text's S_d is the sum over the first occurrences of its
contexts, for each d on a grid. Let the key be random and the text be whatever it is: then E[e^S_d] = 1, the
factors of different contexts being independent with mean 1. So the mean M of e^S_d over the grid has mean 1,
and p = 1/M is valid by Markov's inequality; it is at most (grid points)·e^(−max S_d). Nothing in this needs
the host to be the true one, or the text to come from it: a wrong prompt or temperature costs strength, never
validity.

``order`` needs no host. A token's keyed number u places it in the order. For γ the number of u ≥ 1/2 is
Binomial(N, 1/2) on unmarked text. For δ the marked token lies near the context's own keyed number v: with
t = |u − v|, −ln t(2 − t) is exponential on unmarked text and the sum follows the Gamma law.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from scipy.special import logsumexp, ndtri_exp

from dewmark.arrays import F64, I64
from dewmark.baselines.reweight.slots import Repeats, ReweightBound
from dewmark.baselines.token_schemes import Pairs, TokenScheme, binomial_test, check, gamma_test
from dewmark.core.prf import PairHash
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.scheme import Needs, Session
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic
from dewmark.workspace import HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

    from dewmark.baselines.keyed_words import VocabularyHash

__all__ = ["BoundUnbiased", "Unbiased"]

_ROWS_AT_ONCE = 32


@dataclass(frozen=True)
class Unbiased(TokenScheme):
    """Unbiased reweighting."""

    name: ClassVar[str] = "unbiased"
    summary: ClassVar[str] = "unbiased reweighting (γ or δ), scored by the host's own likelihood ratio"
    needs: ClassVar[Needs] = Needs(final=True, host_at_detection=True)

    reweight: Literal["gamma", "delta"] = "gamma"
    """γ doubles the upper half of a keyed order of the vocabulary; δ picks one place of it."""
    prefix: int = 3
    """Context width: how many tokens before the one that is chosen."""
    repeats: Repeats = "skip"
    """Whether a context that occurred in the text before is left to the host (skip) or marked again."""
    grid: int = 10
    """How many shares of replaced tokens, 0 to 1 − 1/grid, the likelihood ratio is averaged over."""
    temperature: float = 1.0
    """The temperature that the likelihood ratio assumes the text was written at."""
    top_k: int = 0
    """The top-k that the likelihood ratio assumes; 0 is none."""
    top_p: float = 1.0
    """The top-p that the likelihood ratio assumes; 1 is none."""

    def validate(self) -> None:
        """Refuse values out of range."""
        check(
            (self.prefix >= 1, "prefix", "be at least 1", self.prefix),
            (self.grid >= 1, "grid", "be at least 1", self.grid),
            (self.temperature > 0.0, "temperature", "be positive", self.temperature),
            (self.top_k >= 0, "top_k", "be at least 0", self.top_k),
            (0.0 < self.top_p <= 1.0, "top_p", "lie in (0, 1]", self.top_p),
        )

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundUnbiased:
        """The scheme with its secret and a host's vocabulary; the host is opened when a text is scored."""
        return BoundUnbiased(self, host, fingerprint, secret=secret, workspace=workspace)


@dataclass(frozen=True)
class RatioEvidence(Evidence):
    """Scores S_d at the best d of the grid, and ``log_mean``, the logarithm of the mean of e^S_d over it."""

    log_mean: float = 0.0


class BoundUnbiased(ReweightBound):
    """UnbiasedWM for one key and one vocabulary."""

    tests = ("llr", "order")
    scheme: Unbiased

    def __init__(
        self, scheme: Unbiased, host: HostInfo, fingerprint: str, *, secret: bytes, workspace: Workspace
    ) -> None:
        super().__init__(
            scheme, host, fingerprint, secret=secret, prefix=scheme.prefix, repeats=scheme.repeats
        )
        self._workspace = workspace
        self._is_gamma = scheme.reweight == "gamma"
        self.variance = 0.25 if self._is_gamma else 1.0

    @functools.cached_property
    def cut_hash(self) -> PairHash:
        """The keyed number of a context alone: the word of its pair with the one token 0."""
        return PairHash(hashlib.blake2b(key=self._secret, person=b"cuts", digest_size=32).digest(), 1)

    @functools.cached_property
    def cuts(self) -> VocabularyHash:
        """The same on any device."""
        from dewmark.baselines.keyed_words import VocabularyHash

        return VocabularyHash(self.cut_hash)

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts (batch, length)."""
        from dewmark.baselines.reweight.slots import SlotSession

        return SlotSession(self, prompt_ids, attention_mask, factors=self.slot_factors)

    def slot_factors(self, masses: torch.Tensor, contexts: torch.Tensor) -> torch.Tensor:
        """The factors of slots, (batch, SLOTS), from their masses (batch, SLOTS) and contexts (batch, h)."""
        from dewmark.baselines.reweight.slots import delta_factors, dip_factors

        if self._is_gamma:
            return dip_factors(masses, 0.5)
        return delta_factors(masses, self.cuts.uniforms(contexts))

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """What ``order`` sums, (N,): ±1/2 for γ, −ln t(2 − t) − 1 for δ."""
        u = self.hash.uniforms(contexts, tokens)
        if self._is_gamma:
            return (u >= 0.5).astype(np.float64) - 0.5
        t = np.abs(u - self.cut_hash.uniforms(contexts, np.zeros(len(tokens), dtype=np.int64)))
        # both lie on a grid of 2⁻³² and may be equal
        return -np.log(np.maximum(t, 2.0**-34) * (2.0 - t)) - 1.0

    def evidence_for(
        self, test: str, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]
    ) -> list[Evidence]:
        """For ``llr`` the host's ratios, for ``order`` the tokens' places."""
        return self._ratios(texts, prompts) if test == "llr" else self.evidence(texts, prompts)

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``llr``: Markov's bound on the mean ratio; ``order``: the exact law of the sum."""
        if test == "order":
            return binomial_test(evidence, share=0.5) if self._is_gamma else gamma_test(evidence)
        if len(evidence) == 0 or not isinstance(evidence, RatioEvidence):
            return NOTHING
        log_p = min(-evidence.log_mean, 0.0)
        z = -float(ndtri_exp(log_p)) if log_p < 0.0 else 0.0
        return Statistic(z, float(np.exp(log_p)), float(len(evidence)))

    def _ratios(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> list[Evidence]:
        if self._workspace.open_host is None:
            raise ConfigError(
                "the likelihood ratio runs the host, which cannot be opened here: bind through "
                "dewmark.load_scheme, or use test='order'"
            )
        host = self._workspace.open_host(None)
        logits = host.next_logits([prompt.text for prompt in prompts], [text.ids for text in texts])
        shares = np.arange(self.scheme.grid) / self.scheme.grid
        found: list[Evidence] = []
        for text, prompt, rows in zip(texts, prompts, logits, strict=True):
            pairs = self._pairs(text, prompt, self.first_contexts(text, prompt))
            factors = self._factors(pairs, rows)
            with np.errstate(divide="ignore"):  # with d = 0 one factor of 0 rules Q out
                scores = np.log(shares[:, None] + (1.0 - shares[:, None]) * factors)
            sums = scores.sum(axis=1)
            best = Evidence.independent(scores[sums.argmax()], pairs.weights, pairs.positions)
            log_mean = float(logsumexp(sums)) - float(np.log(len(shares)))
            found.append(RatioEvidence(**vars(best), log_mean=log_mean))
        return found

    def _factors(self, pairs: Pairs, logits: torch.Tensor) -> F64:
        """f of each pair (N,), from the host's logits (L, vocab) at every position of the text."""
        import torch

        from dewmark.baselines.reweight.slots import slot_masses, slots_of
        from dewmark.sampling import warp

        scheme = self.scheme
        decoding = Decoding(temperature=scheme.temperature, top_k=scheme.top_k, top_p=scheme.top_p)
        positions = np.flatnonzero(pairs.positions >= 0)
        positions = positions[np.argsort(pairs.positions[positions])]  # in the order of the pairs
        forbidden = torch.from_numpy(~self.markable).to(logits.device)
        factors = np.zeros(len(pairs))
        for start in range(0, len(pairs), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            scores = logits[torch.from_numpy(positions[part]).to(logits.device)]
            scores = scores.masked_fill(forbidden, -float("inf"))
            scores = warp(scores, decoding)
            contexts = torch.from_numpy(pairs.contexts[part]).to(logits.device)
            slots = slots_of(self.vocabulary.words(contexts))
            masses = slot_masses(scores.softmax(dim=1), slots)
            tokens = torch.from_numpy(pairs.tokens[part]).to(logits.device).unsqueeze(1)
            chosen = self.slot_factors(masses, contexts).gather(1, slots.gather(1, tokens))
            factors[part] = chosen.squeeze(1).cpu().numpy()
        return factors
