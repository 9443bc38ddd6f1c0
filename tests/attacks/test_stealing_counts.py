"""Stealing by counts: what is counted, what a boost is, and the sessions that write with it."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch

from dewmark.attacks.stealing.counting import (
    CountRules,
    StolenBoosts,
    count_contexts,
    learn_boosts,
    token_codes,
)
from dewmark.attacks.stealing.forging import CountsForger, Rewriter
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, InputError, VocabularyError
from dewmark.hosts.fake import FakeHost

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


def test_counts_are_those_of_every_subset_without_order():
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


def test_texts_without_a_whole_context_are_refused():
    with pytest.raises(InputError, match="h = 3"):
        count_contexts([[1, 2, 3]], h=3, vocab_size=VOCAB)


def boosts_of(marked, base, *, h=1, **rules) -> StolenBoosts:
    chosen = CountRules(h=h, **rules)
    tables = [count_contexts(texts, h=h, vocab_size=VOCAB) for texts in (marked, base)]
    return learn_boosts(*tables, rules=chosen, vocab_size=VOCAB)


def test_boosts_are_clipped_ratios_with_their_thresholds():
    # after token 1: marked 2 ×6, 3 ×3, 4 ×1, 6 ×2; base 2 ×3, 3 ×6, 4 ×3 (all of 12)
    def text(follow):
        return [token for after, times in follow.items() for token in [1, after] * times]

    marked, base = [text({2: 6, 3: 3, 4: 1, 6: 2})], [text({2: 3, 3: 6, 4: 3})]
    row = boosts_of(marked, base).rows(torch.from_numpy(token_codes(VOCAB)[[1]]))[0]
    # 2: ratio 2 → 1; 6: base never saw it → above all others, clipped to 2 → 1 but for the tie by its count;
    # 3: ratio 1/2 → 0; 4: one occurrence is no evidence
    tie = (1 + 1e-4 / 3) / (1 + 1e-4)
    assert row[[2, 6, 3, 4]].tolist() == pytest.approx([1.0, tie, 0.0, 0.0], abs=1e-6)
    assert int((row > 0).sum()) == 2
    row = boosts_of(marked, base, clip=4.0).rows(torch.from_numpy(token_codes(VOCAB)[[1]]))[0]
    assert row[6] > row[2] == pytest.approx(2.0 / 2.001, abs=2e-4)  # 2.001 clipped at 4 is the best


def test_the_empty_context_has_a_threshold_of_its_own():
    marked, base = [[1, 2] * 30 + [3, 3]], [[1, 2, 4] * 200]
    assert boosts_of(marked, base).empty()[3] > 0.0
    assert boosts_of(marked, base, min_share=0.01).empty()[3] == 0.0  # 2 are fewer than 1% of 599


def test_the_strongest_token_of_a_context_rules_it():
    """Token 1 decides what follows, token 2 says nothing: {1, 2} looks like {1}."""
    rng = np.random.default_rng(0)
    noise = lambda: int(rng.integers(20, 60))  # noqa: E731
    marked = [[noise(), 1, 2, 7] for _ in range(40)] + [[noise(), 2, noise(), noise()] for _ in range(400)]
    marked += [[noise(), 1, noise(), 7] for _ in range(40)]
    base = [[noise() for _ in range(2000)]]
    boosts = boosts_of(marked, base, h=2)
    after = boosts.after(torch.tensor([[1, 2], [2, 1], [50, 51]]))
    assert torch.equal(after[0], after[1])  # no order
    assert after[0, 7] == pytest.approx(1.0, abs=0.15)  # full, single and empty term agree
    only = boosts_of(marked, base, h=2, single_weight=0.0).after(torch.tensor([[1, 2]]))
    assert after[0, 7] > only[0, 7] - 1e-6


def test_a_weighted_mean_of_the_terms():
    marked, base = [[1, 2] * 50 + [1, 3] * 5], [[1, 3] * 50]
    boosts = boosts_of(marked, base, full_weight=2.0, empty_weight=0.5)
    full, empty = boosts.rows(torch.from_numpy(token_codes(VOCAB)[[1]]))[0], torch.from_numpy(boosts.empty())
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
    empty = boosts_of(marked, base).empty()[:500]
    assert np.mean((empty > 0) == green) > 0.99


def test_five_hundred_texts_are_counted_in_seconds():
    import time

    rng = np.random.default_rng(3)
    texts = (rng.zipf(1.3, size=(500, 200)) % 40_000).tolist()
    started = time.perf_counter()
    counts = count_contexts(texts, h=3, vocab_size=49_152)
    learn_boosts(counts, counts, rules=CountRules(), vocab_size=49_152)
    assert time.perf_counter() - started < 20.0  # about 1 s where nothing else runs
    assert counts.counts.sum() == 500 * 197 * 8


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(VOCAB)


def test_a_forger_writes_what_was_boosted_and_nothing_else_with_strength_zero(host):
    favourite = 77
    base = [np.random.default_rng(i).integers(5, VOCAB, size=60).tolist() for i in range(80)]
    marked = [[favourite if i % 2 else token for i, token in enumerate(text)] for text in base[40:]]
    boosts = boosts_of(marked, base[:40], h=2, empty_weight=1000.0, min_share=0.05)

    def share(strength):
        forger = CountsForger(boosts, host.info, strength=strength)
        made = host.generate(
            ["the sea", "a hill"] * 4, scheme=forger, seeds=range(8), decoding=Decoding(max_new_tokens=30)
        )
        return [g.text for g in made], np.mean([token == favourite for g in made for token in g.token_ids])

    plain = host.generate(
        ["the sea", "a hill"] * 4, scheme=None, seeds=range(8), decoding=Decoding(max_new_tokens=30)
    )
    texts, idle = share(0.0)
    assert texts == [g.text for g in plain]
    assert share(12.0)[1] > 0.5 > idle
    assert share(-12.0)[1] == 0.0


def test_a_rewriter_keeps_the_original_as_fidelity_says(host):
    originals = {3: list(range(10, 40)), 4: list(range(60, 75))}

    def kept(fidelity):
        rewriter = Rewriter(None, originals, host.info, fidelity=fidelity)
        made = host.generate(
            ["the sea", "a hill"],
            scheme=rewriter,
            seeds=[3, 4],
            decoding=Decoding(max_new_tokens=30, min_new_tokens=30),
        )
        rows = zip((g.token_ids for g in made), originals.values(), strict=True)
        return np.mean([a == b for row, ids in rows for a, b in zip(row, ids, strict=False)])

    assert kept(1000.0) == 1.0
    assert kept(0.0) < 0.1 < kept(7.0) < 1.0


def test_refusals(host):
    boosts = boosts_of([[1, 2] * 9], [[2, 1, 3] * 9])
    forger = CountsForger(boosts, host.info, strength=1.0)
    with pytest.raises(ConfigError, match="no detector"):
        forger.detect("some text")
    with pytest.raises(ConfigError, match="one seed per row"):
        Rewriter(None, {}, host.info, fidelity=1.0).session(torch.zeros(1, 1, dtype=torch.long))
    with pytest.raises(VocabularyError, match="512 tokens"):
        CountsForger(boosts, FakeHost(300).info, strength=1.0)
    for wrong in ({"h": 0}, {"clip": 1.0}, {"min_count": 0}, {"full_weight": 0.0}, {"min_share": 1.0}):
        with pytest.raises(ConfigError):
            CountRules(**wrong)
