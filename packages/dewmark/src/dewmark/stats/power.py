"""Power by length: the share of marked texts that the key test detects, and how long a text must be.

Truncate each marked text at several lengths L and score the truncated texts: this gives z-scores z_i(L) and
the measured share with p below the level. A model interpolates and extrapolates. Evidence adds up, so z grows
like √L; texts differ in how strongly they can be marked, so the slope differs between texts:

    z_i(L) = m_i √L + e,   m_i ~ N(μ, τ²),   e ~ N(0, σ²)    hence   z(L) ~ N(μ√L, σ² + τ²L)
    TPR(L) = Φ((μ√L − z_α) / √(σ² + τ²L)) · G(L),   z_α = −Φ⁻¹(fpr)

G(L) is the share of texts of length L that the detector judges at all: it refuses texts of fewer than a
certain number of effective tokens as too short, whatever their z. Each text's effective length at each cut
shows where it passes that number; G counts the texts that have passed it.

μ is fitted by least squares, σ² and τ² by non-negative least squares on the variance at each length, relative
to that variance. Even for very long texts the rate is at most Φ(μ/τ). Intervals come from resampling texts.

**Strength per effective token.** Where only what detection computes is known, the same model in effective
tokens L with σ = 1 serves: P(z > z_α) = Φ((μ√L − z_α) / √(1 + τ²L)). μ is the mean of m_i = z_i/√L_i, and τ²
the variance of m_i minus the part that e explains, the mean of 1/L_i; the error of μ, s²/n, is added to τ².

Boundary: z-scores in, numbers out. The sample should come from the host, settings and kind of prompt of
interest; it says nothing about rewritten texts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from dewmark.arrays import F64, I64
from dewmark.errors import InputError
from dewmark.stats.rates import Interval, Rate, rate

__all__ = [
    "FEWEST_TEXTS",
    "TARGETS",
    "Power",
    "Row",
    "Strength",
    "choose_cuts",
    "fit_model",
    "measure_power",
    "measure_strength",
]


TARGETS = (0.5, 0.9, 0.99)
FEWEST_TEXTS = 4
_SHORTEST = 25  # tokens; most of a shorter text has no full context
_CUTS = 8
_RESAMPLES = 1000
_ROUNDS = 4  # of reweighting the variance fit; more change nothing


@dataclass(frozen=True, slots=True)
class Model:
    """z(L) ~ N(``slope`` √L, ``noise`` + ``between`` L); text i is judged from the length ``judged_from[i]``.

    ``judged_from`` is ascending, and infinite for texts that are never long enough.
    """

    slope: float
    noise: float
    between: float
    judged_from: tuple[float, ...] = (0.0,)

    def tpr(self, lengths: ArrayLike, *, fpr: float) -> F64:
        """The expected detection rate at each length, same shape."""
        L = np.asarray(lengths, dtype=np.float64)
        spread = np.sqrt(np.maximum(self.noise + self.between * L, 1e-12))
        judged = np.searchsorted(self.judged_from, L, side="right") / len(self.judged_from)
        share: F64 = ndtr((self.slope * np.sqrt(L) + ndtri(fpr)) / spread) * judged
        return share

    def length_for(self, tpr: float, *, fpr: float) -> int | None:
        """The smallest length at which the rate reaches ``tpr``, or None if it takes more than a million."""
        if self.tpr(1_000_000, fpr=fpr) < tpr:
            return None
        low, high = 0, 1_000_000  # the rate rises with length if the slope is positive
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.tpr(middle, fpr=fpr) >= tpr else (middle, high)
        return high


@dataclass(frozen=True, slots=True)
class Row:
    """One length: the model's rate with its interval, and the measured rate of texts that are long enough."""

    length: int
    tpr: Interval
    measured: Rate | None
    mean_z: float | None
    sd_z: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Power:
    """The power estimated from a sample of marked texts at one false-positive rate."""

    fpr: float
    z: F64 = dataclasses.field(repr=False)
    judged: NDArray[np.bool_] = dataclasses.field(repr=False)
    cuts: tuple[int, ...]
    model: Model
    resampled: tuple[Model, ...] = dataclasses.field(repr=False)

    @property
    def texts(self) -> int:
        """The number of texts in the sample."""
        return len(self.z)

    def row(self, length: int) -> Row:
        """The expected and the measured rate at one length."""
        measured = mean = sd = None
        if length in self.cuts:
            cut = self.cuts.index(length)
            z, judged = self.z[:, cut], self.judged[:, cut]
            known = ~np.isnan(z)
            z, judged = z[known], judged[known]
            if len(z) >= 2:
                found = int(np.count_nonzero((ndtr(-z) <= self.fpr) & judged))
                measured, mean, sd = rate(found, len(z)), float(z.mean()), float(z.std(ddof=1))
        return Row(length, self.interval([length])[0], measured, mean, sd)

    def interval(self, lengths: Sequence[int]) -> list[Interval]:
        """The model's rate at each length, with a 95% bootstrap interval."""
        values = self.model.tpr(lengths, fpr=self.fpr)
        drawn = np.array([model.tpr(lengths, fpr=self.fpr) for model in self.resampled])
        ends = np.quantile(drawn, [0.025, 0.975], axis=0)
        return [Interval(float(v), float(a), float(b), 0.95) for v, a, b in zip(values, *ends, strict=True)]

    @property
    def shortest(self) -> dict[float, int | None]:
        """The smallest length that reaches each of the `TARGETS`, or None if no length does."""
        return {target: self.model.length_for(target, fpr=self.fpr) for target in TARGETS}


def choose_cuts(lengths: Sequence[int], longest: int) -> list[int]:
    """The lengths at which to truncate texts of up to ``longest`` tokens: ``lengths`` and some in between."""
    if longest < _SHORTEST:
        raise InputError(
            f"a power estimate needs texts of at least {_SHORTEST} tokens, the longest has {longest}"
        )
    between = np.geomspace(_SHORTEST, longest, _CUTS).round().astype(int).tolist()
    return sorted({*between, *(length for length in lengths if length <= longest)})


def measure_power(
    z: F64, effective: F64, cuts: Sequence[int], *, fpr: float, least_effective: float, seed: int = 0
) -> Power:
    """Estimate power from z-scores and effective lengths (texts, cuts) of truncated marked texts.

    Both are NaN where a text is shorter than the cut. The detector refuses to judge texts of fewer than
    ``least_effective`` effective tokens.
    """
    known = ~np.isnan(z).all(axis=1)
    z, effective = z[known], effective[known]
    if len(z) < FEWEST_TEXTS:
        raise InputError(
            f"a power estimate needs {FEWEST_TEXTS} marked texts of at least {min(cuts)} tokens, got {len(z)}"
        )
    first = _judged_from(effective, cuts, least_effective)

    def fitted(chosen: I64) -> Model:
        judged = tuple(np.sort(first[chosen]).tolist())
        return dataclasses.replace(fit_model(z[chosen], cuts), judged_from=judged)

    rng = np.random.default_rng(seed)
    return Power(
        fpr=fpr,
        z=z,
        judged=effective >= least_effective,  # NaN is not
        cuts=tuple(cuts),
        model=fitted(np.arange(len(z))),
        resampled=tuple(fitted(rng.integers(len(z), size=len(z))) for _ in range(_RESAMPLES)),
    )


def _judged_from(effective: F64, cuts: Sequence[int], least: float) -> F64:
    """The length (texts,) at which each text reaches ``least`` effective tokens, infinite if it never does.

    Interpolated between cuts. A text that has not got there at its last cut goes on growing as it did up to
    it, if it grew at all.
    """
    lengths = np.concatenate(([0.0], np.asarray(cuts, dtype=np.float64)))
    found = np.full(len(effective), np.inf)
    for i, row in enumerate(effective):
        known = np.concatenate(([0.0], row[~np.isnan(row)]))
        above = np.flatnonzero(known >= least)
        j = int(above[0]) if len(above) else len(known) - 1
        step = known[j] - known[j - 1]
        if step > 0.0:
            slope = step / (lengths[j] - lengths[j - 1])
            found[i] = lengths[j - 1] + (least - known[j - 1]) / slope
    return found


def fit_model(z: F64, cuts: Sequence[int]) -> Model:
    """Fit the model to z-scores (texts, cuts), NaN where a text is too short."""
    from scipy.optimize import nnls  # slow to import

    L = np.asarray(cuts, dtype=np.float64)
    known = ~np.isnan(z)
    slope = float(np.nansum(z * np.sqrt(L)) / (known * L).sum())
    count = known.sum(axis=0)
    enough = count >= 2
    left = (z - slope * np.sqrt(L))[:, enough]
    variance = np.nansum(left**2, axis=0) / (count[enough] - 1)
    # the error of a sample variance is proportional to the variance, so errors count relative to the fit
    columns = np.column_stack([np.ones(len(variance)), L[enough]])
    fitted = columns.sum(axis=1)
    for _ in range(_ROUNDS):
        (noise, between), _ = nnls(columns / fitted[:, None], variance / fitted)
        fitted = np.maximum(columns @ (noise, between), 1e-9)
    return Model(slope=slope, noise=float(noise), between=float(between))


@dataclass(frozen=True, slots=True)
class Strength:
    """m ~ N(``mean``, ``spread``²) per effective token, measured on ``texts`` marked texts."""

    mean: float
    spread: float
    texts: int

    def found(self, effective_length: float, *, fpr: float) -> float:
        """The share of marked texts of this effective length with p < ``fpr``."""
        L = max(effective_length, 0.0)
        return float(ndtr((self.mean * math.sqrt(L) + ndtri(fpr)) / math.sqrt(1.0 + self.spread**2 * L)))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)


def measure_strength(z: F64, effective_lengths: F64) -> Strength:
    """The strength from z-scores (texts,) of marked texts and their effective lengths (texts,)."""
    known = effective_lengths > 0.0
    z, L = z[known], effective_lengths[known]
    if len(z) < FEWEST_TEXTS:
        raise InputError(f"the strength of a mark needs {FEWEST_TEXTS} marked texts, got {len(z)}")
    m = z / np.sqrt(L)
    variance = float(m.var(ddof=1))
    between = max(0.0, variance - float((1.0 / L).mean()))
    return Strength(float(m.mean()), math.sqrt(between + variance / len(m)), len(m))
