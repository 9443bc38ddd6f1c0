"""The green-list mark of transformers (``WatermarkingConfig``), with its seeds and its random permutations.

After a context with a seed, the first ⌊γV⌋ ids of ``torch.randperm(V)`` under that seed are green:

- ``lefthash``: seed = key · last id (whatever the context width);
- ``selfhash``: with a table π of a keyed permutation of 1,000,003 numbers, and the window of h ids that ends
  with the candidate, seed = min over the window of key · (π + 1) · (π of the candidate + 1). Only the 40
  likeliest candidates can be green.

The authors' own code (lm-watermarking) writes the same marks, ``lefthash`` as it is and ``selfhash`` with a
table that is not keyed: set ``table_seed`` to 2971215073, and ``context_width`` to 4.

torch draws other permutations on a GPU than on a CPU: ``device`` is the device that the text was written on.
Contexts include the prompt; without it, the first tokens are not scored. Transformers' detector counts every
n-gram, by default also repeated ones, and approximates the normal tail; here each pair of seed and token
counts once, and the distribution of their number is exact.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F64, I64
from dewmark.mark import Session
from dewmark.models.devices import torch_device
from dewmark.scheme import Needs
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.verdict import DEFAULT_FPR
from dewmark_lab.schemes.engines.engine_scheme import EngineBound, EngineScheme, IdWindows, first_rows
from dewmark_lab.schemes.independent_sums import binomial_test

_TABLE = 1_000_003
_CANDIDATES = 40  # that selfhash looks at
_CACHED = 4096


class BoundTransformersKGW(EngineBound):
    """The mark under one key. A token scores 1 − γ if it is green and −γ if not."""

    tests = ("binomial",)
    reads_prompt = True
    scheme: TransformersKGW

    def prepare(self) -> None:
        self._device = torch_device(self.scheme.device)
        self.width = self.scheme.context_width
        self.green_ids = int(self.host.vocab_size * self.scheme.greenlist_ratio)
        self.share = self.green_ids / self.host.vocab_size
        self.variance = self.share * (1.0 - self.share)
        self.green = functools.lru_cache(_CACHED)(self._green)

    @functools.cached_property
    def table(self) -> I64:
        """The keyed permutation of selfhash."""
        given = self.scheme.table_seed
        source = torch.Generator(self._device).manual_seed(self.numbers[0] if given is None else given)
        return torch.randperm(_TABLE, generator=source, device=self._device).cpu().numpy()

    def _green(self, seed: int) -> NDArray[np.bool_]:
        """Which ids are green under a seed, (vocab,)."""
        source = torch.Generator(self._device).manual_seed(seed % (2**64 - 1))
        order = torch.randperm(self.host.vocab_size, generator=source, device=self._device).cpu()
        green = np.zeros(self.host.vocab_size, dtype=bool)
        green[order[: self.green_ids].numpy()] = True
        return green

    def seeds(self, contexts: I64, tokens: I64) -> I64:
        """The seeds (N,) of windows (N, h) before tokens (N,)."""
        key = np.int64(self.numbers[0])
        if self.scheme.seeding_scheme == "lefthash":
            return key * contexts[:, -1]
        windows = np.column_stack((contexts, tokens))[:, -self.width :]
        ranks = self.table[windows % _TABLE] + 1
        least: I64 = (key * ranks * ranks[:, -1:]).min(axis=1)
        return least

    def open_session(self, windows: IdWindows, seeds: Sequence[int]) -> Session:
        return _ListSession(windows, self)

    def scored(self, contexts: I64, tokens: I64, before: int) -> I64:
        self_hashed = self.scheme.seeding_scheme == "selfhash"
        unknown = max(self.width - self_hashed - before, 0)
        if not before and len(tokens) and int(tokens[0]) in self.host.tokenizer.special_ids:
            unknown += 1  # transformers' detector drops a leading BOS
        pairs = np.column_stack((self.seeds(contexts, tokens), tokens))[unknown:]
        first = first_rows(pairs) + unknown
        return first[tokens[first] < self.host.vocab_size]

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """1 − γ if green, −γ if not, (N,)."""
        seeds = self.seeds(contexts, tokens).tolist()
        green = [self.green(seed)[token] for seed, token in zip(seeds, tokens.tolist(), strict=True)]
        return np.array(green, dtype=np.float64) - self.share

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """The exact distribution of the number of green tokens."""
        return binomial_test(evidence, share=self.share)


@dataclass(frozen=True)
class TransformersKGW(EngineScheme):
    """The mark of ``WatermarkingConfig``."""

    name: ClassVar[str] = "transformers-kgw"
    summary: ClassVar[str] = "transformers' own green-list mark (WatermarkingConfig)"
    needs: ClassVar[Needs] = Needs(final_distribution=True)
    key_bits: ClassVar[int] = 31  # products with ids must not leave 64 bits
    bound = BoundTransformersKGW

    greenlist_ratio: Annotated[float, "in (0, 1)"] = 0.25
    """Share γ of the vocabulary that is green."""
    bias: float = 2.0
    """Bias added to green logits."""
    seeding_scheme: Literal["lefthash", "selfhash"] = "lefthash"
    """What the green list depends on besides the key."""
    context_width: Annotated[int, "at least 1"] = 1
    """Number of ids in the window."""
    table_seed: int | None = None
    """Seed of the table of selfhash; by default the key, as in transformers."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device on which the text was written: torch's permutations differ between devices."""


class _ListSession(Session):
    unbiased = False

    def __init__(self, windows: IdWindows, bound: BoundTransformersKGW) -> None:
        self._windows, self._bound = windows, bound

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with the bias added to green tokens, once there is a whole window of ids."""
        bound = self._bound
        if input_ids.shape[1] < bound.width:
            return scores
        contexts = self._windows(input_ids, scores).cpu().numpy()
        if bound.scheme.seeding_scheme == "lefthash":
            seeds = bound.seeds(contexts, np.zeros(len(contexts), dtype=np.int64)).tolist()
            green = np.stack([bound.green(seed) for seed in seeds])
        else:
            likely = scores.topk(min(_CANDIDATES, scores.shape[1]), dim=1).indices.cpu().numpy()
            green = np.zeros(scores.shape, dtype=bool)
            for row, (context, ids) in enumerate(zip(contexts, likely, strict=True)):
                seeds = bound.seeds(np.broadcast_to(context, (len(ids), len(context))), ids).tolist()
                green[row, [i for i, seed in zip(ids, seeds, strict=True) if bound.green(seed)[i]]] = True
        return scores + bound.scheme.bias * torch.from_numpy(green).to(scores)
