"""The Bayesian detector of SynthID-Text: how likely a token's bits are if the token was marked.

Unmarked bits are fair coins. In a marked text, layer l shows a 1 with probability 1/2 + q_l (1/2 − 2^−N),
where q_l is the chance that the N candidates of the match differed. The bits of earlier layers are
informative about it:

    q_l = sigmoid(β_l + Σ_{j<l} δ_lj g_j)

A token's log-likelihood ratio is Σ_l log(1 + (2 g_l − 1) a q_l) with a = 1 − 2^(1−N), and a text's is the sum
over its distinct pairs. β and δ are fitted by maximum likelihood to marked texts alone: the distribution of
unmarked bits is known, so negatives would add nothing.

The p-value: on unmarked text the ratios of distinct pairs are independent, each distributed as that of
``depth`` fair coins, of which a large fixed sample is drawn once. The distribution of a sum of N of them
follows from the saddlepoint formula of Lugannani and Rice, which is accurate far into the tail.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from dewmark.arrays import F64
from dewmark.errors import ArtifactError, InputError
from dewmark.stats.key_test import NOTHING, Statistic, one_sided_p
from dewmark.storage import load_bundle, save_bundle

Bits = NDArray[np.uint8]

_SAMPLE = 1 << 16
_FEWEST = 1000
_RIDGE = 100.0  # a prior standard deviation of 0.1 for each δ


@dataclass(frozen=True, repr=False)
class BayesianDetector:
    """A fitted detector: ``beta`` (depth,), and ``delta`` (depth, depth), nonzero only below its diagonal."""

    beta: F64
    delta: F64
    leaves: int

    def log_ratios(self, bits: Bits) -> F64:
        """Log-likelihood ratios (N,) of pairs with bits (N, depth); larger is more evidence of the mark."""
        ratio, _ = _ratios(self.beta, self.delta, bits, self.leaves)
        total: F64 = np.log(ratio).sum(axis=1)
        return total

    @functools.cached_property
    def null(self) -> SumLaw:
        """The distribution of these ratios on unmarked text."""
        bits = np.random.default_rng(0).integers(0, 2, size=(_SAMPLE, len(self.beta)), dtype=np.uint8)
        ratio, _ = _ratios(self.beta, self.delta, bits, self.leaves)
        sample: F64 = np.log(ratio).sum(axis=1)
        # An error of the mean adds up over a text's tokens, so the mean is estimated with less variance:
        # given the earlier bits, a layer's ratio is 1 ± r with equal probability.
        mean = 0.5 * np.log1p(-((ratio - 1.0) ** 2)).sum(axis=1).mean()
        return SumLaw(sample - sample.mean() + mean)

    @property
    def arrays(self) -> dict[str, F64]:
        """The arrays that a stored detector keeps."""
        return {"beta": self.beta, "delta": self.delta}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], *, depth: int, leaves: int) -> BayesianDetector:
        """The inverse of `arrays`, checked against the tournament's depth."""
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
    def load(cls, folder: Path, *, depth: int, leaves: int) -> BayesianDetector:
        """Read a detector that `save` wrote."""
        bundle = load_bundle(folder)
        if bundle.meta.get("leaves") != leaves:
            raise ArtifactError(
                f"{folder} was fitted to {bundle.meta.get('leaves')} leaves, the tournament has {leaves}; "
                "fit it again"
            )
        return cls.from_arrays(bundle.arrays, depth=depth, leaves=leaves)


class SumLaw:
    """The distribution of a sum of n independent numbers, each distributed as a large sample (M,)."""

    def __init__(self, sample: F64) -> None:
        self._sample = sample
        self.variance = float(sample.var())

    def test(self, total: float, n: int) -> Statistic:
        """P(sum ≥ total) as a p-value, and the z of the same tail."""
        if n == 0:
            return NOTHING
        p_value = self.tail(total, n)
        return Statistic(-float(ndtri(p_value)), p_value, float(n))

    def tail(self, total: float, n: int) -> float:
        """P(sum ≥ total) by Lugannani and Rice; the sample's cumulant function is K(θ) = log mean e^(θx)."""
        low, high = float(self._sample.min()), float(self._sample.max())
        margin = 1e-3 * (high - low)  # at the ends of the sample θ is infinite
        if margin < 1e-6:  # fitted to unmarked texts: every ratio is 1
            return 1.0
        mean = min(max(total / n, low + margin), high - margin)
        theta = self._tilt(mean)
        w2 = 2.0 * n * (theta * mean - self._cumulants(theta)[0])
        if w2 < 1e-4:  # near the mean the formula is 0/0, and the normal distribution is as good
            return one_sided_p((mean - float(self._sample.mean())) * math.sqrt(n / self.variance))
        w = math.copysign(math.sqrt(w2), theta)
        v = theta * math.sqrt(n * self._cumulants(theta)[2])
        density = math.exp(-0.5 * w2) / math.sqrt(2.0 * math.pi)
        return min(max(one_sided_p(w) + density * (1.0 / v - 1.0 / w), 0.0), 1.0)

    def _tilt(self, mean: float) -> float:
        """θ with K'(θ) = mean; K' rises from the sample's minimum to its maximum."""
        from scipy.optimize import brentq  # slow to import, and only this test needs it

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


def fit_detector(bits: Bits, *, leaves: int) -> BayesianDetector:
    """Fit β and δ to the bits (N, depth) of marked tokens, by penalised maximum likelihood."""
    if len(bits) < _FEWEST:
        raise InputError(
            f"the marked texts have {len(bits)} tokens to fit to; give at least {_FEWEST}, or better 20,000"
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
    return BayesianDetector(*unpack(found.x), leaves=leaves)


def _ratios(beta: F64, delta: F64, bits: Bits, leaves: int) -> tuple[F64, F64]:
    """P(g | marked) / P(g | unmarked) per layer, (N, depth), and the slope of its log in β + Σ δ g."""
    g = bits.astype(np.float64)
    q = expit(beta + g @ delta.T)
    signed = (2.0 * g - 1.0) * (1.0 - 2.0 ** (1 - leaves))
    ratio = 1.0 + signed * q
    return ratio, signed * q * (1.0 - q) / ratio
