"""Sessions: batches, padding, errors; and the theory of what a mark does."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.fakes import COMPOSED

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.detect import score_text
from dewmark.dew.paper.scheme import DewPaper
from dewmark.errors import ConfigError, InputError
from dewmark.types import Verdict
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost

PROMPT = " the old bridge over the river"
LENGTH = 60


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(400)


@pytest.fixture
def bound(host, bag_encoder, tmp_path):
    return DewPaper(**COMPOSED).bind(Key(bytes(range(32))), host.info, Workspace(cache=tmp_path))


def test_padding_that_is_a_word_is_masked_out(host, bag_encoder, tmp_path) -> None:
    ids = torch.tensor([[50, 60, 70]])
    padded = torch.tensor([[40, 40, 50, 60, 70]])  # 40 is an ordinary token here
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    logits = torch.zeros(1, host.info.vocab_size)
    wide = DewPaper(**COMPOSED, k=4).bind(Key(bytes(32)), host.info, Workspace(cache=tmp_path))
    expected = wide.session(ids)(ids, logits)
    torch.testing.assert_close(wide.session(padded, mask)(padded, logits), expected)
    assert not torch.equal(wide.session(padded)(padded, logits), expected)


def generate(host, scheme, count: int):
    """Texts of at least half the length asked for: the tiny host ends some early."""
    written = host.generate(
        [PROMPT] * 3 * count,
        scheme=scheme,
        seeds=range(3 * count),
        decoding=Decoding(max_new_tokens=LENGTH),
        batch_size=64,
    )
    return [text for text in written if text.tokens >= LENGTH / 2][:count]


def test_the_mean_shift_is_the_one_the_bias_implies(host, bag_encoder, tmp_path) -> None:
    """One step, many draws: E[b] under the biased softmax, exactly."""
    scheme = DewPaper(**COMPOSED, m=400, lambda_=1.5).bind(
        Key(bytes(32)), host.info, Workspace(cache=tmp_path)
    )
    ids = torch.tensor([host.info.tokenizer.encode([PROMPT])[0].ids])
    logits = torch.randn(1, 400, generator=torch.Generator().manual_seed(3))
    marked = scheme.session(ids)(ids, logits)
    b = (marked - logits)[0].numpy().astype(np.float64)
    probabilities = torch.softmax(marked[0].double(), -1).numpy()
    draws = np.random.default_rng(0).choice(400, size=20_000, p=probabilities)
    mean, sd = float(probabilities @ b), float(b.std())
    assert mean > 0.3
    assert b[draws].mean() == pytest.approx(mean, abs=4.5 * sd / math.sqrt(20_000))


def test_detection_without_the_prompt_scores_all_but_k(host, bound) -> None:
    written = generate(host, bound, 1)[0]
    text = written.text
    # the plain alignments: centred ones depend on which tokens are scored
    with_prompt, without = (
        score_text(bound, text, prompt=PROMPT, test="gaussian"),
        score_text(bound, text, test="gaussian"),
    )
    assert with_prompt.tokens_scored == written.tokens
    assert without.tokens_scored == written.tokens - 3
    assert [t.score for t in without.tokens[3:]] == pytest.approx(
        [t.score for t in with_prompt.tokens[3:]], abs=1e-5
    )
    assert "".join(token.text for token in without.tokens) == text


def test_short_texts_say_so(bound) -> None:
    assert score_text(bound, " the old bridge over the river").verdict is Verdict.TOO_SHORT
    nothing = score_text(bound, " the")
    assert (nothing.verdict, nothing.p_value, nothing.tokens_scored) == (Verdict.TOO_SHORT, 1.0, 0)
    repeated = score_text(bound, " the old bridge" * 500)  # long, but worth three tokens
    assert repeated.verdict is Verdict.TOO_SHORT
    assert repeated.effective_length < 5


@pytest.mark.parametrize(
    ("text", "message"), [("", "empty"), (" \n\t", "empty"), ("a\ud800b", "surrogate at character 1")]
)
def test_what_is_no_text_is_refused(bound, text, message) -> None:
    with pytest.raises(InputError, match=message):
        score_text(bound, text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lambda": "-1"}, "lambda must be positive"),
        ({"gamma": 0}, "gamma must be positive"),
        ({"k": 0}, "k must be at least 1"),
        ({"m": 0}, "m must be"),
        ({"mode": "some"}, "mode must be one of both"),
        ({"lamda": 2}, "did you mean 'lambda'"),
    ],
)
def test_bad_parameters(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        DewPaper().with_settings(settings)


def test_a_setting_without_effect_is_refused() -> None:
    with pytest.raises(ConfigError, match="have no effect with mode=token_only"):
        DewPaper().with_settings({"mode": "token_only", "whiten_contexts": True})
