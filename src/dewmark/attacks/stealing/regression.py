"""Stealing DEW by regression: estimate its secret matrix from marked text and public embeddings.

Everything in DEW but the key is public. It scores unit t in context c with u ≈ tᵀWc, where W = R_T R_Cᵀ/√n
has d_T·d_C entries that are approximately standard normal over keys. Marking tilts the choice between
candidates by about exp(βu) (β ≈ λγ for a bias, close to 1 for keyed sampling), so to first order

    E[t | c] − E_base[t | c] ≈ β Cov(t) W c,      A = E[t cᵀ] − E_base[t cᵀ] ≈ β Σ_T W Σ_C,

where Σ_T is the covariance of units and Σ_C = E[c cᵀ]. Estimated from N marked and N' base units, A has noise
of variance σ_a τ_b (1/N + 1/N') in the eigenbases of Σ_T (eigenvalues σ) and Σ_C (τ). Under the prior
W_ab ~ N(0, 1) the posterior mean is a ridge regression in closed form:

    Ŵ_ab ∝ A_ab / (σ_a τ_b + (1/N + 1/N')/β²).

With few texts, Ŵ ∝ A, the average outer product; with many, Ŵ ∝ Σ_T⁻¹ A Σ_C⁻¹. If both spaces are isotropic,
the cosine between tᵀŴc and u is s/√(1 + s²) with s² = β² N/(d_T d_C) for N' = ∞, so a forger needs about
d_T·d_C/β² units. It needs fewer if the contexts share a component (τ_1 large), because that component is a
constant preference for some tokens that every text reveals.

An attacker who runs the victim's own host can do better (`residual_moments`) by regressing
t − E_host[t | prefix]. At each position, the host's expectation removes the text's topic, and with it most of
the noise; base text does so only on average. This works for units that are host tokens, not for words.

The estimate goes into a `Fold`, so that DEW itself generates the forgery. Boundary: estimation and the forged
scheme; `steal` generates and judges.
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

_BATCH_SIZE = 50
_FRESH_PAIRS = 20_000
_CANDIDATES = 256  # the host's expectation is over this many most likely tokens
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


def as_dew(victim: BoundScheme) -> BoundDEW:
    """The victim, which must be DEW with embeddings of both units and contexts."""
    if not isinstance(victim, BoundDEW):
        raise ConfigError(
            f"the embedding method attacks dew only, not {victim.scheme.name}: use method counts"
        )
    if victim.scheme.mode != "both":
        raise ConfigError(
            f"mode={victim.scheme.mode} replaces embeddings by keyed hashes, which leaves nothing to regress "
            "on: use method counts"
        )
    return victim


def pairs_of(reader: Reader, texts: Sequence[str]) -> Iterator[tuple[F32, F32]]:
    """Blocks of units (N, d_T) and contexts (N, d_C): each text's distinct pairs, without a prompt."""
    for start in range(0, len(texts), _BATCH_SIZE):
        some = texts[start : start + _BATCH_SIZE]
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
    """The total of several moments."""
    found = [part for part in parts if part.count]
    if not found:
        raise InputError(_NO_PAIRS)
    return functools.reduce(operator.add, found)


def estimate(marked: Moments, base: Baseline, *, tilt: float = 0.3, residual: bool = False) -> F32:
    """Ŵ (d_T, d_C), scaled so that tᵀŴc has variance 1 over unrelated units and contexts.

    ``tilt`` is the β that the attacker assumes; it only sets the ridge penalty. ``residual`` says that
    ``marked`` comes from `residual_moments`, so that the base text's mean is not subtracted again.
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
        raise InputError("marked and base texts are identical: there is no mark to learn")
    return np.asarray(base.V_T @ rotated @ base.V_C.T / spread, dtype=np.float32)


def forged(victim: BoundDEW, W: F32, *, strength: float) -> BoundDEW:
    """DEW with an estimated W in place of the key's, which adds strength · tanh(γ tᵀWc) to logits.

    Only the victim's key-independent part is used. A negative strength inverts the mark.
    """
    d_T, d_C = W.shape
    scheme = dataclasses.replace(victim.scheme, sampler="bias", lambda_=max(abs(strength), 1e-9))
    shared = dataclasses.replace(victim.shared, scheme=scheme)
    product = W if strength >= 0.0 else -W
    fold = Fold(product, np.eye(d_T, dtype=np.float32), np.eye(d_C, dtype=np.float32), n=1)
    name = hashlib.sha256(product.tobytes()).hexdigest()[:16]
    return BoundDEW(
        shared, f"forged-{name}", fold=fold, simulation_secret=bytes(32), progress=victim.progress
    )


def cosine(victim: BoundDEW, W: F32, texts: Sequence[str], *, seed: int = 0) -> float:
    """The correlation of tᵀWc with the victim's u over random units and contexts of fresh texts."""
    blocks = list(pairs_of(victim.reader, texts))
    if not blocks:
        raise InputError(_NO_PAIRS)
    T, C = (np.concatenate(side) for side in zip(*blocks, strict=True))
    rng = np.random.default_rng(seed)
    picked = rng.integers(len(T), size=(2, _FRESH_PAIRS))
    T, C = T[picked[0]], C[picked[1]]
    true = np.einsum("ij,ij->i", victim.fold.rows(T), victim.fold.contexts(C))
    ours = np.einsum("ij,ij->i", T @ W, C)
    return float(np.corrcoef(true, ours)[0, 1])


def residual_moments(host: Host, reader: Reader, texts: Sequence[str]) -> Moments:
    """The moments of marked texts, with the host's expected unit at each position subtracted."""
    if not isinstance(reader, TokenReader) or not isinstance(host, Follower):
        raise ConfigError("expectation=host needs units=token and a transformers host: use expectation=base")
    return sum_moments(_text_residuals(host, reader, texts))


def _text_residuals(host: Follower, reader: TokenReader, texts: Sequence[str]) -> Iterator[Moments]:
    import torch

    table: torch.Tensor | None = None
    tokenized = [text for text in reader.tokenize(texts) if text.ids]
    (nothing,) = reader.tokenize([""])
    all_logits = host.next_logits([""] * len(tokenized), [text.ids for text in tokenized])
    for text, logits in zip(tokenized, all_logits, strict=True):
        if table is None:
            table = torch.from_numpy(np.array(reader.token_rows, dtype=np.float32)).to(logits.device)
        likely = logits.softmax(dim=-1).topk(min(_CANDIDATES, logits.shape[1]), dim=-1)
        expected = torch.einsum("lm,lmd->ld", likely.values, table[likely.indices]).cpu().numpy()
        reading = reader.read([text], [nothing])
        assert reading.context_rows is not None
        (pairs,) = reading.texts
        scored = np.flatnonzero(pairs.positions >= 0)
        _, first = np.unique(pairs.positions[scored], return_index=True)  # the first occurrence of each pair
        T = reading.token_rows[pairs.tokens] - expected[scored[first]]
        yield Moments.of(T, reading.context_rows[pairs.windows])
