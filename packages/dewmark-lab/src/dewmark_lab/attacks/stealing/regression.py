"""Stealing DEW by regression: estimate its secret matrix from marked text and public embeddings.

DEW scores unit t in context c with u ≈ tᵀWc, and marking tilts the choice between candidates by about
exp(βu):

    E[t | c] − E_base[t | c] ≈ β Cov(t) W c,      A = E[t cᵀ] − E_base[t cᵀ] ≈ β Σ_T W Σ_C,

where Σ_T is the covariance of units and Σ_C = E[c cᵀ]. Estimated from N marked and N' base units, A has
noise of variance σ_a τ_b (1/N + 1/N') in the eigenbases of Σ_T (eigenvalues σ) and Σ_C (τ). Under the prior
W_ab ~ N(0, 1) the posterior mean is a ridge regression in closed form:

    Ŵ_ab ∝ A_ab / (σ_a τ_b + (1/N + 1/N')/β²).

The attacker reads β off the texts: ‖A‖² exceeds its noise by β² Σ (σ_a τ_b)². One who runs the victim's own
host can regress t − E_host[t | prefix] (`residual_moments`), which removes the text's topic and with it most
of the noise.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dewmark.arrays import F32, F64
from dewmark.dew.paper.reading import TokenReader
from dewmark.dew.paper.scheme import BoundDewPaper
from dewmark.dew.reading import LexiconReader, read
from dewmark.dew.scheme import BoundDEW
from dewmark.errors import ConfigError, InputError
from dewmark.hosts.base import Host
from dewmark.hosts.expectations import HostExpectations
from dewmark.scheme import BoundScheme

_BATCH_SIZE = 50
_FRESH_PAIRS = 20_000
_MIN_TILT = 0.05
_NO_PAIRS = "no text contains a unit with a context: give longer texts"


@dataclass(frozen=True)
class Moments:
    """Sums over ``count`` pairs of t cᵀ (d_T, d_C), t (d_T,) and c (d_C,)."""

    count: int
    cross: F64
    unit: F64
    context: F64

    @classmethod
    def of(cls, T: F32, C: F32) -> Moments:
        """The moments of N units T (N, d_T) in their contexts C (N, d_C)."""
        sums = (T.T @ C, T.sum(axis=0), C.sum(axis=0))
        return cls(len(T), *(np.asarray(total, dtype=np.float64) for total in sums))

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.count + other.count,
            self.cross + other.cross,
            self.unit + other.unit,
            self.context + other.context,
        )

    def centred(self, mean: F64) -> F64:
        """E[(t − mean) cᵀ]."""
        return np.asarray((self.cross - np.outer(mean, self.context)) / self.count)


@dataclass(frozen=True)
class Baseline:
    """Unmarked text: its moments, and Σ_T = V_T diag(σ) V_Tᵀ, Σ_C = V_C diag(τ) V_Cᵀ."""

    moments: Moments
    sigma: F64
    V_T: F64
    tau: F64
    V_C: F64

    @classmethod
    def of(cls, blocks: Iterable[tuple[F32, F32]]) -> Baseline:
        """The baseline of (units, contexts) blocks."""
        total: Moments | None = None
        units, contexts = np.zeros(()), np.zeros(())
        for T, C in blocks:
            mine = Moments.of(T, C)
            total = mine if total is None else total + mine
            units, contexts = units + T.T @ T, contexts + C.T @ C
        if total is None:
            raise InputError(_NO_PAIRS)
        mean = total.unit / total.count
        sigma, V_T = np.linalg.eigh(units / total.count - np.outer(mean, mean))
        tau, V_C = np.linalg.eigh(contexts / total.count)
        return cls(total, sigma.clip(min=0.0), V_T, tau.clip(min=0.0), V_C)

    @property
    def variances(self) -> F64:
        """σ_a τ_b (a, b): how much each coordinate of t cᵀ varies, and so how soon it is learned."""
        return np.outer(self.sigma, self.tau)

    def rotated(self, cross: F64) -> F64:
        """A matrix (d_T, d_C) in the eigenbases, (a, b)."""
        return np.asarray(self.V_T.T @ cross @ self.V_C)

    def residual(self, marked: Moments) -> F64:
        """Σ t cᵀ of marked text less what unmarked text would have, in the eigenbases, (a, b)."""
        mean = self.moments.unit / self.moments.count
        return self.rotated(marked.count * (marked.centred(mean) - self.moments.centred(mean)))

    def restored(self, rotated: F64) -> F32:
        """Ŵ (a, b) back in the embeddings' own coordinates (d_T, d_C), scaled to scores of variance 1."""
        spread = float(np.sqrt((np.square(rotated) * self.variances).sum()))
        if not spread > 0.0:
            raise InputError("marked and base texts are identical: there is no mark to learn")
        return np.asarray(self.V_T @ rotated @ self.V_C.T / spread, dtype=np.float32)


Victim = BoundDEW | BoundDewPaper
"""DEW of either kind."""

Pairing = LexiconReader | TokenReader
"""What splits their texts into (unit, context) pairs; no language model is asked."""


def as_dew(victim: BoundScheme) -> Victim:
    """The victim, which must be DEW with embeddings of both units and contexts."""
    if isinstance(victim, BoundDewPaper) and victim.scheme.mode != "both":
        raise ConfigError(
            f"mode={victim.scheme.mode} replaces embeddings by keyed hashes, which leaves nothing to regress "
            "on: use method counts"
        )
    if not isinstance(victim, BoundDEW | BoundDewPaper):
        raise ConfigError(f"the embedding method attacks dew, not {victim.scheme.name}: use counts")
    return victim


def pairs_of(pairing: Pairing, texts: Sequence[str]) -> Iterator[tuple[F32, F32]]:
    """The units (N, d_T) and contexts (N, d_C) of texts, without a prompt, in blocks of many texts."""
    for start in range(0, len(texts), _BATCH_SIZE):
        some = texts[start : start + _BATCH_SIZE]
        reading = pairing.read(pairing.tokenize(some), pairing.tokenize([""] * len(some)))
        found = [pairs for pairs in reading.texts if len(pairs.tokens)]
        if found:
            T, C = reading.token_rows, reading.context_rows
            yield (
                np.concatenate([T[pairs.tokens] for pairs in found]),
                np.concatenate([C[pairs.windows] for pairs in found]),
            )


def moments_of(pairing: Pairing, texts: Sequence[str]) -> Moments:
    """The moments of marked texts."""
    return sum_moments(Moments.of(T, C) for T, C in pairs_of(pairing, texts))


def sum_moments(parts: Iterable[Moments]) -> Moments:
    """The total of several moments."""
    found = [part for part in parts if part.count]
    if not found:
        raise InputError(_NO_PAIRS)
    return functools.reduce(operator.add, found)


def estimate(marked: Moments, base: Baseline, *, tilt: float | None = None, residual: bool = False) -> F32:
    """Ŵ (d_T, d_C), scaled so that tᵀŴc has variance 1 over unrelated units and contexts.

    ``tilt`` is the β that the attacker assumes; it only sets the ridge penalty, and by default is read off
    the texts. ``residual`` says that ``marked`` comes from `residual_moments`, so that the base text's mean
    is not subtracted again.
    """
    total = base.rotated(marked.cross) if residual else base.residual(marked)
    count = marked.count if residual else 1.0 / (1.0 / marked.count + 1.0 / base.moments.count)
    total *= count / marked.count  # the base text's noise counts as fewer pairs
    tilt = tilt or fitted_tilt(total, count, base.variances)
    return base.restored(posterior_mean(total, count, base.variances, tilt=tilt))


def fitted_tilt(total: F64, count: float, variances: F64) -> float:
    """β from ‖A‖² = β² Σ (σ_a τ_b)² + Σ σ_a τ_b/N, A = total/N; at least `_MIN_TILT`."""
    excess = float(np.square(total / count).sum()) - float(variances.sum()) / count
    return max(math.sqrt(max(excess, 0.0) / float(np.square(variances).sum())), _MIN_TILT)


def posterior_mean(total: F64, count: float, variances: F64, *, tilt: float) -> F64:
    """E[W | texts] (a, b) from Σ (t cᵀ − its expectation) over ``count`` pairs, in the public eigenbases.

    The sum has mean β N σ_a τ_b W_ab and variance N σ_a τ_b, and W_ab ~ N(0, 1).
    """
    return np.asarray(tilt * total / (1.0 + tilt * tilt * count * variances))


def cosine(victim: Victim, W: F32, texts: Sequence[str], *, seed: int = 0) -> float:
    """The correlation of tᵀWc with the victim's u over random units and contexts of fresh texts."""
    blocks = list(pairs_of(victim.reader, texts))
    if not blocks:
        raise InputError(_NO_PAIRS)
    T, C = (np.concatenate(side) for side in zip(*blocks, strict=True))
    rng = np.random.default_rng(seed)
    picked = rng.integers(len(T), size=(2, _FRESH_PAIRS))
    T, C = T[picked[0]], C[picked[1]]
    true = victim.alignments(T, C)
    ours = np.einsum("ij,ij->i", T @ W, C)
    return float(np.corrcoef(true, ours)[0, 1])


def residual_moments(host: Host, pairing: Pairing, texts: Sequence[str]) -> Moments:
    """The moments of marked texts, with the host's expected unit at each position subtracted."""
    if not isinstance(pairing, LexiconReader):
        raise ConfigError("expectation=host needs a mark on words: use base")
    return sum_moments(_residuals_per_text(host, pairing, texts))


def _residuals_per_text(host: Host, pairing: LexiconReader, texts: Sequence[str]) -> Iterator[Moments]:
    """The moments of each text of words, less what the host expected at each position."""
    expectations = HostExpectations(host.info, lambda: host)
    for start in range(0, len(texts), _BATCH_SIZE):
        some = texts[start : start + _BATCH_SIZE]
        reading = read(pairing, expectations, pairing.tokenize(some), pairing.tokenize([""] * len(some)))
        rows = reading.context_rows
        for pairs in reading.texts:
            assert pairs.expected is not None
            assert pairs.unforeseen is not None
            T = reading.token_rows[pairs.tokens]
            if len(T):  # as the detector does where a model reads
                T = T - reading.token_rows[pairs.expected] - pairs.unforeseen[:, None] * T.mean(axis=0)
            yield Moments.of(T, rows[pairs.windows])
