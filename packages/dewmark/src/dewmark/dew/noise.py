"""Keyed noise given all that a text has already revealed of the key.

At each step the candidates' keyed noise is y = √α u + √β h + √(1−α−β) r, with fresh standard normals r
(`dewmark.dew.reference`). Over keys and r, the y of all steps of a text are jointly normal with variance 1
and, for two different ones,

    Cov(y_i, y_j) = √(α_i α_j) (t_i · t_j)(c_i · c_j) + √(β_i β_j) [q_i = q_j],

where q is the number of a word in its context (`dewmark.dew.form`): two spellings of one word have the same
h. Neighbouring steps make the first part large: their contexts share words, and a word may be a candidate
again. The text so far depends on the y of earlier steps, so they are known, and the next noise is what they
leave open:

    x = (A_nn − BᵀB)^(−1/2) (y_n − Bᵀ L⁻¹ y_p),    B = L⁻¹ A_pn,    A_pp = L Lᵀ,

where p are the noise of earlier steps and n the candidates of this one. x is independent of y_p and standard
normal, so the text follows the host's distribution over keys and r as a whole, not only step by step.

Of each of the last `STEPS` steps with a mark, p holds the likeliest candidates and the one that came first,
`KEPT` in all; what the others have revealed is little. Beyond the `INDEPENDENT` likeliest candidates of this
step each x has mean 0 and variance 1 given y_p, but they are not made independent of one another: unlikely
words of one meaning would win together or not at all. So little of their noise is u, α = `TAIL`, and more h.

**The root** of the second covariance is the symmetric one, which leaves x as close to y as it can be.
A^(−1/2) Y is found by products of matrices alone, which no device has to be waited for. A = K + φI, where K
is a Gram matrix of n vectors of at most the length √(1−φ), and φ the least share of fresh noise, so its
eigenvalues lie between φ and 1 + (n−1)(1−φ). Divided by the upper bound, they are squares σ² of numbers in
[l, 1]. Each round of Newton-Schulz iteration,

    P = ρ(3 − ρ²M)/2,    Y ← P Y,    M ← P M P,    with ρ² = 3 / (1 + l + l²),

takes σ to ρσ(3 − ρ²σ²)/2, which narrows the interval to [l', 1] with l' = ρl(3 − ρ²l²)/2 (the scaling of Chen
and Chow). Once l is 1 up to rounding, M is I and Y has become A^(−1/2) Y. The number of rounds follows from φ
and n: 7 for the default.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from dewmark.cuda.word_race import Mixture, RaceState
from dewmark.dew.form import CLASS_BITS
from dewmark.dew.reference import GAMMA, INDEPENDENT, KEPT, STEPS, TAIL, TAIL_BETA, USED_BETA
from dewmark.dew.word_step import GAIN_KEPT, Aligned
from dewmark.sampling import shifted, splitmix

_LEAST = 1e-3  # a smallest eigenvalue to assume where no noise is fresh; roots of smaller ones are cut
_MARGIN = 1e-3  # of the bounds, for rounding


@dataclass(frozen=True)
class InverseRoot:
    """The constants of the rounds: 1 / the upper bound, l, and their number."""

    scale: float
    least: float
    rounds: int

    @classmethod
    def of(cls, fresh: float, n: int) -> InverseRoot:
        """For covariances of n candidates with this share of fresh noise."""
        scale = 1.0 / ((1.0 + (n - 1) * (1.0 - fresh)) * (1.0 + _MARGIN))
        least = low = math.sqrt(fresh * scale) * (1.0 - _MARGIN)
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
def _inverse_root(fresh: float) -> InverseRoot:
    """For the covariances of a step, of candidates or of remembered noise."""
    return InverseRoot.of(fresh, max(INDEPENDENT, STEPS * KEPT))


def mixture_of(*, alpha: float, beta: float, strength: float) -> Mixture:
    """How keyed and fresh noise are mixed, and what the root of a covariance takes.

    No candidate has more keyed noise than α + β, and without β none has h.
    """
    tail = min(alpha, TAIL)
    tail_beta, used_beta = min(TAIL_BETA, alpha + beta - tail), min(USED_BETA, alpha + beta)
    if not beta:
        tail_beta = used_beta = 0.0
    fresh = max(1.0 - max(alpha + beta, tail + tail_beta, used_beta), _LEAST)
    root = _inverse_root(fresh)
    return Mixture(
        alpha=alpha,
        tail=tail,
        beta=beta,
        tail_beta=tail_beta,
        used_beta=used_beta,
        fresh=fresh,
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


def roots(aligned: Aligned, mixture: Mixture) -> tuple[torch.Tensor, torch.Tensor]:
    """√α and √β of the candidates, the likeliest first, (B, m) each; 0 where one has no u, or no h."""
    likely = torch.arange(aligned.rows.shape[1], device=aligned.rows.device) < mixture.independent
    has_u = aligned.rows > 0
    alpha = torch.where(likely, math.sqrt(mixture.alpha), math.sqrt(mixture.tail)) * has_u
    beta = torch.where(likely, math.sqrt(mixture.beta), math.sqrt(mixture.tail_beta))
    beta = torch.where(has_u, beta, math.sqrt(mixture.used_beta)) * (aligned.pairs != 0)
    return alpha, beta


def form_noise(pairs: torch.Tensor, form: torch.Tensor) -> torch.Tensor:
    """h (B, m) of numbers (B, m) under `FormKey.words` (3,) or (B, 3), float64 (`dewmark.dew.form`)."""
    first, second, message = form.unsqueeze(-1).unbind(-2)
    bits = splitmix(splitmix(pairs + first) ^ second)
    uniform = shifted(bits, CLASS_BITS).to(torch.float64).add_(0.5).mul_(2.0 ** (CLASS_BITS - 64))
    odd = bits & message & ((1 << CLASS_BITS) - 1)
    for half in (8, 4, 2, 1):
        odd = odd ^ (odd >> half)
    sign: torch.Tensor = 1 - 2 * (odd & 1)
    h: torch.Tensor = sign * torch.special.ndtri(uniform)
    return h


def keyed_noise(
    aligned: Aligned,
    uniforms: torch.Tensor,
    form: torch.Tensor,
    shares: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """y (B, m) of the candidates, float64, with √α and √β (B, m); fresh noise where they carry no mark."""
    alpha, beta = (root.double() for root in shares)
    fresh = (1.0 - alpha.square() - beta.square()).clamp_min_(0.0).sqrt_() * torch.special.ndtri(uniforms)
    y: torch.Tensor = alpha * aligned.u + beta * form_noise(aligned.pairs, form) + fresh
    return y


def innovations(
    aligned: Aligned,
    y: torch.Tensor,
    state: RaceState,
    units: torch.Tensor,
    shares: tuple[torch.Tensor, torch.Tensor],
    *,
    mixture: Mixture,
) -> torch.Tensor:
    """x (B, m) of the candidates' noise y (B, m); ``units`` (R + 1, d_T) are the lexicon's vectors."""
    root, n = _inverse_root(mixture.fresh), min(mixture.independent, y.shape[1])
    T, q, (alpha, beta) = aligned.units, aligned.pairs, shares
    begins = aligned.begins.unsqueeze(2)
    alike = (aligned.contexts[:, 0] * aligned.contexts[:, 1]).sum(dim=1)[:, None, None]
    same = torch.where(begins[:, :n] == begins[:, :n].mT, 1.0, alike)
    A = mixture.alpha * _gram(T[:, :n], T[:, :n]) * same
    A += _same_form(q[:, :n], beta[:, :n], q[:, :n], beta[:, :n])
    A.diagonal(dim1=1, dim2=2).fill_(1.0)
    x, spread = y.float(), torch.ones_like(y, dtype=torch.float32)
    if T.device.type != "cpu" or bool(state.past_pairs.any()):  # elsewhere looking would be waiting
        T_p = torch.nn.functional.embedding(state.past_rows, units).float()
        q_p, beta_p = state.past_pairs, state.past_roots
        A_pp = _gram(T_p, T_p) * _gram(state.past_contexts, state.past_contexts)
        A_pp += _same_form(q_p, beta_p, q_p, beta_p)
        A_pp.diagonal(dim1=1, dim2=2).fill_(1.0 + _LEAST * (mixture.fresh <= _LEAST))
        near = _gram(aligned.contexts, state.past_contexts)
        A_np = _gram(T, T_p) * torch.where(begins, near[:, :1], near[:, 1:]) * alpha.unsqueeze(2)
        A_np += _same_form(q, beta, q_p, beta_p)
        L = torch.linalg.cholesky_ex(A_pp).L  # any root of A_pp leaves the same x
        known = torch.cat((A_np.mT, state.past_y.unsqueeze(2)), dim=2)
        B = torch.linalg.solve_triangular(L, known, upper=False)
        B, b = B[..., :-1], B[..., -1:]
        x = x - torch.bmm(B.mT, b).squeeze(2)
        spread = (1.0 - B.square().sum(dim=1)).clamp_min(mixture.fresh).sqrt()
        A = A - torch.bmm(B[..., :n].mT, B[..., :n])
    first = root(A, x[:, :n].unsqueeze(2)).squeeze(2)
    return torch.where(q != 0, torch.cat((first, x[:, n:] / spread[:, n:]), dim=1).double(), y)


def _same_form(
    q: torch.Tensor, beta: torch.Tensor, other_q: torch.Tensor, other_beta: torch.Tensor
) -> torch.Tensor:
    """√(β_i β_j) (B, a, b) where two words have the same h, by their numbers and √β (B, a) and (B, b)."""
    both = beta.unsqueeze(2) * other_beta.unsqueeze(1)
    return both * (q.unsqueeze(2) == other_q.unsqueeze(1))


def _gram(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Products (B, a, b) of vectors (B, a, d) and (B, b, d)."""
    return torch.bmm(left, right.mT.contiguous())  # much faster than without, on an ARM core


def used_candidates(count: int, best: torch.Tensor) -> torch.Tensor:
    """Places (B, KEPT) of the likeliest of ``count`` candidates and of the best one (B, 1); −1 for none."""
    places = torch.arange(KEPT, device=best.device).expand(len(best), KEPT).clone()
    last = min(KEPT, count) - 1
    places[:, last:] = -1
    places[:, last : last + 1] = best.clamp_min(last)
    return places
