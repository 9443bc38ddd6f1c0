"""The test of a corpus: exact over keys, whatever texts repeat, and powerful where a preference is shared."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import dewmark
from dewmark.core.projections import draw_matrix
from dewmark.detect import score_texts
from dewmark.errors import ConfigError, InputError
from dewmark_audit.texts import openings
from dewmark_lab.evaluation.radioactivity import corpus_matrix, radioactivity, z_under

TEXTS = [row["text"] for row in openings()[:60]]


def key(name: str) -> dewmark.Key:
    return dewmark.Key(hashlib.sha256(name.encode()).digest())


def test_z_is_standard_normal_over_keys_even_of_repeated_texts() -> None:
    bound = dewmark.load_scheme(key("own"))
    for texts in (TEXTS, TEXTS[:3] * 20):
        M = corpus_matrix(bound, texts)
        d_T, d_C = M.shape
        keys = (key(f"null-{i}") for i in range(400))
        z = np.array([z_under(M, draw_matrix(each, d_T=d_T, d_C=d_C)) for each in keys])
        assert abs(z.mean()) < 3.3 / np.sqrt(400)
        assert 0.88 < z.std() < 1.12  # three standard errors of a standard deviation


def test_a_small_preference_that_all_texts_share_is_found() -> None:
    """Texts chosen for z under the key by a little, as a student's are, are found together."""
    bound = dewmark.load_scheme(key("own"))
    z = np.array([each.z_meaning for each in score_texts(bound, TEXTS)])
    better = [text for text, own in zip(TEXTS, z, strict=True) if own > np.median(z)]
    found = radioactivity(bound, better)
    assert found.z > 3.0
    assert found.p_value < 0.01
    assert found.texts == len(better)
    assert found.z == pytest.approx(z_under(corpus_matrix(bound, better), bound.own.W), rel=1e-6)
    assert found.strength == pytest.approx(found.z / np.sqrt(len(better)))


def test_a_control_takes_away_what_both_share() -> None:
    bound = dewmark.load_scheme(key("own"))
    same = radioactivity(bound, [*TEXTS[:30], TEXTS[40]], control=TEXTS[:30])
    alone = radioactivity(bound, [TEXTS[40]])
    assert same.control_texts == 30
    assert abs(same.z - alone.z) < 1.5


def test_what_cannot_be_tested_is_rejected() -> None:
    with pytest.raises(InputError, match="at least one text"):
        radioactivity(dewmark.load_scheme(key("own")), [])
    with pytest.raises(InputError, match="carries a mark"):
        radioactivity(dewmark.load_scheme(key("own")), ["12 34"])
    with pytest.raises(ConfigError, match="needs texts as matrices"):
        radioactivity(dewmark.load_scheme(key("own"), host=_host(), scheme="kgw"), TEXTS)


def _host() -> object:
    from dewmark_lab.testing.fake_host import FakeHost

    return FakeHost()
