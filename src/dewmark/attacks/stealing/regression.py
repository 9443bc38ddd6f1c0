"""Stealing DEW by its form: regress what was written on public embeddings, and get the secret product.

All of DEW but the key is public. Its score of unit t in context c is u ≈ tᵀWc with W = R_T R_Cᵀ/√n, whose
d_T·d_C entries are about standard normal over keys. Marking tilts the choice between candidates by about
exp(βu) (β ≈ λγ for a bias, and a number near 1 for keyed sampling), so to first order

    E[t | c] − E_base[t | c] ≈ β Cov(t) W c,      A = E[t cᵀ] − E_base[t cᵀ] ≈ β Σ_T W Σ_C,

with Σ_T the covariance of units and Σ_C = E[c cᵀ]. A from N marked and N' base units has noise of variance
σ_a τ_b (1/N + 1/N') in the eigenbases of Σ_T (eigenvalues σ) and Σ_C (τ). With the prior W_ab ~ N(0, 1) the
posterior mean is a ridge regression in closed form:

    Ŵ_ab ∝ A_ab / (σ_a τ_b + (1/N + 1/N')/β²).

Few texts: Ŵ ∝ A, the average outer product. Many: Σ_T⁻¹ A Σ_C⁻¹. If both spaces are isotropic the cosine
between tᵀŴc and u is s/√(1 + s²) with s² = β² N/(d_T d_C) for N' = ∞: a forger needs about d_T·d_C/β² units,
fewer where the contexts share a component (τ_1 large), which is then a standing preference for some tokens
that any text gives away.

The estimate stands in a `Fold`, so that DEW itself writes the forgery. Boundary: estimation and the forged
scheme; who writes and who is deceived is in `stealing`.

A sharper look at marked text, for an attacker who runs the victim's own host: t − E_host[t | before].

The host says which tokens could have stood in a place. Subtracting their mean takes out what the text is
about, which base text can only do on average, and with it most of the noise. Host tokens only: which words a
host would write is not asked here.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dewmark.arrays import F32, F64
from dewmark.dew.projection import Fold
from dewmark.dew.reading import Reader, TokenReader
from dewmark.dew.scheme import BoundDEW
from dewmark.errors import ConfigError, InputError
from dewmark.hosts.base import Host
from dewmark.scheme import BoundScheme
from dewmark.workspace import Follower

if TYPE_CHECKING:
    import torch

__all__ = [
    "Baseline",
    "Moments",
    "as_dew",
    "cosine",
    "estimate",
    "forged",
    "moments_of",
    "pairs_of",
    "residual_moments",
    "sum_moments",
]


_TEXTS_AT_ONCE = 50

_FRESH_PAIRS = 20_000

_NOTHING = "no text holds a unit with a context: there is nothing to learn from"


@dataclass(frozen=True)
class Moments:
    """Sums over ``count`` units: of t cᵀ (d_T, d_C), t (d_T,) and c (d_C,)."""

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
        """From blocks of units and contexts."""
        total: Moments | None = None
        units, contexts = np.zeros(()), np.zeros(())
        for T, C in blocks:
            mine = Moments.of(T, C)
            total = mine if total is None else total + mine
            units, contexts = units + T.T @ T, contexts + C.T @ C
        if total is None:
            raise InputError(_NOTHING)
        mean = total.unit / total.count
        sigma, V_T = np.linalg.eigh(units / total.count - np.outer(mean, mean))
        tau, V_C = np.linalg.eigh(contexts / total.count)
        return cls(total, sigma.clip(min=0.0), V_T, tau.clip(min=0.0), V_C)


def as_dew(victim: BoundScheme) -> BoundDEW:
    """The victim as the DEW that it must be: with meaning on both sides."""
    if not isinstance(victim, BoundDEW):
        raise ConfigError(
            f"the attack by embeddings knows the form of dew, not of {victim.scheme.name}: use method counts"
        )
    if victim.scheme.mode != "both":
        raise ConfigError(
            f"mode {victim.scheme.mode} hides the embeddings behind the key, which leaves nothing to regress "
            "on: use method counts"
        )
    return victim


def pairs_of(reader: Reader, texts: Sequence[str]) -> Iterator[tuple[F32, F32]]:
    """Blocks of units (N, d_T) and contexts (N, d_C): the distinct pairs of each text, no prompt known."""
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        some = texts[start : start + _TEXTS_AT_ONCE]
        reading = reader.read(reader.tokenize(some), reader.tokenize([""] * len(some)))
        assert reading.context_rows is not None
        units = np.concatenate([pairs.tokens for pairs in reading.texts])
        windows = np.concatenate([pairs.windows for pairs in reading.texts])
        if len(units):
            yield reading.token_rows[units], reading.context_rows[windows]


def moments_of(reader: Reader, texts: Sequence[str]) -> Moments:
    """The moments of marked texts."""
    return sum_moments(Moments.of(T, C) for T, C in pairs_of(reader, texts))


def sum_moments(parts: Iterable[Moments]) -> Moments:
    """The moments of all texts together."""
    found = [part for part in parts if part.count]
    if not found:
        raise InputError(_NOTHING)
    return functools.reduce(operator.add, found)


def estimate(marked: Moments, base: Baseline, *, tilt: float = 0.3, residual: bool = False) -> F32:
    """Ŵ (d_T, d_C) up to a factor, scaled so that tᵀŴc has variance 1 over unrelated units and contexts.

    ``tilt`` is β as the attacker supposes it; it only sets how much of the estimate is taken for noise.
    ``residual`` says that ``marked`` is of t − E[t | c] (`stealing_residuals`): nothing is left to subtract.
    """
    if residual:
        A, ridge = marked.cross / marked.count, 1.0 / (marked.count * tilt**2)
    else:
        mean = base.moments.unit / base.moments.count
        A = marked.centred(mean) - base.moments.centred(mean)
        ridge = (1.0 / marked.count + 1.0 / base.moments.count) / tilt**2
    variances = np.outer(base.sigma, base.tau)
    rotated = (base.V_T.T @ A @ base.V_C) / (variances + ridge)
    spread = float(np.sqrt((rotated**2 * variances).sum()))
    if not spread > 0.0:
        raise InputError("marked and base texts are the same: there is no mark to learn")
    return np.asarray(base.V_T @ rotated @ base.V_C.T / spread, dtype=np.float32)


def forged(victim: BoundDEW, W: F32, *, strength: float) -> BoundDEW:
    """DEW with an estimated product in place of the key's, adding strength · tanh(γ tᵀWc) to logits.

    Only the victim's public part is used. A negative strength turns the mark around.
    """
    d_T, d_C = W.shape
    scheme = dataclasses.replace(victim.scheme, sampler="bias", lambda_=max(abs(strength), 1e-9))
    public = dataclasses.replace(victim.public, scheme=scheme)
    product = W if strength >= 0.0 else -W
    fold = Fold(product, np.eye(d_T, dtype=np.float32), np.eye(d_C, dtype=np.float32), n=1)
    name = hashlib.sha256(product.tobytes()).hexdigest()[:16]
    return BoundDEW(public, f"forged-{name}", fold=fold, progress=victim.progress)


def cosine(victim: BoundDEW, W: F32, texts: Sequence[str], *, seed: int = 0) -> float:
    """The correlation of tᵀWc with the victim's u over units and contexts of fresh texts at random."""
    blocks = list(pairs_of(victim.reader, texts))
    if not blocks:
        raise InputError(_NOTHING)
    T, C = (np.concatenate(side) for side in zip(*blocks, strict=True))
    rng = np.random.default_rng(seed)
    picked = rng.integers(len(T), size=(2, _FRESH_PAIRS))
    T, C = T[picked[0]], C[picked[1]]
    true = np.einsum("ij,ij->i", victim.fold.rows(T), victim.fold.contexts(C))
    ours = np.einsum("ij,ij->i", T @ W, C)
    return float(np.corrcoef(true, ours)[0, 1])


_CANDIDATES = 256  # the likeliest tokens stand for all


def residual_moments(host: Host, reader: Reader, texts: Sequence[str]) -> Moments:
    """The moments of marked texts, each unit less what the host expected in its place."""
    if not isinstance(reader, TokenReader) or not isinstance(host, Follower):
        raise ConfigError("expectation host needs units=token and a transformers host: use expectation base")
    return sum_moments(_each(host, reader, texts))


def _each(host: Follower, reader: TokenReader, texts: Sequence[str]) -> Iterator[Moments]:
    import torch

    table: torch.Tensor | None = None
    cut = [text for text in reader.tokenize(texts) if text.ids]
    (nothing,) = reader.tokenize([""])
    for text, logits in zip(cut, host.next_logits([""] * len(cut), [text.ids for text in cut]), strict=True):
        if table is None:
            table = torch.from_numpy(np.array(reader.token_rows, dtype=np.float32)).to(logits.device)
        likely = logits.softmax(dim=-1).topk(min(_CANDIDATES, logits.shape[1]), dim=-1)
        expected = torch.einsum("lm,lmd->ld", likely.values, table[likely.indices]).cpu().numpy()
        reading = reader.read([text], [nothing])
        assert reading.context_rows is not None
        (pairs,) = reading.texts
        scored = np.flatnonzero(pairs.positions >= 0)
        _, first = np.unique(pairs.positions[scored], return_index=True)  # where each pair occurs first
        T = reading.token_rows[pairs.tokens] - expected[scored[first]]
        yield Moments.of(T, reading.context_rows[pairs.windows])
