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

Tournament sampling (SynthID-Text) as a change of probabilities, and its session.

One layer with bits g and N leaves: of N tokens drawn independently from p one with bit 1 wins if there is
any. With G = Σ g p this multiplies a token's probability by

    1 + (1 − G) + … + (1 − G)^(N−1)   if its bit is 1 (for N = 2: 2 − G),
    (1 − G)^(N−1)                     if its bit is 0 (for N = 2: 1 − G),

and the layers follow one another. A token's factor in ten consecutive layers depends on its ten bits alone.
So ten layers are played at once between the 1,024 patterns of ten bits, each with the probability of all
tokens that show it: exactly the same numbers, with three passes over the vocabulary instead of thirty.

The Bayesian detector of SynthID-Text: how likely a token's bits are if it was marked.

Unmarked bits are fair coins. In a marked text layer l shows a 1 with probability 1/2 + q_l (1/2 − 2^−N):
q_l is the chance that the N candidates of the match differed, and the bits of the layers before it tell of
that,

    q_l = sigmoid(β_l + Σ_{j<l} δ_lj g_j)

A token's log-likelihood ratio is Σ_l log(1 + (2 g_l − 1) a q_l), a = 1 − 2^(1−N), and a text's the sum over
its distinct pairs. β and δ are fitted by maximum likelihood to marked texts alone: the law of unmarked bits
is known, so negatives would add nothing.

The p-value: the ratios of distinct pairs are independent on unmarked text, each distributed as that of
``depth`` fair coins, of which a large fixed sample is drawn once. The law of a sum of N of them follows
by the saddlepoint formula of Lugannani and Rice, accurate in the far tail too.

Boundary: numpy and scipy; arrays of bits in, numbers out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from dewmark.arrays import F64, I64
from dewmark.baselines.reweight.slots import ReweightBound, ReweightSession
from dewmark.baselines.token_schemes import TokenScheme, binomial_test, check, stored_secret, z_test
from dewmark.errors import ArtifactError, InputError
from dewmark.scheme import Needs, Session, State
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic, one_sided_p
from dewmark.storage import load_bundle, save_bundle
from dewmark.workspace import HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

__all__ = [
    "Bayesian",
    "BoundSynthID",
    "Null",
    "SynthID",
    "TournamentSession",
    "fit",
    "fit_bayesian",
    "tournament",
]


_AT_ONCE = 10


class TournamentSession(ReweightSession):
    """Plays the tournament in every row whose context is new."""

    def __init__(
        self, bound: BoundSynthID, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask, memory=bound.scheme.history)
        self._depth, self._leaves = bound.scheme.depth, bound.scheme.leaves

    def reweight(
        self, contexts: torch.Tensor, logits: torch.Tensor, candidates: torch.Tensor | None
    ) -> torch.Tensor:
        """Logarithms of the probabilities (batch, m) after the tournament."""
        words = self._hash.words(contexts, candidates)
        return tournament(logits.softmax(dim=1), words, depth=self._depth, leaves=self._leaves).log_()


def tournament(
    probabilities: torch.Tensor, words: torch.Tensor, *, depth: int, leaves: int = 2
) -> torch.Tensor:
    """Probabilities (batch, m) after ``depth`` layers; bit l of words (batch, m) int32 is layer l's g."""
    for start in range(0, depth, _AT_ONCE):
        layers = min(_AT_ONCE, depth - start)
        patterns = (words >> start).bitwise_and_((1 << layers) - 1).to(torch.int64)
        zeros = probabilities.new_zeros((len(probabilities), 1 << layers))
        masses = zeros.scatter_add_(1, patterns, probabilities)
        # small and sequential, so on the CPU and without torch's overhead for each step
        factors = torch.from_numpy(pattern_factors(masses.cpu().double().numpy(), leaves))
        probabilities = probabilities * factors.to(probabilities).gather(1, patterns)
    return probabilities


def pattern_factors(masses: F64, leaves: int) -> F64:
    """The factors (batch, 2^layers) of all patterns, from their probabilities (batch, 2^layers).

    Layer by layer from the lowest bit: play it, then forget it, which leaves the patterns of the bits above.
    """
    left = masses / masses.sum(axis=1, keepdims=True)
    factors = np.ones((len(masses), 1))
    while left.shape[1] > 1:
        zeros, ones = left[:, 0::2], left[:, 1::2]
        rest = np.maximum(1.0 - ones.sum(axis=1, keepdims=True), 0.0)  # 1 − G
        lose, win = rest, 1.0 + rest
        for _ in range(leaves - 2):
            lose, win = lose * rest, 1.0 + win * rest
        left = zeros * lose + ones * win
        factors = np.concatenate((factors * lose, factors * win), axis=1)  # the new bit is the highest yet
    return factors


Bits = NDArray[np.uint8]

_SAMPLE = 1 << 16

_FEWEST = 1000

_RIDGE = 100.0  # a prior standard deviation of 0.1 for each δ


@dataclass(frozen=True, repr=False)
class Bayesian:
    """A fitted detector: ``beta`` (depth,), ``delta`` (depth, depth), nonzero below its diagonal only."""

    beta: F64
    delta: F64
    leaves: int

    def log_ratios(self, bits: Bits) -> F64:
        """Log-likelihood ratios (N,) of pairs with bits (N, depth), larger means more marked."""
        ratio, _ = _ratios(self.beta, self.delta, bits, self.leaves)
        total: F64 = np.log(ratio).sum(axis=1)
        return total

    @functools.cached_property
    def null(self) -> Null:
        """What these ratios do on unmarked text."""
        bits = np.random.default_rng(0).integers(0, 2, size=(_SAMPLE, len(self.beta)), dtype=np.uint8)
        ratio, _ = _ratios(self.beta, self.delta, bits, self.leaves)
        sample: F64 = np.log(ratio).sum(axis=1)
        # An error of the mean adds up over a text's tokens, so it is estimated with the last of the chance
        # taken out: given the bits before it, a layer's ratio is 1 ± r with equal probability.
        mean = 0.5 * np.log1p(-((ratio - 1.0) ** 2)).sum(axis=1).mean()
        return Null(sample - sample.mean() + mean)

    @property
    def arrays(self) -> dict[str, F64]:
        """What a stored detector keeps of it."""
        return {"beta": self.beta, "delta": self.delta}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], *, depth: int, leaves: int) -> Bayesian:
        """The inverse of `arrays`, checked against the tournament it is to serve."""
        try:
            beta, delta = (np.array(arrays[name], dtype=np.float64) for name in ("beta", "delta"))
        except KeyError as missing:
            raise ArtifactError(f"the fitted detector lacks {missing}; fit it again") from None
        if beta.shape != (depth,) or delta.shape != (depth, depth):
            raise ArtifactError(
                f"the fitted detector is for {len(beta)} layers, the tournament has {depth}; fit it again"
            )
        return cls(beta, delta, leaves)

    def save(self, folder: str | Path) -> None:
        """Write the detector into a folder; it depends on no key."""
        save_bundle(Path(folder), meta={"leaves": self.leaves}, arrays=self.arrays)

    @classmethod
    def load(cls, folder: Path, *, depth: int, leaves: int) -> Bayesian:
        """Read what `save` wrote."""
        bundle = load_bundle(folder)
        if bundle.meta.get("leaves") != leaves:
            raise ArtifactError(
                f"{folder} was fitted to {bundle.meta.get('leaves')} leaves, the tournament has {leaves}; "
                "fit it again"
            )
        return cls.from_arrays(bundle.arrays, depth=depth, leaves=leaves)


class Null:
    """The law of a sum of n independent numbers, each distributed as a large sample (M,)."""

    def __init__(self, sample: F64) -> None:
        self._sample = sample
        self.variance = float(sample.var())

    def test(self, total: float, n: int) -> Statistic:
        """P(sum ≥ total), and the normal number of that tail."""
        if n == 0:
            return NOTHING
        p_value = self.tail(total, n)
        return Statistic(-float(ndtri(p_value)), p_value, float(n))

    def tail(self, total: float, n: int) -> float:
        """P(sum ≥ total) by Lugannani and Rice; the sample's cumulant function is K(θ) = log mean e^(θx)."""
        low, high = float(self._sample.min()), float(self._sample.max())
        margin = 1e-3 * (high - low)  # at the very ends of the sample θ is infinite
        if margin < 1e-6:  # fitted to texts without a mark: every ratio is 1
            return 1.0
        mean = min(max(total / n, low + margin), high - margin)
        theta = self._tilt(mean)
        w2 = 2.0 * n * (theta * mean - self._cumulants(theta)[0])
        if w2 < 1e-4:  # next to the mean the formula divides 0 by 0, and the normal law is as good
            return one_sided_p((mean - float(self._sample.mean())) * math.sqrt(n / self.variance))
        w = math.copysign(math.sqrt(w2), theta)
        v = theta * math.sqrt(n * self._cumulants(theta)[2])
        density = math.exp(-0.5 * w2) / math.sqrt(2.0 * math.pi)
        return min(max(one_sided_p(w) + density * (1.0 / v - 1.0 / w), 0.0), 1.0)

    def _tilt(self, mean: float) -> float:
        """θ with K'(θ) = mean; K' rises from the sample's least to its largest number."""
        from scipy.optimize import brentq  # slow to import, and of no use to the other tests

        low, high = -1.0, 1.0
        while self._cumulants(low)[1] > mean:
            low *= 2.0
        while self._cumulants(high)[1] < mean:
            high *= 2.0
        return float(brentq(lambda theta: self._cumulants(theta)[1] - mean, low, high, xtol=1e-9))

    def _cumulants(self, theta: float) -> tuple[float, float, float]:
        """K, K' and K'' at θ."""
        exponents = theta * self._sample
        largest = float(exponents.max())
        tilted = np.exp(exponents - largest)
        total = float(tilted.sum())
        first = float(tilted @ self._sample) / total
        second = float(tilted @ np.square(self._sample)) / total - first**2
        return largest + math.log(total / len(self._sample)), first, second


def fit(bits: Bits, *, leaves: int) -> Bayesian:
    """Fit β and δ to the bits (N, depth) of marked tokens, by penalised maximum likelihood."""
    if len(bits) < _FEWEST:
        raise InputError(
            f"the marked texts have {len(bits)} tokens to fit to; give at least {_FEWEST}, better 20,000"
        )
    from scipy.optimize import minimize

    depth = bits.shape[1]
    below = np.tril_indices(depth, -1)
    g = bits.astype(np.float64)

    def unpack(x: F64) -> tuple[F64, F64]:
        delta = np.zeros((depth, depth))
        delta[below] = x[depth:]
        return x[:depth], delta

    def loss(x: F64) -> tuple[float, F64]:
        beta, delta = unpack(x)
        ratio, slope = _ratios(beta, delta, bits, leaves)
        gradient = np.concatenate((slope.sum(axis=0), (slope.T @ g)[below]))
        penalised = _RIDGE * np.concatenate((np.zeros(depth), x[depth:]))
        return float(-np.log(ratio).sum() + 0.5 * penalised @ x), penalised - gradient

    start = np.concatenate((np.full(depth, -1.0), np.zeros(len(below[0]))))
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return Bayesian(*unpack(found.x), leaves=leaves)


def _ratios(beta: F64, delta: F64, bits: Bits, leaves: int) -> tuple[F64, F64]:
    """P(g | marked) / P(g | unmarked) per layer, (N, depth), and the slope of its log in β + Σ δ g."""
    g = bits.astype(np.float64)
    q = expit(beta + g @ delta.T)
    signed = (2.0 * g - 1.0) * (1.0 - 2.0 ** (1 - leaves))
    ratio = 1.0 + signed * q
    return ratio, signed * q * (1.0 - q) / ratio


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
