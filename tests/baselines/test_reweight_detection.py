"""Detection by the reweighting schemes: honest p-values, marks that are found, stored detectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.errors import ArtifactError, ConfigError, NumericalError, VocabularyError
from dewmark.hosts.fake import FakeHost
from dewmark.registry import SCHEMES
from dewmark.scheme import State
from dewmark.stats.key_test import key_test
from dewmark.workspace import Workspace

PROMPT = " the old bridge over the river"
SCHEMES_AND_TESTS = [
    ("exp", {}, "gamma"),
    ("exp", {"repeats": "keep"}, "gamma"),
    ("synthid", {}, "mean"),
    ("synthid", {}, "weighted"),
    ("unbiased", {}, "order"),
    ("unbiased", {"reweight": "delta"}, "order"),
    ("dipmark", {}, "binomial"),
    ("dipmark", {"repeats": "skip", "gamma": 0.3}, "binomial"),
]
CONTINUOUS = {"gamma", "mean", "weighted"}


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


def repetitive_texts(host) -> list[str]:
    """Text of the tiny host, followed by repeated phrases and a copy of its own beginning."""
    written = host.generate(
        [PROMPT] * 4, scheme=None, seeds=range(4), decoding=Decoding(max_new_tokens=40, min_new_tokens=40)
    )
    return [g.text + " the city and the sea" * 6 + g.text[: len(g.text) // 2] for g in written]


@pytest.mark.parametrize(("name", "settings", "test"), SCHEMES_AND_TESTS)
def test_p_values_are_uniform_over_keys_on_repetitive_text(host, bind, name, settings, test) -> None:
    texts = repetitive_texts(host)
    p = np.array(
        [
            bind(name, settings, i.to_bytes(2, "big") * 16).detect(texts[i % 4], test=test).p_value
            for i in range(300)
        ]
    )
    if test in CONTINUOUS or settings.get("reweight") == "delta":
        # one in a thousand for a sound test, and the keys are fixed
        assert stats.kstest(p, "uniform").pvalue > 1e-3
    for level in (0.01, 0.05, 0.1, 0.2, 0.5):
        # a discrete test may be too seldom below a level, never too often: a bound of four standard errors
        assert np.mean(p <= level) <= level + 4.0 * math.sqrt(level * (1.0 - level) / len(p))
    assert p.mean() < 0.65  # nor is it so cautious as to be of no use


@pytest.mark.parametrize(("name", "settings", "test"), SCHEMES_AND_TESTS)
def test_marks_are_found_under_their_key_alone(host, bind, name, settings, test) -> None:
    bound, wrong = bind(name, settings), bind(name, settings, bytes(32))
    prompts = [PROMPT, " the", " water and light of the day"] * 2
    written = host.generate(
        prompts,
        scheme=bound,
        seeds=range(6),
        decoding=Decoding(max_new_tokens=80, min_new_tokens=80),
        batch_size=6,
    )
    texts = [g.text for g in written]
    found = bound.detect_batch(texts, prompts=prompts, test=test)
    assert all(d.p_value < 1e-4 for d in found)
    assert all(d.test == test and 0 < d.tokens_scored <= 80 for d in found)
    # six texts of one wrong key: a level so low that the smallest of six p-values hardly reaches it
    assert min(d.p_value for d in wrong.detect_batch(texts, prompts=prompts, test=test)) > 1e-4


@pytest.mark.parametrize(("name", "settings", "test"), SCHEMES_AND_TESTS)
def test_evidence_is_what_the_key_test_needs(host, bind, name, settings, test) -> None:
    """Its normal z is that of the scheme's default statistic, and its mean over keys is 0."""
    bound = bind(name, settings)
    tokenizer = host.info.tokenizer
    texts, start = tokenizer.encode(repetitive_texts(host)[:1]), tokenizer.encode([PROMPT])
    (evidence,) = bound.evidence(texts, start)
    default = bound.statistic(evidence, test="order" if name == "unbiased" else bound.tests[0])
    assert key_test(evidence).z == pytest.approx(default.z, abs=1e-5)
    totals = [
        bind(name, settings, bytes([i]) * 32).evidence(texts, start)[0].scores.mean() for i in range(60)
    ]
    assert abs(np.mean(totals)) < 4.0 * math.sqrt(evidence.variance / (60 * len(evidence)))


def test_first_occurrences_alone_are_scored_where_repeats_are_skipped(host, bind) -> None:
    text = " the old bridge over the river and the old bridge over the sea"  # "the old bridge" comes back
    skip, keep = (bind("exp", {"repeats": r}).detect(text) for r in ("skip", "keep"))
    tokens = [t.text for t in skip.tokens]
    second = [i for i, token in enumerate(tokens) if token == " over"][1]
    assert [t.scored for t in skip.tokens][second : second + 3] == [False, False, False]
    assert keep.tokens[second].scored
    # skipped: three contexts in full view; kept: all tokens, of which the pairs that come back count once
    assert (skip.effective_length, keep.effective_length) == (7.0, 8.0)


@pytest.mark.parametrize("name", ["exp", "synthid", "unbiased", "dipmark"])
def test_batches_padding_and_a_cut_distribution_change_nothing(host, bind, name) -> None:
    bound = bind(name)
    pad = host.info.tokenizer.pad_id
    rows = [list(t.ids) for t in host.info.tokenizer.encode([PROMPT, " the", " water and light of the day"])]
    width = max(len(row) for row in rows)
    padded = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    logits = torch.randn(3, 400, generator=torch.Generator().manual_seed(1))
    logits[2, logits[2] < logits[2].topk(20).values[-1]] = -math.inf
    together = bound.session(padded)(padded, logits).softmax(1)
    for i, row in enumerate(rows):  # the third alone takes the way of few candidates
        ids = torch.tensor([row])
        alone = bound.session(ids)(ids, logits[i : i + 1]).softmax(1)
        torch.testing.assert_close(alone[0], together[i], atol=1e-6, rtol=1e-4)
    assert not bool(together[2][torch.isinf(logits[2])].any())


@pytest.mark.parametrize("name", ["exp", "synthid", "unbiased", "dipmark"])
def test_bad_logits_are_refused(bind, name) -> None:
    bound, ids = bind(name), torch.tensor([[50, 60, 70]])
    with pytest.raises(VocabularyError, match="300 logits"):
        bound.session(ids)(ids, torch.zeros(1, 300))
    bad = torch.zeros(1, 400)
    bad[0, 3] = math.nan
    with pytest.raises(NumericalError, match="NaN"):
        bound.session(ids)(ids, bad)
    nothing = bound.session(ids)(ids, torch.full((1, 400), -math.inf))
    assert not bool(torch.isfinite(nothing).any())  # left for the host to report


def test_a_context_is_forgotten_after_the_history(bind) -> None:
    """SynthID with a memory of two steps: the third step marks the first context again."""
    logits = torch.randn(1, 400, generator=torch.Generator().manual_seed(2))
    session = bind("synthid", {"prefix": 1, "history": 2}).session(torch.tensor([[9]]))
    marked = [
        not torch.equal(session(torch.tensor([[context]]), logits), logits) for context in (9, 9, 8, 7, 9)
    ]
    assert marked == [True, False, True, True, True]


def test_exp_leaves_one_token(bind) -> None:
    ids = torch.tensor([[50, 60, 70], [51, 60, 70]])
    chosen = bind("exp").session(ids)(ids, torch.randn(2, 400, generator=torch.Generator().manual_seed(3)))
    assert torch.isfinite(chosen).sum(1).tolist() == [1, 1]


@pytest.mark.parametrize(("name", "settings", "test"), SCHEMES_AND_TESTS)
def test_stored_detectors_say_the_same(host, bind, tmp_path, name, settings, test) -> None:
    bound, text = bind(name, settings), repetitive_texts(host)[0]
    stored = bound.scheme.restore(bound.state(), host.info, bound.fingerprint, Workspace(cache=tmp_path))
    assert stored.detect(text, test=test) == bound.detect(text, test=test)
    with pytest.raises(ArtifactError, match="lacks 'secret'"):
        bound.scheme.restore(State(meta={}, arrays={}), host.info, "", Workspace(cache=tmp_path))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("exp", {"prefix": 0}, "prefix must be at least 1"),
        ("synthid", {"depth": 33}, "depth must lie in 1 … 32"),
        ("synthid", {"leaves": 1}, "leaves must be at least 2"),
        ("synthid", {"history": 0}, "history must be"),
        ("unbiased", {"grid": 0}, "grid must be"),
        ("unbiased", {"temperature": 0.0}, "temperature must be positive"),
        ("unbiased", {"top_p": 0.0}, "top_p must lie"),
        ("dipmark", {"alpha": 1.5}, "alpha must lie"),
        ("dipmark", {"gamma": 1.0}, "gamma must lie"),
    ],
)
def test_bad_parameters(name, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        SCHEMES[name]().with_settings(settings)
