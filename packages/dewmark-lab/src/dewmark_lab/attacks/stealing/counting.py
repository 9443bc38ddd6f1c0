"""Stealing by counting (Jovanović et al. 2024): tokens that follow a context more often in marked text.

At every position of every observed text, the next token is counted under each subset of the h preceding
tokens, ignoring their order. With the same counts from base text, each (context, token) pair gets a boost in
[0, 1]:

    ratio = P_marked(token | context) / P_base(token | context),   the context's largest if base lacks it
    boost = 0 if ratio < 1 or the marked count is too small, else min(ratio, clip) / clip.

During generation, a token's boost is the weighted mean of three: in the full context, in the context of the
strongest single token, and in the empty context. A token S is the strongest if, for every other token R of
the context, the boosts after {S, R} are closer (in cosine) to those after {S} than to those after {R}.

A context is one 64-bit number, the sum of its tokens' random codes: any two of a few million contexts
collide with probability about 10⁻⁶.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark import config
from dewmark.arrays import F32, F64, I64
from dewmark.errors import ConfigError, InputError

_TIE = 1e-4


@dataclass(frozen=True)
class CountRules:
    """What counts as evidence, and the weights of the three terms."""

    h: Annotated[int, "in [1, 8]"] = 3
    """Context length: how many preceding tokens are used."""
    min_count: Annotated[int, "at least 1"] = 2
    """Smallest count in marked text at which a (context, token) pair gets a boost."""
    min_share: Annotated[float, "in [0, 1)"] = 7e-5
    """The same for the empty context, as a share of all base tokens."""
    clip: float = 2.0
    """Larger ratios count as this one."""
    full_weight: Annotated[float, "positive"] = 2.0
    single_weight: Annotated[float, "at least 0"] = 1.0
    empty_weight: Annotated[float, "at least 0"] = 0.5

    def __post_init__(self) -> None:
        for name, value in config.coerced(self).items():
            object.__setattr__(self, name, value)
        if not self.clip > 1.0:
            raise ConfigError(f"clip must be above 1, got {self.clip}")


@dataclass(frozen=True)
class Counts:
    """How often each token followed each context.

    All arrays are (P,), one entry per distinct pair: the pair's code (``pairs``, ascending), its context's
    code, its token, and its count.
    """

    pairs: I64
    contexts: I64
    tokens: I64
    counts: I64

    def of(self, pairs: I64) -> I64:
        """The counts (N,) of the given pairs (N,); 0 if a pair never occurred."""
        place = np.minimum(np.searchsorted(self.pairs, pairs), len(self.pairs) - 1)
        return np.where(self.pairs[place] == pairs, self.counts[place], 0)

    def totals(self) -> tuple[I64, I64]:
        """The distinct contexts in ascending order, and how many tokens followed each."""
        contexts, inverse = np.unique(self.contexts, return_inverse=True)
        return contexts, np.bincount(inverse, weights=self.counts).astype(np.int64)


def token_codes(vocab_size: int) -> I64:
    """A random 64-bit number per token, the same in every process."""
    return np.random.default_rng(0x5EED).integers(-(2**63), 2**63 - 1, size=vocab_size, dtype=np.int64)


def count_contexts(texts: Sequence[Sequence[int]], *, h: int, vocab_size: int) -> Counts:
    """Count the tokens of texts (token ids) under all 2^h subsets of the h preceding tokens."""
    codes = token_codes(vocab_size)
    places = [chosen for size in range(h + 1) for chosen in itertools.combinations(range(h), size)]
    contexts: list[I64] = []
    tokens: list[I64] = []
    for text in texts:
        ids = np.asarray(text, dtype=np.int64)
        ids = ids[ids < vocab_size]  # a tokenizer may know ids that the host has no logits for
        if len(ids) <= h:
            continue
        before = np.lib.stride_tricks.sliding_window_view(codes[ids], h)[:-1]  # wraps modulo 2^64
        contexts += [before[:, place].sum(axis=1) for place in places]
        tokens += [ids[h:]] * len(places)
    if not contexts:
        raise InputError(f"no text has more than h = {h} tokens: give longer texts or a smaller h")
    of, after = np.concatenate(contexts), np.concatenate(tokens)
    # multiplying by an odd number scrambles the token's code, so that {a} → b differs from {b} → a
    mixed = of + codes[after] * 0x2545F4914F6CDD1D
    pairs, first, counts = np.unique(mixed, return_index=True, return_counts=True)
    return Counts(pairs, of[first], after[first], counts)


class StolenBoosts:
    """The learned boosts: ``contexts`` (U,) ascending; context i owns entries ``starts[i]:starts[i + 1]``."""

    def __init__(
        self, contexts: I64, starts: I64, tokens: I64, values: F32, *, rules: CountRules, vocab_size: int
    ) -> None:
        self.contexts, self.starts, self.tokens, self.values = contexts, starts, tokens, values
        self.rules, self.vocab_size = rules, vocab_size
        self._on: dict[torch.device, tuple[torch.Tensor, ...]] = {}

    @property
    def identity(self) -> str:
        """A hash of the learned boosts and their rules."""
        digest = hashlib.sha256(repr((self.rules, self.vocab_size)).encode())
        for array in (self.contexts, self.starts, self.tokens, self.values):
            digest.update(array.tobytes())
        return digest.hexdigest()[:16]

    def rows(self, contexts: torch.Tensor) -> torch.Tensor:
        """Boosts (N, vocab) float32 after contexts (N,), on their device; unknown contexts get zeros."""
        known, starts, tokens, values, _ = self._tables(contexts.device)
        out = torch.zeros(len(contexts), self.vocab_size, device=contexts.device)
        if not len(known):
            return out
        place = torch.searchsorted(known, contexts).clamp_max_(len(known) - 1)
        lengths = torch.where(known[place] == contexts, starts[place + 1] - starts[place], 0)
        row = torch.repeat_interleave(torch.arange(len(contexts), device=out.device), lengths)
        within = torch.arange(len(row), device=out.device) - (lengths.cumsum(0) - lengths)[row]
        entry = starts[place][row] + within
        out[row, tokens[entry]] = values[entry]
        return out

    def after(self, window: torch.Tensor) -> torch.Tensor:
        """The weighted mean boosts (batch, vocab) after the last h ids (batch, h)."""
        rules, h, batch = self.rules, self.rules.h, len(window)
        codes = self._tables(window.device)[-1][window]
        total = rules.full_weight * self.rows(codes.sum(dim=1))
        weight = torch.full((batch, 1), rules.full_weight, device=window.device)
        if rules.single_weight and h > 1:
            singles = self.rows(codes.flatten()).view(batch, h, -1)
            strongest = self._strongest(codes, singles)
            found = (strongest >= 0).float().unsqueeze(1)
            chosen = singles[torch.arange(batch, device=window.device), strongest.clamp_min(0)]
            total += rules.single_weight * found * chosen
            weight += rules.single_weight * found
        if rules.empty_weight:
            total += rules.empty_weight * self.rows(codes.new_zeros(1))
            weight += rules.empty_weight
        return total / weight

    def _strongest(self, codes: torch.Tensor, singles: torch.Tensor) -> torch.Tensor:
        """The position (batch,) of each context's strongest token, -1 if there is none."""
        batch, h = codes.shape
        wins = torch.ones((batch, h), dtype=torch.bool, device=codes.device)
        for i, j in itertools.combinations(range(h), 2):
            pair = self.rows(codes[:, i] + codes[:, j])
            like_i = torch.nn.functional.cosine_similarity(pair, singles[:, i], dim=1)
            like_j = torch.nn.functional.cosine_similarity(pair, singles[:, j], dim=1)
            wins[:, i] &= like_i > like_j
            wins[:, j] &= like_j > like_i
        return torch.where(wins.sum(dim=1) == 1, wins.int().argmax(dim=1), -1)

    def _tables(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        if device not in self._on:
            arrays = (self.contexts, self.starts, self.tokens, self.values, token_codes(self.vocab_size))
            self._on[device] = tuple(torch.from_numpy(array).to(device) for array in arrays)
        return self._on[device]


def learn_boosts(marked: Counts, base: Counts, *, rules: CountRules, vocab_size: int) -> StolenBoosts:
    """Learn boosts from counts of marked and unmarked text."""
    contexts, totals = marked.totals()
    base_contexts, base_totals = base.totals()
    place = np.searchsorted(contexts, marked.contexts)
    at = np.minimum(np.searchsorted(base_contexts, marked.contexts), len(base_contexts) - 1)
    base_total = np.where(base_contexts[at] == marked.contexts, base_totals[at], 0)
    base_count = base.of(marked.pairs)
    tokens_seen = int(base_totals[base_contexts == 0].sum())  # every token follows the empty context
    least = np.where(marked.contexts == 0, round(rules.min_share * tokens_seen), rules.min_count)
    enough = marked.counts >= np.maximum(least, 1)
    ratio = np.zeros(len(marked.pairs))
    both = enough & (base_count > 0)
    ratio[both] = (marked.counts[both] / totals[place[both]]) / (base_count[both] / base_total[both])
    best = np.ones(len(contexts))
    np.maximum.at(best, place, ratio)
    new = enough & (base_count == 0)
    ratio[new] = best[place[new]] + 1e-3
    kept = ratio >= 1.0
    return _sorted_boosts(marked, place, ratio, kept, rules=rules, vocab_size=vocab_size)


def _sorted_boosts(
    marked: Counts, place: I64, ratio: F64, kept: NDArray[np.bool_], *, rules: CountRules, vocab_size: int
) -> StolenBoosts:
    """Clip, break ties and scale within each context, and sort by context."""
    order = np.flatnonzero(kept)[np.argsort(place[kept], kind="stable")]
    if not len(order):
        none = np.zeros(0, dtype=np.int64)
        return StolenBoosts(
            none, np.zeros(1, np.int64), none, none.astype(np.float32), rules=rules, vocab_size=vocab_size
        )
    contexts, starts = np.unique(marked.contexts[order], return_index=True)
    lengths = np.diff(np.append(starts, len(order)))
    counts = marked.counts[order].astype(np.float64)
    most = np.repeat(np.maximum.reduceat(counts, starts), lengths)
    values = np.minimum(ratio[order], rules.clip) / rules.clip + _TIE * counts / most
    values /= np.repeat(np.maximum.reduceat(values, starts), lengths)
    return StolenBoosts(
        contexts,
        np.append(starts, len(order)).astype(np.int64),
        marked.tokens[order],
        values.astype(np.float32),
        rules=rules,
        vocab_size=vocab_size,
    )
