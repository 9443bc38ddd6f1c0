"""Watermark stealing by counting: which token follows which context more often than it should.

For every position of every observed text the next token is counted under all subsets of the h tokens before
it, without their order (a pair of tokens is a context wherever its two tokens stand). With the same counts of
unmarked text, each (context, token) gets a boost in [0, 1]:

    ratio = P_marked(token | context) / P_base(token | context),   above all others if base never saw the pair
    boost = 0 if ratio < 1 or the marked count is too small, else min(ratio, clip) / clip,

ties within a context broken by the count, then scaled so that the context's best token has 1. While writing,
a token's boost is the weighted mean of three: its boost in the full context, in the context of the
strongest single token, and in the empty one. A token S of the context is the strongest if for each other
one R the boosts after {S, R} look more like those after {S} than those after {R} (cosine); where none or
several are, that term is left out. (Jovanović et al., 2024. Their look-ahead term, which needs a second
model, is not here.)

A context is one 64-bit number, the sum of its tokens' random numbers: order-free, and two of a few million
contexts share one with probability 10⁻⁶. Boosts are kept as sorted arrays.

Boundary: token ids and boosts; who writes with them is in `stealing_session`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F32, I64
from dewmark.errors import ConfigError, InputError

__all__ = ["CountRules", "Counts", "StolenBoosts", "count_contexts", "learn_boosts"]


_TIE = 1e-4


@dataclass(frozen=True)
class CountRules:
    """What counts as evidence, and how the three terms are weighed."""

    h: int = 3
    """How many tokens before a token are its context."""
    min_count: int = 2
    """Least marked count of a (context, token) pair that gets a boost."""
    min_share: float = 7e-5
    """The same for the empty context, as a share of all base tokens."""
    clip: float = 2.0
    """Ratios from here on are equally good."""
    full_weight: float = 2.0
    single_weight: float = 1.0
    empty_weight: float = 0.5

    def __post_init__(self) -> None:
        if not 1 <= self.h <= 8:
            raise ConfigError(f"h must lie in 1 … 8, got {self.h}")
        if self.min_count < 1 or not 0.0 <= self.min_share < 1.0:
            raise ConfigError(
                f"min_count must be at least 1 and min_share lie in [0, 1), "
                f"got {self.min_count} and {self.min_share}"
            )
        if not self.clip > 1.0:
            raise ConfigError(f"clip must be above 1, got {self.clip}")
        if min(self.full_weight, self.single_weight, self.empty_weight) < 0.0 or not self.full_weight:
            raise ConfigError("weights must not be negative, and full_weight must be positive")


@dataclass(frozen=True)
class Counts:
    """How often each token followed each context: P distinct pairs, sorted by ``pairs``, their code.

    ``contexts`` and ``tokens`` (P,) say what a pair is, ``counts`` (P,) how often it occurred.
    """

    pairs: I64
    contexts: I64
    tokens: I64
    counts: I64

    def of(self, pairs: I64) -> I64:
        """The counts of other pairs (N,), 0 where one never occurred."""
        place = np.minimum(np.searchsorted(self.pairs, pairs), len(self.pairs) - 1)
        return np.where(self.pairs[place] == pairs, self.counts[place], 0)

    def totals(self) -> tuple[I64, I64]:
        """The distinct contexts, ascending, and how many tokens followed each."""
        contexts, inverse = np.unique(self.contexts, return_inverse=True)
        return contexts, np.bincount(inverse, weights=self.counts).astype(np.int64)


def token_codes(vocab_size: int) -> I64:
    """A random 64-bit number per token, the same in every process."""
    return np.random.default_rng(0x5EED).integers(-(2**63), 2**63 - 1, size=vocab_size, dtype=np.int64)


def subsets_of(h: int) -> list[tuple[int, ...]]:
    """All subsets of the places 0 … h − 1, the empty one first."""
    return [chosen for size in range(h + 1) for chosen in itertools.combinations(range(h), size)]


def count_contexts(texts: Sequence[Sequence[int]], *, h: int, vocab_size: int) -> Counts:
    """Count the tokens of texts (token ids) under all subsets of the h tokens before; all 2^h are kept."""
    codes = token_codes(vocab_size)
    places = subsets_of(h)
    contexts: list[I64] = []
    tokens: list[I64] = []
    for text in texts:
        ids = np.asarray(text, dtype=np.int64)
        ids = ids[ids < vocab_size]  # a tokenizer may know more than the host can write
        if len(ids) <= h:
            continue
        before = np.lib.stride_tricks.sliding_window_view(codes[ids], h)[:-1]  # wraps modulo 2^64
        contexts += [before[:, place].sum(axis=1) for place in places]
        tokens += [ids[h:]] * len(places)
    if not contexts:
        raise InputError(f"no text has more than h = {h} tokens: there is nothing to count")
    of, after = np.concatenate(contexts), np.concatenate(tokens)
    # a multiplication by an odd number mixes the token's code, so that {a} → b is not {b} → a
    pairs, first, counts = np.unique(
        of + codes[after] * 0x2545F4914F6CDD1D, return_index=True, return_counts=True
    )
    return Counts(pairs, of[first], after[first], counts)


class StolenBoosts:
    """The boosts that were learned: ``contexts`` (U,) ascending; those of context i from ``starts[i]`` on."""

    def __init__(
        self, contexts: I64, starts: I64, tokens: I64, values: F32, *, rules: CountRules, vocab_size: int
    ) -> None:
        self.contexts = contexts
        self.starts = starts
        self.tokens = tokens
        self.values = values
        self.rules = rules
        self.vocab_size = vocab_size
        self._on: dict[torch.device, tuple[torch.Tensor, ...]] = {}

    @property
    def identity(self) -> str:
        """Names what was learned."""
        digest = hashlib.sha256(repr((self.rules, self.vocab_size)).encode())
        for array in (self.contexts, self.starts, self.tokens, self.values):
            digest.update(array.tobytes())
        return digest.hexdigest()[:16]

    def empty(self) -> F32:
        """The boosts (vocab,) whatever the context."""
        return self.rows(torch.zeros(1, dtype=torch.int64))[0].numpy()

    def rows(self, contexts: torch.Tensor) -> torch.Tensor:
        """Boosts (N, vocab) float32 after contexts (N,), on their device; zero rows for unknown ones."""
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
        """The weighted boosts (batch, vocab) after the last h ids (batch, h)."""
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
        """The place of the one token that rules each context (batch,), -1 where none does alone."""
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
    """Boosts from the counts of marked and of unmarked text."""
    contexts, totals = marked.totals()
    base_contexts, base_totals = base.totals()
    place = np.searchsorted(contexts, marked.contexts)
    at = np.minimum(np.searchsorted(base_contexts, marked.contexts), len(base_contexts) - 1)
    base_total = np.where(base_contexts[at] == marked.contexts, base_totals[at], 0)
    base_count = base.of(marked.pairs)
    tokens_seen = int(base_totals[base_contexts == 0].sum())  # the empty context was before every token
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
    marked: Counts,
    place: I64,
    ratio: NDArray[np.float64],
    kept: NDArray[np.bool_],
    *,
    rules: CountRules,
    vocab_size: int,
) -> StolenBoosts:
    """Clip, break ties and scale within each context; then order by context."""
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
