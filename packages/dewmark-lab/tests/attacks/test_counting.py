"""Stealing by counts: the counts and the boosts."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch

from dewmark.errors import ConfigError, InputError
from dewmark_lab.attacks.stealing.counting import (
    CountRules,
    StolenBoosts,
    count_contexts,
    learn_boosts,
    token_codes,
)

VOCAB = 512


def brute_force(texts, h):
    """{(sorted context tuple, token): count} by nested loops."""
    found: Counter[tuple[tuple[int, ...], int]] = Counter()
    for text in texts:
        for i in range(h, len(text)):
            for size in range(h + 1):
                for chosen in combinations(text[i - h : i], size):
                    found[tuple(sorted(chosen)), text[i]] += 1
    return found


def test_counts_cover_every_subset_without_order():
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, 9, size=40).tolist() for _ in range(5)] + [[1, 2]]
    counts = count_contexts(texts, h=3, vocab_size=VOCAB)
    expected = brute_force(texts, 3)
    codes = token_codes(VOCAB)
    with np.errstate(over="ignore"):
        of = {int(codes[list(ctx)].sum()) if ctx else 0: ctx for ctx, _ in expected}
    found = {
        (of[c], t): n
        for c, t, n in zip(
            counts.contexts.tolist(), counts.tokens.tolist(), counts.counts.tolist(), strict=True
        )
    }
    assert found == expected
    contexts, totals = counts.totals()
    assert totals[contexts == 0] == sum(n for (ctx, _), n in expected.items() if not ctx)


def test_texts_shorter_than_a_context_are_rejected():
    with pytest.raises(InputError, match="h = 3"):
        count_contexts([[1, 2, 3]], h=3, vocab_size=VOCAB)


def boosts_of(marked, base, *, h=1, **rules) -> StolenBoosts:
    chosen = CountRules(h=h, **rules)
    tables = [count_contexts(texts, h=h, vocab_size=VOCAB) for texts in (marked, base)]
    return learn_boosts(*tables, rules=chosen, vocab_size=VOCAB)


def after_nothing(boosts):
    """The boosts (vocab,) of the empty context."""
    return boosts.rows(torch.zeros(1, dtype=torch.int64))[0].numpy()


def test_boosts_are_clipped_ratios_above_thresholds():
    # after token 1: marked 2 ×6, 3 ×3, 4 ×1, 6 ×2; base 2 ×3, 3 ×6, 4 ×3 (all of 12)
    def text(follow):
        return [token for after, times in follow.items() for token in [1, after] * times]

    marked, base = [text({2: 6, 3: 3, 4: 1, 6: 2})], [text({2: 3, 3: 6, 4: 3})]
    row = boosts_of(marked, base).rows(torch.from_numpy(token_codes(VOCAB)[[1]]))[0]
    # 2: ratio 2 → 1; 6: not in base → largest ratio, clipped to 2 → 1 up to the tie-break by count;
    # 3: ratio 1/2 → 0; 4: one occurrence is not enough
    tie = (1 + 1e-4 / 3) / (1 + 1e-4)
    assert row[[2, 6, 3, 4]].tolist() == pytest.approx([1.0, tie, 0.0, 0.0], abs=1e-6)
    assert int((row > 0).sum()) == 2
    row = boosts_of(marked, base, clip=4.0).rows(torch.from_numpy(token_codes(VOCAB)[[1]]))[0]
    assert row[6] > row[2] == pytest.approx(2.0 / 2.001, abs=2e-4)  # 2.001 clipped at 4 is the best


def test_empty_context_has_its_own_threshold():
    marked, base = [[1, 2] * 30 + [3, 3]], [[1, 2, 4] * 200]
    assert after_nothing(boosts_of(marked, base))[3] > 0.0
    assert after_nothing(boosts_of(marked, base, min_share=0.01))[3] == 0.0  # 2 are fewer than 1% of 599


def test_strongest_token_dominates_its_context():
    """Token 1 decides the next token and token 2 does not matter, so {1, 2} resembles {1}."""
    rng = np.random.default_rng(0)
    noise = lambda: int(rng.integers(20, 60))  # noqa: E731
    marked = [[noise(), 1, 2, 7] for _ in range(40)] + [[noise(), 2, noise(), noise()] for _ in range(400)]
    marked += [[noise(), 1, noise(), 7] for _ in range(40)]
    base = [[noise() for _ in range(2000)]]
    boosts = boosts_of(marked, base, h=2)
    after = boosts.after(torch.tensor([[1, 2], [2, 1], [50, 51]]))
    assert torch.equal(after[0], after[1])  # order does not matter
    assert after[0, 7] == pytest.approx(1.0, abs=1e-3)  # all three terms agree; ties add 0.0001
    only = boosts_of(marked, base, h=2, single_weight=0.0).after(torch.tensor([[1, 2]]))
    assert after[0, 7] > only[0, 7] - 1e-6


def test_boosts_are_a_weighted_mean_of_the_terms():
    marked, base = [[1, 2] * 50 + [1, 3] * 5], [[1, 3] * 50]
    boosts = boosts_of(marked, base, full_weight=2.0, empty_weight=0.5)
    full, empty = (
        boosts.rows(torch.from_numpy(token_codes(VOCAB)[[1]]))[0],
        torch.from_numpy(after_nothing(boosts)),
    )
    assert torch.allclose(boosts.after(torch.tensor([[1]]))[0], (2.0 * full + 0.5 * empty) / 2.5)


def test_unigram_green_lists_are_found():
    """Green tokens are twice as likely: a ratio above 1 in the empty context tells them apart.

    Base shares are uniform over V = 500 tokens, so green ones have share 4/3V and red ones 2/3V. With N
    tokens a count's relative deviation is 1/√(N/V) = 0.05 for N = 200,000: the ratio of a green token, 1.33,
    is above 1 by 0.33/(0.05·√2·1.3) > 3.5 deviations, and of a red one, 0.67, below by as much.
    """
    rng = np.random.default_rng(2)
    green = rng.permutation(500) < 250
    weights = np.where(green, 2.0, 1.0)
    marked = rng.choice(500, size=(1000, 200), p=weights / weights.sum()).tolist()
    base = rng.integers(0, 500, size=(1000, 200)).tolist()
    empty = after_nothing(boosts_of(marked, base))[:500]
    assert np.mean((empty > 0) == green) > 0.99


def test_invalid_rules_are_rejected():
    with pytest.raises(ConfigError, match=r"clip must be above 1, got 1\.0"):
        CountRules(clip=1.0)
