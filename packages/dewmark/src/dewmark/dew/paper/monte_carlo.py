"""The key test by simulation: score the same text under simulated keys and rank the real one among them.

Under H0 the real key is exchangeable with fresh ones, so among K of them

    p = (1 + #{k : S_k ≥ S}) / (K + 1)

is an exactly valid p-value for every n, γ and text: no normality, no series, no limit. It is the oracle
against which the closed form is tested.

**How many keys.** Keys are drawn until either `ENOUGH` of them have scored as high as the real one or
`most_keys` of them are drawn (Besag and Clifford, 1991): p = `ENOUGH`/l if the l-th key was the last of
`ENOUGH`, else as above. This is exactly valid too, and every level can be reached.

**Which keys.** For Gaussian projections the projected rows X = ÊR are normal over keys with row covariance
ÊÊᵀ, so with AAᵀ = ÊÊᵀ and standard normal N the rows of A N have exactly the same distribution. For
orthogonal projections the same holds with blocks of orthonormal rows in place of N. A has as many columns as
the text has distinct tokens (or contexts), which is less work than drawing keys. Labels, which carry no
semantics, are independent: A = I.

The simulated keys follow from a secret and the text: the same text always gets the same p-value from one
detector, and nobody else can search for one whose keys score low.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable, Iterator

import numpy as np

from dewmark.arrays import F32, F64, I64
from dewmark.core.projections import Kind
from dewmark.stats.evidence import Evidence, Factor
from dewmark.stats.key_test import NOTHING, TINY, Statistic, score_variance

Score = Callable[[F64], F64]

ENOUGH = 20  # simulated keys that score as high as the real one settle a p-value to about a fifth of itself
FEWEST_KEYS = 999
_PER_LEVEL = 2  # a marked text then has p ≤ level even if one simulated key scores as high


def most_keys(level: float) -> int:
    """The number of simulated keys after which a p-value at or below ``level`` is possible, with a margin."""
    return max(FEWEST_KEYS, math.ceil(_PER_LEVEL / level) - 1)


def monte_carlo_test(
    evidence: Evidence, score: Score, *, n: int, secret: bytes, kind: Kind = "gaussian", level: float = 0.01
) -> Statistic:
    """Rank a text's sum among those of simulated keys; ``score`` maps alignments to scores.

    ``secret`` and the text determine the simulated keys. z and the effective length are the closed form's.
    """
    if len(evidence) == 0:
        return NOTHING
    variance = score_variance(evidence)
    if variance <= TINY:
        return NOTHING
    simulated = simulated_sums(evidence, score, n=n, kind=kind, secret=secret)
    higher, keys = 0, most_keys(level)
    p_value = None
    for drawn in range(1, keys + 1):
        higher += next(simulated) >= evidence.total
        if higher == ENOUGH:
            p_value = ENOUGH / drawn
            break
    return Statistic(
        z=evidence.total / math.sqrt(variance),
        p_value=(1 + higher) / (keys + 1) if p_value is None else p_value,
        effective_length=evidence.effective_length(variance),
    )


def simulated_sums(
    evidence: Evidence, score: Score, *, n: int, secret: bytes, kind: Kind = "gaussian"
) -> Iterator[float]:
    """The text's sum under one simulated key after another, without end."""
    # 1. a seed from the secret and the parts of the evidence that do not depend on the key
    digest = hmac.new(secret, digestmod=hashlib.sha256)
    for array in (evidence.T, evidence.C, evidence.weights):
        digest.update(np.ascontiguousarray(array).tobytes())
    rng = np.random.default_rng(list(np.frombuffer(digest.digest(), dtype=np.uint32)))
    # 2. fresh keys
    tokens, t = _side(evidence.T)
    contexts, c = _side(evidence.C)
    d_T, d_C = (n if side.ndim == 1 else int(side.shape[1]) for side in (evidence.T, evidence.C))
    while True:
        P_T = _project(tokens, d_T, n, kind, rng)
        P_C = _project(contexts, d_C, n, kind, rng)
        u = math.sqrt(n) * np.einsum("ij,ij->i", P_T[t], P_C[c], dtype=np.float64)
        yield float(evidence.weights @ score(u))


def _side(factor: Factor) -> tuple[F32 | int, I64]:
    """A (N, r) with AAᵀ the Gram matrix of distinct rows (or the number of labels), and each pair's row."""
    if factor.ndim == 1:
        labels, index = np.unique(factor, return_inverse=True)
        return len(labels), index
    rows, index = np.unique(factor, axis=0, return_inverse=True)
    if len(rows) >= rows.shape[1]:
        return np.asarray(rows, dtype=np.float32), index
    values, vectors = np.linalg.eigh(rows.astype(np.float64) @ rows.T.astype(np.float64))
    kept = values > 1e-9
    return (vectors[:, kept] * np.sqrt(values[kept])).astype(np.float32), index


def _project(side: F32 | int, d: int, n: int, kind: Kind, rng: np.random.Generator) -> F32:
    """Unit rows of A N for fresh N, (N, n)."""
    if isinstance(side, int):
        projected = rng.standard_normal((side, n), dtype=np.float32)
    elif kind == "gaussian":
        projected = side @ rng.standard_normal((side.shape[1], n), dtype=np.float32)
    else:
        blocks = []
        for _ in range(n // d):  # uniform random matrices (r, d) with orthonormal rows
            q, r = np.linalg.qr(rng.standard_normal((d, side.shape[1])))
            blocks.append(np.asarray((q * np.sign(np.diag(r))).T, dtype=np.float32))
        projected = side @ np.concatenate(blocks, axis=1)
    projected /= np.linalg.norm(projected, axis=1, keepdims=True)
    return projected
