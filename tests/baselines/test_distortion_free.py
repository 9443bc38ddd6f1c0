"""Schemes that promise it leave the host's distribution alone: averaged over keys, and over whole texts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dewmark.core.keys import Key
from dewmark.hosts.fake import FakeHost
from dewmark.registry import SCHEMES
from dewmark.workspace import Workspace

VOCAB = 72
KEYS, CONTEXTS = 8, 300

FREE = [
    ("exp", {}),
    ("exp", {"repeats": "keep"}),
    ("synthid", {}),
    ("synthid", {"depth": 5}),
    ("unbiased", {}),
    ("unbiased", {"reweight": "delta"}),
    ("dipmark", {}),
    ("dipmark", {"alpha": 0.2}),
]


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(VOCAB)


def fixed_logits() -> torch.Tensor:
    """One distribution with likely and rare tokens; each is expected at least 5 times in all draws."""
    raw = 1.5 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(0))
    return raw.clamp(min=float(raw.max()) - 4.0)


def draw(bound, contexts: torch.Tensor, logits: torch.Tensor, seed: int) -> np.ndarray:
    """One token per context (rows, h), sampled from what a session makes of the logits (vocab,)."""
    marked = bound.session(contexts)(contexts, logits.repeat(len(contexts), 1))
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(marked.softmax(1), 1, generator=generator)[:, 0].numpy()


def fit(host, tmp_path, name: str, settings: dict, logits: torch.Tensor) -> float:
    """The chi-square p-value of the tokens drawn under many keys and contexts against the host's own law.

    Over keys the draws of different contexts are independent, so the counts are multinomial.
    """
    contexts = torch.randint(
        4, VOCAB, (CONTEXTS * KEYS, 3), generator=torch.Generator().manual_seed(1)
    ).unique(dim=0)
    counts = np.zeros(VOCAB)
    for i, part in enumerate(contexts.chunk(KEYS)):
        bound = SCHEMES[name](**settings).bind(Key(bytes([i]) * 32), host.info, Workspace(cache=tmp_path))
        counts += np.bincount(draw(bound, part, logits, i), minlength=VOCAB)
    expected = logits.double().softmax(0).numpy() * counts.sum()
    possible = expected > 0.0
    assert expected[possible].min() >= 5.0
    assert counts[~possible].sum() == 0
    return float(stats.chisquare(counts[possible], expected[possible]).pvalue)


@pytest.mark.parametrize(("name", "settings"), FREE)
def test_the_next_token_follows_the_host_averaged_over_keys(host, tmp_path, name, settings) -> None:
    # a sound scheme fails this once in a thousand choices of the seeds, and these are fixed
    assert fit(host, tmp_path, name, settings, fixed_logits()) > 1e-3


@pytest.mark.parametrize(("name", "settings"), FREE)
def test_so_does_what_top_k_has_left(host, tmp_path, name, settings) -> None:
    logits = fixed_logits()
    logits[logits < logits.topk(6).values[-1]] = -math.inf
    assert fit(host, tmp_path, name, settings, logits) > 1e-3


def test_the_distortionary_tournament_is_seen_to_distort(host, tmp_path) -> None:
    """Also shows that the test can tell."""
    assert fit(host, tmp_path, "synthid", {"leaves": 4}, fixed_logits()) < 1e-6


@pytest.mark.parametrize(
    ("name", "settings", "free"),
    [
        ("exp", {"repeats": "skip"}, True),
        ("exp", {"repeats": "keep"}, False),
        ("synthid", {}, True),
        ("unbiased", {"repeats": "skip"}, True),
        ("unbiased", {"repeats": "keep"}, False),
        ("unbiased", {"reweight": "delta"}, True),
        ("dipmark", {"repeats": "skip"}, True),
        ("dipmark", {"repeats": "keep"}, False),
    ],
)
def test_a_text_with_a_repeated_context_follows_the_host_if_repeats_are_skipped(
    host, tmp_path, name, settings, free
) -> None:
    """Two steps after the context (c): a first token c, of probability 1/2, brings the context back.

    Then the second is c with probability 1/2 too, and both are with 1/4. Keyed twice alike, that is more
    frequent. Each row has a c of its own, so rows are independent over keys.
    """
    own = torch.arange(5, VOCAB - 2)
    logits = torch.full((len(own), VOCAB), -math.inf)
    for shift, share in enumerate((0.5, 0.25, 0.25)):
        logits[torch.arange(len(own)), own + shift] = math.log(share)
    twice = 0
    for i in range(10):
        key = Key(bytes([i, 7]) * 16)
        bound = SCHEMES[name](prefix=1, **settings).bind(key, host.info, Workspace(cache=tmp_path))
        ids, generator = own.unsqueeze(1), torch.Generator().manual_seed(i)
        session = bound.session(ids)
        for _ in range(2):
            marked = session(ids, logits)
            ids = torch.cat((ids, torch.multinomial(marked.softmax(1), 1, generator=generator)), dim=1)
        twice += int(((ids[:, 1] == own) & (ids[:, 2] == own)).sum())
    found = stats.binomtest(twice, 10 * len(own), 0.25, alternative="two-sided" if free else "greater")
    assert bool(found.pvalue > 1e-3) is free
