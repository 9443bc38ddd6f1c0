"""Keyed noise given all that a text has already revealed of the key.

At each step the candidates' keyed noise is y = √α u + √(1−α) r, with fresh standard normals r. Over keys and
r, the y of all steps of a text are jointly normal with variance 1 and, for two different ones,

    Cov(y_i, y_j) = α (t_i · t_j)(c_i · c_j),

which neighbouring steps make large: their contexts share words, and a word may be a candidate again. The text
so far depends on the y of earlier steps, so they are known, and the next noise is what they leave open:

    x = (A_nn − BᵀB)^(−1/2) (y_n − Bᵀ A_pp^(−1/2) y_p),    B = A_pp^(−1/2) A_pn,

where p are the noise of earlier steps and n the candidates of this one. x is independent of y_p and standard
normal, so the text follows the host's distribution over keys and r as a whole, not only step by step.

Of each of the last `STEPS` steps with a mark, p holds the likeliest candidates and the one that came first,
`KEPT` in all; what the others have revealed is little. Beyond the `INDEPENDENT` likeliest candidates of this
step each x has mean 0 and variance 1 given y_p, but they are not made independent of one another: unlikely
words of one meaning would win together or not at all. So their noise is mostly fresh, α = `TAIL`.

**The root.** A^(−1/2) Y is found by products of matrices alone, which no device has to be waited for.
A = αK + (1−α)I, where K is a Gram matrix of n unit vectors, so its eigenvalues lie between 1−α and 1+(n−1)α.
Divided by the upper bound, they are squares σ² of numbers in [l, 1]. Each round of Newton-Schulz iteration,

    P = ρ(3 − ρ²M)/2,    Y ← P Y,    M ← P M P,    with ρ² = 3 / (1 + l + l²),

takes σ to ρσ(3 − ρ²σ²)/2, which narrows the interval to [l', 1] with l' = ρl(3 − ρ²l²)/2 (the scaling of Chen
and Chow). Once l is 1 up to rounding, M is I and Y has become A^(−1/2) Y. The
number of rounds follows from α and n: 7 for the default.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from dewmark.cuda.word_race import Mixture, RaceState
from dewmark.dew.reference import GAMMA, INDEPENDENT, KEPT, STEPS, TAIL
from dewmark.dew.word_step import GAIN_KEPT, Aligned

_LEAST = 1e-3  # a smallest eigenvalue to assume where α is 1; roots of smaller ones are cut
_MARGIN = 1e-3  # of the bounds, for rounding


@dataclass(frozen=True)
class InverseRoot:
    """The constants of the rounds: 1 / the upper bound, l, and their number."""

    scale: float
    least: float
    rounds: int

    @classmethod
    def of(cls, alpha: float, n: int) -> InverseRoot:
        """For A = αK + (1−α)I of n unit vectors."""
        scale = 1.0 / ((1.0 + (n - 1) * alpha) * (1.0 + _MARGIN))
        least = low = math.sqrt(max(1.0 - alpha, _LEAST) * scale) * (1.0 - _MARGIN)
        rounds = 0
        while low < 1.0 - 1e-7:
            a, b = _factors(low)
            low, rounds = low * (a + b * low * low), rounds + 1
        return cls(scale, least, rounds)

    def __call__(self, A: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
        """A^(−1/2) Y of matrices A (batch, n, n) and Y (batch, n, q), float32."""
        M, low = A * self.scale, self.least
        identity = torch.eye(A.shape[1], dtype=A.dtype, device=A.device)
        for i in range(self.rounds):
            a, b = _factors(low)
            P = torch.add(a * identity, M, alpha=b)
            Y = torch.bmm(P, Y)  # on a CPU half the time of @, which looks at shapes first
            if i + 1 < self.rounds:
                M = torch.bmm(torch.bmm(P, M), P)
            low *= a + b * low * low
        return Y * math.sqrt(self.scale)


def _factors(low: float) -> tuple[float, float]:
    """a and b of P = aI + bM."""
    square = 3.0 / (1.0 + low + low * low)
    return 1.5 * math.sqrt(square), -0.5 * math.sqrt(square) * square


@functools.cache
def _inverse_root(alpha: float) -> InverseRoot:
    """For the covariances of a step, of candidates or of remembered noise."""
    return InverseRoot.of(alpha, max(INDEPENDENT, STEPS * KEPT))


def mixture_of(*, alpha: float, strength: float) -> Mixture:
    """How keyed and fresh noise are mixed, and what the root of a covariance takes."""
    root = _inverse_root(alpha)
    return Mixture(
        alpha=alpha,
        tail=min(alpha, TAIL),
        strength=strength,
        gamma=GAMMA,
        independent=INDEPENDENT,
        steps=STEPS,
        kept=KEPT,
        gain_kept=GAIN_KEPT,
        scale=root.scale,
        least=root.least,
        rounds=root.rounds,
    )


def roots(m: int, *, alpha: float, device: torch.device) -> torch.Tensor:
    """√α of m candidates, the likeliest first, (m,)."""
    tail = math.sqrt(min(alpha, TAIL))
    return torch.where(torch.arange(m, device=device) < INDEPENDENT, math.sqrt(alpha), tail)


def keyed_noise(aligned: Aligned, uniforms: torch.Tensor, *, alpha: float) -> torch.Tensor:
    """y (B, m) of the candidates, float64; fresh noise where they carry no mark."""
    fresh = torch.special.ndtri(uniforms)
    root = roots(fresh.shape[1], alpha=alpha, device=fresh.device).double()
    return torch.where(aligned.rows > 0, root * aligned.u + (1.0 - root.square()).sqrt() * fresh, fresh)


def innovations(
    aligned: Aligned, y: torch.Tensor, state: RaceState, units: torch.Tensor, *, alpha: float
) -> torch.Tensor:
    """x (B, m) of the candidates' noise y (B, m); ``units`` (R + 1, d_T) are the lexicon's vectors."""
    root, n = _inverse_root(alpha), min(INDEPENDENT, y.shape[1])
    marked, T = aligned.rows > 0, aligned.units
    begins = aligned.begins.unsqueeze(2)
    alike = (aligned.contexts[:, 0] * aligned.contexts[:, 1]).sum(dim=1)[:, None, None]
    same = torch.where(begins[:, :n] == begins[:, :n].mT, 1.0, alike)
    A = alpha * _gram(T[:, :n], T[:, :n]) * same
    A.diagonal(dim1=1, dim2=2).fill_(1.0)
    x, spread = y.float(), torch.ones_like(y, dtype=torch.float32)
    if T.device.type != "cpu" or bool(state.past_rows.any()):  # elsewhere looking would be waiting
        T_p = torch.nn.functional.embedding(state.past_rows, units).float()
        A_pp = _gram(T_p, T_p) * _gram(state.past_contexts, state.past_contexts)
        A_pp.diagonal(dim1=1, dim2=2).fill_(1.0)
        near = _gram(aligned.contexts, state.past_contexts)
        A_np = _gram(T, T_p) * torch.where(begins, near[:, :1], near[:, 1:])
        A_np *= roots(y.shape[1], alpha=alpha, device=T.device).unsqueeze(1)
        B = root(A_pp, torch.cat((A_np.mT, state.past_y.unsqueeze(2)), dim=2))
        B, b = B[..., :-1], B[..., -1:]
        x = x - torch.bmm(B.mT, b).squeeze(2)
        spread = (1.0 - B.square().sum(dim=1)).clamp_min(max(1.0 - alpha, 1e-3)).sqrt()
        A = A - torch.bmm(B[..., :n].mT, B[..., :n])
    first = root(A, x[:, :n].unsqueeze(2)).squeeze(2)
    return torch.where(marked, torch.cat((first, x[:, n:] / spread[:, n:]), dim=1).double(), y)


def _gram(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Products (B, a, b) of vectors (B, a, d) and (B, b, d)."""
    return torch.bmm(left, right.mT.contiguous())  # much faster than without, on an ARM core


def used_candidates(values: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
    """Places (B, KEPT) of the likeliest candidates and of the best one (B, 1); −1 where one cannot be drawn.

    ``values`` (B, m) are their logits, the likeliest first.
    """
    count = min(KEPT, values.shape[1])
    places = torch.arange(count, device=values.device).expand(len(values), count).clone()
    places[:, -1:] = torch.where(best < count, count - 1, best)
    return places.masked_fill(~torch.isfinite(values.gather(1, places)), -1)
