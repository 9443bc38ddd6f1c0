"""The e-process: innovations are independent normals over keys, and few unmarked texts ever cross."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.dew.form import FormKey
from dewmark.dew.ring import EpochMatrices, KeyMatrices
from dewmark.dew.scheme import DEW
from dewmark.dew.sequential import STRENGTHS, SequentialDetector
from dewmark.errors import ConfigError
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost

D, KEYS, WORDS = 12, 4000, 80


class Nothing:
    def tokenize(self, texts: list[str]) -> list[None]:
        return [None] * len(texts)


def watched(rng: np.random.Generator) -> SequentialDetector:
    """A detector with many independent keys as its uses, after a text of similar and repeated words."""
    W = rng.standard_normal((KEYS, D, D)).astype(np.float32)

    detector = SequentialDetector(Nothing(), KeyMatrices([EpochMatrices(None, KEYS, 0, W)]), limit=2.5)  # type: ignore[arg-type]
    forms = rng.standard_normal((25, D)) + rng.standard_normal(D)
    forms = (forms / np.linalg.norm(forms, axis=1, keepdims=True)).astype(np.float32)
    for word in rng.integers(0, 25, size=WORDS):
        detector.score(forms[word], forms[(word * 7 + rng.integers(2)) % 25])
    return detector


def test_words_and_their_meaning_together_keep_the_level() -> None:
    """Over 3 × 600 keys E of both sums ever reaches 20 for at most 5% of them."""
    crossed, keys = 0, 600
    for seed in range(3):
        rng = np.random.default_rng(seed)
        W = rng.standard_normal((keys, D, D)).astype(np.float32)
        forms = tuple(FormKey(int(i), int(j)) for i, j in rng.integers(1 << 62, size=(keys, 2)))
        uses = KeyMatrices([EpochMatrices(None, keys, 0, W, forms)])
        detector = SequentialDetector(Nothing(), uses, limit=2.5)  # type: ignore[arg-type]
        rows = rng.standard_normal((25, D)).astype(np.float32)
        largest = np.zeros(keys)
        for i, word in enumerate(rng.integers(0, 25, size=40)):
            detector.score(rows[word], rows[(word * 7 + rng.integers(2)) % 25])
            detector.hear(1000 * seed + i)
            largest = np.maximum(largest, np.exp(detector._logs).mean(axis=0))
        crossed += int((largest >= 20.0).sum())
    assert 0 < crossed <= 0.05 * 3 * keys


def test_innovations_are_independent_standard_normals_over_keys() -> None:
    rows = watched(np.random.default_rng(0)).rows
    e = rows.innovations[: rows.count].astype(np.float64)
    assert 30 < rows.count <= WORDS
    assert stats.kstest(e.ravel()[::17], "norm").pvalue > 1e-3
    correlation = np.corrcoef(e)
    off = correlation[~np.eye(len(e), dtype=bool)]
    assert np.abs(off).max() < 5.5 / np.sqrt(KEYS)


def test_at_most_one_percent_of_keys_ever_reach_100_on_unmarked_text() -> None:
    crossed = 0
    for seed in range(3):
        rows = watched(np.random.default_rng(seed)).rows
        scales = np.diag(rows.L)
        A = np.cumsum(scales[:, None] * rows.innovations, axis=0)[: rows.count]
        V = np.cumsum(scales**2)[: rows.count]
        E = np.mean([np.exp(d * A - d * d * V[:, None] / 2) for d in STRENGTHS], axis=0)
        crossed += int(np.sum(E.max(axis=0) >= 100.0))
    assert crossed <= 0.01 * 3 * KEYS + 3.5 * np.sqrt(0.01 * 3 * KEYS)


def test_the_process_is_the_average_over_all_uses() -> None:
    detector = watched(np.random.default_rng(1))
    rows = detector.rows
    scales = np.diag(rows.L)
    A, V = scales @ rows.innovations, float(scales @ scales)
    E = np.mean([np.exp(d * A - d * d * V / 2) for d in STRENGTHS])
    assert detector.log_e == pytest.approx(np.log(E), abs=1e-3)


def test_a_marked_stream_is_found_and_its_member_named(bag_encoder, tmp_path) -> None:
    host = FakeHost(400)
    bound = DEW(alpha=0.7).bind(Key(bytes(range(32)), members=4), host.info, Workspace(cache=tmp_path))
    other = DEW(alpha=0.7).bind(Key(bytes(32), members=4), host.info, Workspace(cache=tmp_path))
    made = host.generate(
        ["the old river"],
        scheme=bound.for_member(member=2),
        seeds=[3],
        decoding=Decoding(max_new_tokens=160, min_new_tokens=160),
    )
    text = made[0].text
    detector, wrong = bound.follow(prompt="the old river"), other.follow(prompt="the old river")
    p = [detector.update(text[i : i + 40]) for i in range(0, len(text), 40)]
    assert all(a >= b for a, b in pairwise(p))
    assert detector.finish() <= 0.01
    assert detector.is_marked
    assert detector.use is not None
    assert detector.use.member == 2
    assert detector.origin == {"member": 2, "payload": None, "epoch": None}  # the key has no more
    whole = bound.follow(prompt="the old river")
    whole.update(text)
    whole.finish()
    assert whole.log_e == pytest.approx(detector.log_e, abs=1e-6)  # pieces do not matter
    wrong.update(text)
    assert not wrong.is_marked
    with pytest.raises(ConfigError, match="fpr must lie"):
        bound.follow(fpr=2.0)


def test_a_stream_that_the_key_test_does_not_confirm_is_not_marked(
    bag_encoder, tmp_path, monkeypatch
) -> None:
    """A strong process alone is not enough: the larger of the two p-values counts."""
    host = FakeHost(400)
    bound = DEW(alpha=0.7).bind(Key(bytes(range(32))), host.info, Workspace(cache=tmp_path))
    decoding = Decoding(max_new_tokens=120, min_new_tokens=120)
    (made,) = host.generate(["the old river"], scheme=bound, seeds=[3], decoding=decoding)
    find = KeyMatrices.find
    monkeypatch.setattr(KeyMatrices, "find", lambda *a: dataclasses.replace(find(*a), p_value=0.5))
    detector = bound.follow(prompt="the old river")
    assert detector.update(made.text) == 0.5
    assert detector.largest_log_e > -np.log(1e-3)
    assert not detector.is_marked
