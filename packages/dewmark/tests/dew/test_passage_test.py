"""Passages and streams are flattened: exact over keys, and unrelated texts have less in common."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from dewmark.core.keys import Key
from dewmark.dew.matrix import KeyedEvidence, flattened, passage_test
from dewmark.dew.scheme import DEW
from dewmark.encoders.contexts import register_texts
from dewmark.passages import locate
from dewmark.stats.key_test import key_test
from dewmark.stats.scan import Search, Units, restrict
from dewmark.workspace import NO_READER, Workspace, no_host

KEY = Key(bytes(range(32)))
WINDOW = 250  # scored words


@pytest.fixture(scope="module")
def bound():
    return DEW().bind(KEY, no_host(), Workspace(cache=Path("unused"))).reading_with(NO_READER)


@pytest.fixture(scope="module")
def windows(bound) -> list[KeyedEvidence]:
    """One window of each of seven texts, joined from the package's own."""
    parts = register_texts()
    texts = [" ".join(parts[i : i + 5]) for i in range(0, 35, 5)]
    found = bound.evidence(bound.tokenize(texts), bound.tokenize([""] * len(texts)))
    return [restrict(each, Units.of(each)[:WINDOW]) for each in found]


def mean_cosine(matrices: list[np.ndarray]) -> float:
    unit = np.array([np.ravel(M) / np.linalg.norm(M) for M in matrices])
    n = len(unit)
    return float((np.sum(unit @ unit.T) - n) / (n * (n - 1)))


def test_a_whole_text_as_a_passage_is_the_key_test(bound) -> None:
    text = " ".join(register_texts()[:3])
    (evidence,) = bound.evidence(bound.tokenize([text]), bound.tokenize([""]))
    assert evidence.extra > 0
    assert bound.statistic(evidence, test="key").z == pytest.approx(bound.detect(text).z, abs=1e-4)
    assert key_test(evidence).z == pytest.approx(bound.detect(text).z, abs=1e-3)
    assert "W=" not in repr(evidence)


def test_windows_of_unrelated_texts_share_less_when_they_are_flattened(windows) -> None:
    """r, their mean correlation under one key, was that of the plain sums."""
    plain = mean_cosine([(each.T * each.weights[:, None]).T @ each.C for each in windows])
    flat = mean_cosine([flattened(each, limit=1.75)[0] for each in windows])
    assert plain > 0.01
    assert flat < 0.7 * plain


def test_the_z_of_a_passage_is_standard_normal_over_keys(windows) -> None:
    rng = np.random.default_rng(1)
    z = [
        passage_test(
            dataclasses.replace(each, W=rng.standard_normal(each.W.shape, dtype=np.float32)), limit=1.75
        ).z
        for each in windows[:3]
        for _ in range(150)
    ]
    assert abs(np.mean(z)) < 4.0 / np.sqrt(len(z))
    assert np.std(z) == pytest.approx(1.0, abs=4.0 / np.sqrt(2 * len(z)))


def test_a_passage_of_few_directions_is_no_evidence(bound) -> None:
    drill = "He is here. She was there. It is here. They were here. " * 12
    (evidence,) = bound.evidence(bound.tokenize([drill]), bound.tokenize([""]))
    found = bound.statistic(evidence, test="key")
    assert (found.z, found.p_value) == (0.0, 1.0)
    assert found.effective_length > 0.0


def test_a_window_that_only_the_common_part_makes_significant_is_no_passage(bound) -> None:
    """Under a key that prefers what all texts share, plain sums are significant and nothing is marked."""
    text = " ".join(register_texts()[:6])
    tokenized = bound.tokenize([text])
    (evidence,) = bound.evidence(tokenized, bound.tokenize([""]))
    words = slice(evidence.pairs)
    left, _, right = np.linalg.svd((evidence.T[words] * evidence.weights[words, None]).T @ evidence.C[words])
    W = np.random.default_rng(2).standard_normal(bound.W.shape) + 9.0 * np.outer(left[:, 0], right[0])
    biased = bound.under(W.astype(np.float32))
    (under,) = biased.evidence(tokenized, biased.tokenize([""]))
    prepared = Search(under)
    plain = prepared.scan(prepared.z(under.scores[:, None])[:, 0])
    assert plain.corrected.min() < 1e-3
    assert locate(text, biased).passages == ()
    stream = biased.follow()
    stream.largest_log_e = 50.0  # were the process certain, the key test would still count
    stream.update(text)
    assert stream.finish() == pytest.approx(biased.detect(text).p_value, rel=1e-3)
    assert not stream.is_marked
