"""How far a mark moves the distribution of the next token, under one key and averaged over keys.

The texts are given (unmarked ones), so every scheme and key is measured at the same places. With p the host's
distribution at a step after temperature and filters, p₀ the same without filters, and q_K the distribution
from which the scheme draws under key K:

- *under one key*: KL(q_K‖p₀) − KL(p‖p₀), in nats. Where the mark stays inside the filters this is KL(q_K‖p);
  unlike that, it stays finite where a bias lets other tokens through them.
- *of the key average*: ½ Σ (q_K − p)(q_L − p)/p, averaged over pairs of different keys. It is an unbiased
  estimate of ½ χ²(E q‖p) ≈ KL(E q‖p) from any number of keys: 0 for a scheme whose choice, averaged over
  keys, is a draw from the host's own distribution.

A bias has a q_K in closed form. For keyed sampling q_K is the distribution of the winner over the fresh
randomness, estimated from ``draws`` races; the entropy's bias is corrected (Miller and Madow). Tokens beyond
the ``cells`` likeliest count as one, so both figures are lower bounds. Boundary: a host, bound schemes and
texts in, a `Divergence` out; schemes that choose between drafts of sentences have no steps to measure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dewmark.arrays import F64
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, InputError
from dewmark.stats.rates import Interval
from dewmark_lab.metrics import mean_interval

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from dewmark.sampling import Session
    from dewmark.scheme import BoundScheme
    from dewmark.workspace import HostInfo

DRAWS = 128
CELLS = 64


class LogitsModel(Protocol):
    """A language model that computes logits of given texts (`dewmark.hosts.base.Host`)."""

    @property
    def info(self) -> HostInfo:
        """The host's description."""

    def next_logits(
        self, prompts: Sequence[str], completions: Sequence[Sequence[int]]
    ) -> Iterator[torch.Tensor]:
        """For each completion of L ids the logits (L, vocab)."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Nats per step, averaged over texts: one figure per key, and that of the average over keys.

    The interval of the average is over texts. ``steps`` counts the places of all texts.
    """

    per_key: tuple[float, ...]
    of_average: Interval
    steps: int

    @property
    def mean(self) -> float:
        """The divergence under one key, averaged over keys."""
        return float(np.mean(self.per_key))

    @property
    def keys_sd(self) -> float:
        """Its standard deviation over keys."""
        return float(np.std(self.per_key, ddof=1))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**dataclasses.asdict(self), "mean": self.mean, "keys_sd": self.keys_sd}


def divergence(
    host: LogitsModel,
    schemes: Sequence[BoundScheme],
    prompts: Sequence[str],
    texts: Sequence[str],
    *,
    decoding: Decoding,
    steps: int = 64,
    draws: int = DRAWS,
    cells: int = CELLS,
) -> Divergence:
    """Measure a scheme, bound to two or more keys, over the first ``steps`` tokens of each text."""
    if len(schemes) < 2 or len(texts) < 2:
        raise InputError(
            f"divergence needs two keys and two texts at least, got {len(schemes)} and {len(texts)}"
        )
    if schemes[0].needs.drafts:
        raise ConfigError(f"{schemes[0].scheme.name} chooses between drafts: its steps have no distribution")
    decoding.check_samples()
    encoded = host.info.tokenizer.encode([*prompts, *texts])
    begun = [list(each.ids) for each in encoded[: len(prompts)]]
    ids = [list(each.ids[:steps]) for each in encoded[len(prompts) :]]
    per_key, averages, count = [], [], 0
    for prompt, written, logits in zip(begun, ids, host.next_logits(prompts, ids), strict=True):
        if not written:
            continue
        grid = _Cells.of(logits.float(), decoding, cells)
        found = [_marked(each, prompt, written, grid, decoding, draws) for each in schemes]
        per_key.append([grid.excess(q, estimated_by) for q, estimated_by in found])
        averages.append(grid.average(np.stack([q for q, _ in found])))
        count += len(written)
    return Divergence(tuple(np.mean(per_key, axis=0).tolist()), mean_interval(averages), count)


@dataclass(frozen=True)
class _Cells:
    """The host's distributions at the L steps of a text, over ``cells`` tokens and the rest.

    ``logits`` (L, vocab) are the host's; ``cell`` (L, vocab) numbers each token's cell; ``p`` and
    ``unfiltered`` (L, cells + 1) are the distributions with and without filters.
    """

    logits: torch.Tensor
    cell: torch.Tensor
    p: F64
    unfiltered: F64

    @classmethod
    def of(cls, logits: torch.Tensor, decoding: Decoding, cells: int) -> _Cells:
        import torch

        from dewmark.sampling import warp

        top = logits.topk(min(cells, logits.shape[1] - 1), dim=-1).indices
        cell = torch.full(logits.shape, top.shape[1], dtype=torch.long, device=logits.device)
        cell.scatter_(1, top, torch.arange(top.shape[1], device=logits.device).expand_as(top))
        p, unfiltered = (
            _pooled(each.softmax(dim=-1), cell, top.shape[1])
            for each in (warp(logits, decoding), logits / decoding.temperature)
        )
        return cls(logits, cell, p, unfiltered)

    def pooled(self, probabilities: torch.Tensor, step: int) -> F64:
        """Probabilities (vocab,) at a step, by cell (cells + 1,)."""
        cell = self.cell[step : step + 1].to(probabilities.device)
        found: F64 = _pooled(probabilities[None], cell, self.p.shape[1] - 1)[0]
        return found

    def excess(self, q: F64, draws: int) -> float:
        """KL(q‖p₀) − KL(p‖p₀) of q (L, cells + 1), mean over steps; q comes from so many draws if not 0."""
        plain, moved = (_relative_entropy(each, self.unfiltered) for each in (self.p, q))
        if draws:
            # the entropy of observed shares is too small by (outcomes − 1) / (2 draws)
            moved = moved - ((q > 0.0).sum(axis=1) - 1) / (2.0 * draws)
        return float(np.mean(moved - plain))

    def average(self, marked: F64) -> float:
        """The estimate for the key average from marked (keys, L, cells + 1), mean over steps."""
        likeliest = np.arange(len(self.p)), self.p.argmax(axis=1)
        kept = (self.unfiltered[likeliest] / self.p[likeliest])[:, None]  # share that the filters keep
        reference = np.where(self.p > 0.0, self.p, self.unfiltered / kept)
        change, keys = marked - self.p, len(marked)
        products = (change.sum(axis=0) ** 2 - (change**2).sum(axis=0)) / (keys * (keys - 1))
        return float(0.5 * np.mean((products / np.maximum(reference, 1e-12)).sum(axis=1)))


def _pooled(probabilities: torch.Tensor, cell: torch.Tensor, cells: int) -> F64:
    found = probabilities.new_zeros((len(probabilities), cells + 1)).scatter_add_(1, cell, probabilities)
    pooled: F64 = found.double().cpu().numpy()
    return pooled


def _relative_entropy(left: F64, right: F64) -> F64:
    """KL(left‖right) of each row, nats."""
    ratio = np.log(np.maximum(left, 1e-300)) - np.log(np.maximum(right, 1e-300))
    total: F64 = np.where(left > 0.0, left * ratio, 0.0).sum(axis=1)
    return total


def _marked(
    bound: BoundScheme, prompt: list[int], written: list[int], grid: _Cells, decoding: Decoding, draws: int
) -> tuple[F64, int]:
    """q_K of every step, (L, cells + 1), and the number of draws that estimated it, 0 if it is exact."""
    import torch

    from dewmark.sampling import ChoosingSession, warp

    line = torch.tensor([prompt + written], dtype=torch.long, device=grid.logits.device)
    start, final = len(prompt), bound.needs.final_distribution

    def opened(rows: int) -> Session:
        begun = line[:, :start].expand(rows, -1)
        return bound.session(begun, torch.ones_like(begun), seeds=list(range(rows)))

    session = opened(1)
    rows = draws if isinstance(session, ChoosingSession) else 1
    session = opened(rows) if rows > 1 else session
    found = []
    for step in range(len(written)):
        seen = line[:, : start + step].expand(rows, -1)
        scores = grid.logits[step].expand(rows, -1).clone()
        if isinstance(session, ChoosingSession):
            chosen, _ = session.choose(seen, scores, decoding)
            q = torch.bincount(chosen, minlength=scores.shape[1]).float() / rows
        elif final:
            q = session(seen, warp(scores, decoding))[0].float().softmax(dim=-1)
        else:
            q = warp(session(seen, scores), decoding)[0].float().softmax(dim=-1)
        found.append(grid.pooled(q, step))
    return np.stack(found), rows if isinstance(session, ChoosingSession) else 0
