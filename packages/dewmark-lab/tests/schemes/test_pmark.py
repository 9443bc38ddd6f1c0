"""PMark: directions and bits from the key, drafts, and the distribution of both tests over keys."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, kstest
from tests.fakes import BagEncoder

from dewmark.capabilities import evidence_of
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.detect import score_text
from dewmark.errors import ConfigError
from dewmark.types import Verdict
from dewmark.workspace import Workspace
from dewmark_lab.schemes.sentence.pmark import PMark, PMarkBound
from dewmark_lab.testing.trial import tiny_host

TEXT = " The river was high. A boat came down it. Nobody saw who was in it! The old bridge held. It rained."
WORDS = TEXT.replace(".", "").replace("!", "").split()


@pytest.fixture
def bind(bag_encoder: BagEncoder, tmp_path: Path):
    host, workspace = tiny_host("sentences").info, Workspace(cache=tmp_path)

    def make(number: int = 1, **settings: int) -> PMarkBound:
        return PMark(**settings).bind(Key(number.to_bytes(2, "big") * 16), host, workspace)

    return make


def test_directions_are_orthonormal_and_bits_follow_the_number(bind) -> None:
    bound, other = bind(), bind(2)
    np.testing.assert_allclose(bound.directions @ bound.directions.T, np.eye(4), atol=1e-12)
    assert abs(bound.directions @ other.directions.T).max() < 0.9
    drawn = np.array([bound.bits(number) for number in range(400)])
    assert drawn.shape == (400, 4)
    assert abs(drawn.mean(axis=0) - 0.5).max() < 4.5 * 0.5 / 20.0
    assert np.array_equal(bound.bits(7), bind().bits(7))


def test_distribution_of_agreements_over_keys(bind) -> None:
    """Five sentences, two of them equal, in four channels: Binomial(20, ½) over 300 keys."""
    text = TEXT + " A boat came down it."
    hits = []
    for number in range(300):
        (evidence,) = evidence_of(bind(number + 1), *map(bind().tokenize, ([text], [""])))
        hits.append(int(evidence.agrees.sum()))
    shares = np.bincount(hits, minlength=25) / 300
    expected = binom.pmf(np.arange(25), 24, 0.5)
    assert abs(shares - expected).max() < 4.5 * np.sqrt(expected.max() / 300)


def test_soft_count_is_standard_over_keys(bind) -> None:
    text = (TEXT * 4).strip()
    z = [score_text(bind(number + 1), text, test="soft").z for number in range(150)]
    assert kstest(z, "norm").pvalue > 1e-3


def test_a_draft_passes_if_all_channels_agree(bind) -> None:
    bound = bind(channels=2)
    drafts = bound.drafts(["Once"])
    tries = [f" {' '.join(np.random.default_rng(i).permutation(WORDS)[:6])}." for i in range(40)]
    scores = drafts.judge([0] * 40, tries)
    agree = (bound.cosines([each.strip() for each in tries]) > 0.0) == bound.bits(0)
    assert [score > 0.0 for score in scores] == agree.all(axis=1).tolist()
    assert 0 < sum(score > 0.0 for score in scores) < 40
    drafts.accept(0, tries[0])
    again = drafts.judge([0] * 40, tries)
    agree = (bound.cosines([each.strip() for each in tries]) > 0.0) == bound.bits(1)
    assert [score > 0.0 for score in again] == agree.all(axis=1).tolist()


def test_marked_text_is_found_and_short_text_is_too_short(bind, bag_encoder) -> None:
    bound = bind()
    decoding = Decoding(max_new_tokens=80, min_new_tokens=80)
    (made,) = tiny_host("sentences").generate(["the old river"], scheme=bound, seeds=[3], decoding=decoding)
    found = score_text(bound, made.text)
    assert found.verdict is Verdict.MARKED
    assert score_text(bind(2), made.text).p_value > 1e-3
    assert score_text(bound, " The river was high.").verdict is Verdict.TOO_SHORT
    with pytest.raises(ConfigError, match="channels must lie in .1, 64., got 0"):
        dataclasses.replace(bound.scheme, channels=0)
