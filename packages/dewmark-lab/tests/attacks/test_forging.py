"""Forgers and rewriters on the tiny host, and resumed runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.attacks.test_counting import VOCAB, boosts_of

from dewmark.decoding import Decoding
from dewmark.detect import score_text
from dewmark.errors import ConfigError, VocabularyError
from dewmark_lab.attacks.stealing.forging import CountsForger, RewritingForger
from dewmark_lab.testing.fake_host import FakeHost


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(VOCAB)


def test_forger_prefers_boosted_tokens_but_not_at_strength_zero(host):
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


def test_fidelity_sets_how_much_a_rewriter_keeps(host):
    originals = {3: list(range(10, 40)), 4: list(range(60, 75))}

    def kept(fidelity):
        rewriter = RewritingForger(None, originals, host.info, fidelity=fidelity)
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


def test_invalid_uses_are_rejected(host):
    boosts = boosts_of([[1, 2] * 9], [[2, 1, 3] * 9])
    forger = CountsForger(boosts, host.info, strength=1.0)
    with pytest.raises(ConfigError, match="no detector"):
        score_text(forger, "some text")
    with pytest.raises(ConfigError, match="one seed per row"):
        RewritingForger(None, {}, host.info, fidelity=1.0).session(torch.zeros(1, 1, dtype=torch.long))
    with pytest.raises(VocabularyError, match="512 tokens"):
        CountsForger(boosts, FakeHost(300).info, strength=1.0)
