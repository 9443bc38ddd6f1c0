"""How many texts a forger needs, from the public spectrum alone.

Notation: σ_a and τ_b are the eigenvalues of units and contexts in unmarked text, v_ab = σ_a τ_b with Σ v = 1,
W_ab the key's standard normals. A marked text of L pairs has M = Σ t cᵀ with mean β L v_ab W_ab and variance
L v_ab per coordinate, so its z over a block S of coordinates that holds the share q of the variance is

    z_S = ⟨M_S, W_S⟩ / ‖M_S‖ ≈ β √(L q).

**One key.** After N pairs the posterior mean of W_ab has the squared correlation

    ρ_ab = x/(1 + x),   x = β² N v_ab,        cos_S² = Σ_S v ρ / Σ_S v ≈ β² N q/D_S  while it is small,

with D_S = (Σ_S v)²/Σ_S v² effective directions. A forger who writes with strength B (B = β is the victim's)
and spends the share f of it on S reaches z_S = B √(L f) · cos_S. It passes a threshold z* in half of its
texts at cos_S = z*/(B √(L f)), that is, after about

    N = D_S z*²/(q f β² B² L) pairs,    N/L = D_S z*²/(q f z⁴ (B/β)²) texts,    z = β√L the victim's.

So a mark (or a text) twice as strong is learned from a sixteenth of the texts. A head-and-tail test only
changes D_S: the forger puts f on the tail.

**A ring.** R members, a fresh one for every text: a forger who is told which texts share a member needs R
times as many. One who is not must first find them. Two texts of one member have the correlation z²/D, those
of different members 0 ± 1/√D, so spectral clustering of N texts separates R members from about

    N = R² D / z⁴  texts,

and where z²/√D exceeds √(2 ln N), two texts of one member simply find each other. So do not count on the
search. A forger who is told picks the member of which he has most texts: among N texts of random members,
some member has n of them with probability 1/2 when the expected number of such members,
R P(Poisson(N/R) ≥ n), is ln 2 (`texts_for_group`).

**Signs.** If the members are W_m = D_a W D_b for G *public* sign patterns, a text can be brought to the signs
of any other by trying all G: the right ones stand out if z_i z_j/√D exceeds √(2 ln G), and a group that has
begun to grow soon does. Then all texts teach one W: members made by public signs do not count. In a basis
that the key rotates nobody else knows the signs, and they are members like any others.

Boundary: closed forms; a test checks them by simulation.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F64


def effective_directions(variances: NDArray[np.floating]) -> float:
    """D = (Σ v)²/Σ v²."""
    return float(variances.sum() ** 2 / np.square(variances).sum())


def cosine_after(variances: F64, pairs: float, *, tilt: float) -> float:
    """The correlation of estimated and true scores on a block (any shape), after a number of marked pairs.

    ``variances`` are relative to all coordinates, whose sum is 1.
    """
    x = tilt * tilt * pairs * variances
    return math.sqrt(float((variances * x / (1.0 + x)).sum() / variances.sum()))


def forged_z(
    variances: F64, texts: float, *, z: float, length: float, power: float = 1.0, share: float = 1.0
) -> float:
    """The expected z of forged texts on a block, from a number of texts of ``length`` pairs with mean ``z``.

    ``power`` is the forger's strength relative to the victim's, ``share`` what it spends on the block.
    """
    learned = cosine_after(variances, texts * length, tilt=z / math.sqrt(length))
    return power * z * math.sqrt(share) * learned


def texts_needed(
    variances: F64,
    *,
    threshold: float,
    z: float,
    length: float,
    power: float = 1.0,
    share: float = 1.0,
    ring: int = 1,
) -> float:
    """The number of texts at which half of the forgeries exceed ``threshold`` on a block; inf if never.

    In a ring the forger is told which texts share a member.
    """
    low, high = 1e-6, 1e12

    def reached(texts: float) -> bool:
        return forged_z(variances, texts, z=z, length=length, power=power, share=share) >= threshold

    if not reached(high):
        return math.inf
    while high / low > 1.0 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if reached(middle) else (middle, high)
    return ring * high


def cluster_texts(variances: F64, *, ring: int, z: float) -> float:
    """The number of texts from which members can be told apart at all, R² D/z⁴."""
    return ring**2 * effective_directions(variances) / z**4


def aligned_pairs(variances: F64, *, z: float, messages: int) -> float:
    """z²/√D over √(2 ln G): above 1 two texts reveal their relative signs under a public group of G."""
    return z * z / math.sqrt(effective_directions(variances)) / math.sqrt(2.0 * math.log(messages))
