"""Distortion-free schemes keep the host's distribution; their p-values are valid, their marks are found."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from tests.schemes.toy_host import random_words, raw_logits

from dewmark.capabilities import evidence_of
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.detect import score_text
from dewmark.registry import SCHEMES
from dewmark.workspace import Workspace
from dewmark_lab.schemes.engines.engine_scheme import support
from dewmark_lab.schemes.pair_hash import torch_uniforms
from dewmark_lab.schemes.reweight.dipmark import SLOTS, dip_factors, slot_masses, slots_of
from dewmark_lab.testing.fake_host import FakeHost

VOCAB = 72
KEYS, CONTEXTS = 8, 300
PROMPT = " the old bridge over the river"
SCHEMES_AND_TESTS = [
    ("exp", {}, "gamma"),
    ("exp", {"repeats": "keep"}, "gamma"),
    ("synthid", {}, "mean"),
    ("synthid", {}, "weighted"),
    ("unbiased", {}, "order"),
    ("dipmark", {}, "binomial"),
    ("dipmark", {"repeats": "skip", "gamma": 0.3}, "binomial"),
]
CONTINUOUS = {"gamma", "mean", "weighted"}

FREE = [
    ("exp", {}),
    ("exp", {"repeats": "keep"}),
    ("synthid", {}),
    ("synthid", {"depth": 5}),
    ("unbiased", {}),
    ("dipmark", {}),
    ("dipmark", {"alpha": 0.2}),
]


@pytest.fixture(scope="module")
def small_host() -> FakeHost:
    return FakeHost(VOCAB)


def fixed_logits() -> torch.Tensor:
    """One distribution with likely and rare tokens; each is expected at least 5 times in all draws."""
    raw = 1.5 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(0))
    return raw.clamp(min=float(raw.max()) - 4.0)


def draw(bound, contexts: torch.Tensor, logits: torch.Tensor, seed: int) -> np.ndarray:
    """One token per context (rows, h), sampled from a session's marked logits, given logits (vocab,)."""
    marked = bound.session(contexts)(contexts, logits.repeat(len(contexts), 1))
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(marked.softmax(1), 1, generator=generator)[:, 0].numpy()


def fit(small_host, tmp_path, name: str, settings: dict, logits: torch.Tensor) -> float:
    """The chi-square p-value of tokens drawn under many keys and contexts against the host's distribution.

    Over keys the draws of different contexts are independent, so the counts are multinomial.
    """
    contexts = torch.randint(
        4, VOCAB, (CONTEXTS * KEYS, 4), generator=torch.Generator().manual_seed(1)
    ).unique(dim=0)
    counts = np.zeros(VOCAB)
    for i, part in enumerate(contexts.chunk(KEYS)):
        key, workspace = Key(bytes([i]) * 32), Workspace(cache=tmp_path)
        bound = SCHEMES[name](**settings).bind(key, small_host.info, workspace)
        counts += np.bincount(draw(bound, part, logits, i), minlength=VOCAB)
    expected = logits.double().softmax(0).numpy() * counts.sum()
    possible = expected > 0.0
    assert expected[possible].min() >= 5.0
    assert counts[~possible].sum() == 0
    return float(stats.chisquare(counts[possible], expected[possible]).pvalue)


@pytest.mark.parametrize(("name", "settings"), FREE)
def test_next_token_follows_the_host_averaged_over_keys(small_host, tmp_path, name, settings) -> None:
    # a correct scheme fails for one in a thousand choices of the seeds, which are fixed
    assert fit(small_host, tmp_path, name, settings, fixed_logits()) > 1e-3


@pytest.mark.parametrize("name", ["exp", "synthid", "dipmark"])
def test_next_token_follows_the_host_after_top_k(small_host, tmp_path, name) -> None:
    logits = fixed_logits()
    logits[logits < logits.topk(6).values[-1]] = -math.inf
    assert fit(small_host, tmp_path, name, {}, logits) > 1e-3


def test_distortionary_tournament_is_detected_as_such(small_host, tmp_path) -> None:
    """This shows that the test has power."""
    assert fit(small_host, tmp_path, "synthid", {"leaves": 4}, fixed_logits()) < 1e-6


@pytest.mark.parametrize(
    ("name", "settings", "free"),
    [
        ("exp", {"repeats": "skip"}, True),
        ("exp", {"repeats": "keep"}, False),
        ("synthid", {}, True),
        ("unbiased", {"repeats": "skip"}, True),
        ("unbiased", {"repeats": "keep"}, False),
        ("dipmark", {"repeats": "skip"}, True),
        ("dipmark", {"repeats": "keep"}, False),
    ],
)
def test_text_with_a_repeated_context_follows_the_host_if_repeats_are_skipped(
    small_host, tmp_path, name, settings, free
) -> None:
    """Two steps after the context (c): a first token c, of probability 1/2, repeats the context.

    The second token is then c with probability 1/2 again, so both are with probability 1/4. If the repeated
    context is keyed again, that is more frequent. Each row has its own c, so rows are independent over keys.
    """
    own = torch.arange(5, VOCAB - 2)
    logits = torch.full((len(own), VOCAB), -math.inf)
    for shift, share in enumerate((0.5, 0.25, 0.25)):
        logits[torch.arange(len(own)), own + shift] = math.log(share)
    twice = 0
    for i in range(10):
        key = Key(bytes([i, 7]) * 16)
        bound = SCHEMES[name](prefix=1, **settings).bind(key, small_host.info, Workspace(cache=tmp_path))
        ids, generator = own.unsqueeze(1), torch.Generator().manual_seed(i)
        session = bound.session(ids, seeds=range(1000 * i, 1000 * i + len(ids)))
        for _ in range(2):
            marked = session(ids, logits)
            ids = torch.cat((ids, torch.multinomial(marked.softmax(1), 1, generator=generator)), dim=1)
        twice += int(((ids[:, 1] == own) & (ids[:, 2] == own)).sum())
    found = stats.binomtest(twice, 10 * len(own), 0.25, alternative="two-sided" if free else "greater")
    assert bool(found.pvalue > 1e-3) is free


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(400)


@pytest.fixture
def bind(host, tmp_path):
    """Bind a scheme by name, settings and secret."""

    def bound(name: str, settings: dict | None = None, secret: bytes = bytes(range(32))):
        workspace = Workspace(cache=tmp_path, open_host=lambda other: host)
        return SCHEMES[name](**(settings or {})).bind(Key(secret), host.info, workspace)

    return bound


@pytest.fixture(scope="module")
def repetitive_texts(host) -> list[str]:
    """Texts of the tiny host, each followed by repeated phrases and a copy of its own beginning."""
    written = host.generate(
        [PROMPT] * 4, scheme=None, seeds=range(4), decoding=Decoding(max_new_tokens=40, min_new_tokens=40)
    )
    return [g.text + " the city and the sea" * 6 + g.text[: len(g.text) // 2] for g in written]


@pytest.mark.parametrize(("name", "settings", "test"), SCHEMES_AND_TESTS)
def test_p_values_are_uniform_on_repetitive_text(repetitive_texts, bind, name, settings, test) -> None:
    p = np.array(
        [
            score_text(
                bind(name, settings, i.to_bytes(2, "big") * 16), repetitive_texts[i % 4], test=test
            ).p_value
            for i in range(150)
        ]
    )
    if test in CONTINUOUS:
        # a correct test fails once in a thousand, and the keys are fixed
        assert stats.kstest(p, "uniform").pvalue > 1e-3
    for level in (0.01, 0.05, 0.1, 0.2, 0.5):
        # a discrete test may be conservative, never anti-conservative: within four standard errors
        assert np.mean(p <= level) <= level + 4.0 * math.sqrt(level * (1.0 - level) / len(p))
    assert p.mean() < 0.65  # nor so conservative as to be useless


def test_only_first_occurrences_are_scored_if_repeats_are_skipped(host, bind) -> None:
    text = " the old bridge over the river and the old bridge over the sea"  # repeats "the old bridge"
    skip, keep = (score_text(bind("exp", {"repeats": r, "prefix": 3}), text) for r in ("skip", "keep"))
    tokens = [t.text for t in skip.tokens]
    second = [i for i, token in enumerate(tokens) if token == " over"][1]
    assert [t.scored for t in skip.tokens][second : second + 3] == [False, False, False]
    assert keep.tokens[second].scored
    # skip: contexts count once; keep: all tokens are scored, but repeated pairs count once
    assert (skip.effective_length, keep.effective_length) == (7.0, 8.0)


def test_green_pairs_are_counted_against_the_share_that_is_green_by_chance(host, bind) -> None:
    """DiPmark with γ = 0.3: 70% of all pairs are green without a mark."""
    bound = bind("dipmark", {"gamma": 0.3, "prefix": 1})
    text = " the old bridge over the river and the city by the sea"
    evidence = evidence_of(bound, bound.tokenize([text]), bound.tokenize([""]))[0]
    green = int(np.sum(evidence.scores > 0.0))
    assert 0 < green < len(evidence)
    assert score_text(bound, text).p_value == pytest.approx(stats.binom.sf(green - 1, len(evidence), 0.7))


def test_context_is_forgotten_after_the_history(bind) -> None:
    """SynthID with a memory of two steps: the third step marks the first context again."""
    logits = torch.randn(1, 400, generator=torch.Generator().manual_seed(2))
    session = bind("synthid", {"prefix": 1, "history": 2}).session(torch.tensor([[9]]))
    marked = [
        not torch.equal(session(torch.tensor([[context]]), logits), logits) for context in (9, 9, 8, 7, 9)
    ]
    assert marked == [True, False, True, True, True]


def test_support_includes_every_token_of_finite_logit() -> None:
    scores = raw_logits(4, 1000)
    assert support(scores) is None
    cut = torch.full_like(scores, -math.inf)
    for row, width in enumerate((3, 40, 1, 17)):
        top = scores[row].topk(width).indices
        cut[row, top] = scores[row, top]
    few = support(cut)
    assert few.shape == (4, 40)
    for row in range(4):
        assert set(torch.isfinite(cut[row]).nonzero()[:, 0].tolist()) <= set(few[row].tolist())
    assert support(torch.full((2, 1000), -math.inf)) is None


def sorted_reweighting(p: np.ndarray, order: np.ndarray, alpha: float) -> np.ndarray:
    """The DiP reweighting of a true permutation: F'(x) = max(F − α, 0) + max(F − (1 − α), 0), differenced."""
    upto = np.cumsum(p[order])
    new = np.maximum(upto - alpha, 0.0) + np.maximum(upto - (1.0 - alpha), 0.0)
    out = np.empty_like(p)
    out[order] = np.diff(new, prepend=0.0)
    return out


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.45, 0.5, 0.8])
def test_slots_act_as_a_permutation_if_no_two_tokens_share_one(alpha) -> None:
    keyed = random_words(200, 20)
    slots = slots_of(keyed)
    alone = torch.tensor([len(set(row)) == 20 for row in slots.tolist()])
    keyed, slots, p = keyed[alone], slots[alone], raw_logits(200, 20)[alone].softmax(1)
    assert len(p) > 100  # 20 tokens in 4,096 slots: 95% of the rows
    factors = dip_factors(slot_masses(p, slots), alpha).gather(1, slots)
    for row, k, f in zip(p.double().numpy(), torch_uniforms(keyed).numpy(), factors.numpy(), strict=True):
        np.testing.assert_allclose(row * f, sorted_reweighting(row, np.argsort(k), alpha), atol=1e-6)


def test_reweighted_probabilities_add_up() -> None:
    p, slots = raw_logits(50, 6000).softmax(1), slots_of(random_words(50, 6000))
    factors = dip_factors(slot_masses(p, slots), 0.3)
    assert factors.shape == (50, SLOTS)
    torch.testing.assert_close(
        (p * factors.gather(1, slots)).sum(1), torch.ones(50, dtype=torch.float64), atol=1e-5, rtol=0
    )
