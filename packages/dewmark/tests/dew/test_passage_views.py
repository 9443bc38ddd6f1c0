"""Passages are searched by meaning alone, and by meaning and form together: both are exact over keys."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dewmark.core.keys import Key
from dewmark.detect import detect_texts, score_texts
from dewmark.dew.form import FormKey
from dewmark.dew.matrix import JointEvidence, TextMatrix, UseKey, WordReading, passage_test
from dewmark.dew.scheme import DEW, BoundDEW
from dewmark.encoders.contexts import register_texts
from dewmark.passages import KeyEvidence, search_passages
from dewmark.stats.key_test import covariance, score_variance
from dewmark.stats.scan import Search, Units, restrict
from dewmark.workspace import NO_READER, Workspace, no_host

KEY = Key(bytes(range(32)))


@pytest.fixture(scope="module")
def bound() -> BoundDEW:
    return DEW().bind(KEY, no_host(), Workspace(cache=Path("unused"))).reading_with(NO_READER)


def new_words() -> str:
    """Some 530 words, most of which are new where they stand."""
    return " ".join(register_texts()[:4])


def used_words() -> str:
    """The same words once more in another order: half of them have only form."""
    words = new_words().split()
    return " ".join([*words, *random.Random(1).sample(words, len(words))])


def read(bound: BoundDEW, text: str) -> WordReading:
    (reading,) = bound.read(bound.tokenize([text]), bound.tokenize([""]))
    return reading


def use_keys(count: int, *, seed: int = 1) -> Iterator[UseKey]:
    """Fresh keys."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        words = rng.integers(1 << 63, size=2).tolist()
        yield UseKey(rng.standard_normal((128, 128), dtype=np.float32), FormKey(*words))


def joint_of(matrix: TextMatrix, key: UseKey) -> JointEvidence:
    _, joint = matrix.views(matrix.under(key))
    assert isinstance(joint, JointEvidence)
    return joint


def searched(bound: BoundDEW, reading: WordReading, keys: Iterator[UseKey], *, level: float):
    """What the search finds under each key, per view."""
    evidence = {k: KeyEvidence.of(bound.under(key), reading) for k, key in enumerate(keys)}
    for each in evidence.values():
        assert each.hypotheses == len(each.views)
        each.share = 1.0 / each.hypotheses
    return search_passages(evidence, level)


# Exact over keys


@pytest.mark.parametrize("text", [new_words, used_words])
def test_false_alarms_of_both_views_together(bound, text) -> None:
    """Under 600 keys: at most the level, up to 3.5 standard deviations of the binomial law."""
    keys, reading = 600, read(bound, text())
    found = searched(bound, reading, use_keys(keys), level=0.05)
    p = np.array([2.0 * min(each.p_value for each in views) for views in found.values()])
    alarms = np.array([any(each.segments for each in views) for views in found.values()])
    assert np.array_equal(alarms, p <= 0.05)
    for level in (0.01, 0.05):
        margin = 3.5 * math.sqrt(level * (1.0 - level) / keys)
        assert 0.3 * level - margin < np.mean(p <= level) <= level + margin
    assert all(sum(views[i].p_value < 1.0 for views in found.values()) for i in (0, 1))


@pytest.mark.parametrize("text", [new_words, used_words])
def test_the_joint_sum_has_its_variance_in_the_whole_text_and_in_windows(bound, text) -> None:
    """Windows: 20 of them within 5 standard deviations each, and all on average within one."""
    keys, matrix = 800, read(bound, text()).matrix
    under = [joint_of(matrix, key) for key in use_keys(keys)]
    joint, scores = under[0], np.stack([each.scores for each in under], axis=1)
    assert score_variance(joint) == pytest.approx(2.0 * matrix.square, rel=1e-5)  # the sums weigh alike
    error = math.sqrt(2.0 / keys)
    assert np.var(joint.weights @ scores) == pytest.approx(score_variance(joint), rel=4.0 * error)
    search = Search(joint)
    z = search.z(scores)
    chosen = np.random.default_rng(0).choice(len(z), size=20, replace=False)
    for w in chosen:
        part = restrict(joint, search.units[search.windows.start[w] : search.windows.end[w]])
        every = np.arange(len(part))
        variance = part.weights @ covariance(part, every, every) @ part.weights
        assert score_variance(part) == pytest.approx(variance, rel=1e-5)
        assert part.total / math.sqrt(variance) == pytest.approx(z[w, 0], rel=1e-3, abs=1e-4)
        assert np.var(z[w]) == pytest.approx(1.0, rel=5.0 * error)
    assert np.var(z, axis=1).mean() == pytest.approx(1.0, rel=error)


def test_every_h_counts_once_whatever_the_weight_of_its_pair(bound) -> None:
    """A frequent word that recurs in its context is one pair of weight 2, and has one h."""
    text = f"He said that of the house. And he said that of the house again. {used_words()}"
    matrix = read(bound, text).matrix
    key = next(use_keys(1))
    joint, form = joint_of(matrix, key), matrix.form
    assert joint.weights[: joint.pairs].max() > 1.0
    assert not joint.meant[: joint.pairs].all()
    assert np.all(joint.T[~joint.meant] == 0.0)
    assert joint.positions.max() == joint.pairs - 1
    assert joint.extra == matrix.blank.extra
    b = math.sqrt(matrix.square / form.square)
    added = joint.total - matrix.under(key).total
    assert added == pytest.approx(b * float(form.weights @ key.form.noise(form.numbers)))
    assert np.count_nonzero(joint.own) == len(form.numbers)
    own = joint.form  # of the whole text as a passage
    assert set(own.numbers.tolist()) == set(form.numbers.tolist())
    assert own.z(key.form) == pytest.approx(form.z(key.form))


def test_the_z_of_a_passage_is_normal_over_keys(bound) -> None:
    """Words that have only form change its second score alone."""
    matrix, z = read(bound, used_words()).matrix, []
    for key in use_keys(300):
        meaning, joint = (restrict(each, Units.of(each)[200:500]) for each in matrix.views(matrix.under(key)))
        found = passage_test(joint, limit=2.5)
        assert 0.0 < found.effective_length <= joint.meant.sum() < len(joint)
        z.append((found.z, found.z_meaning, found.z_form))
    assert passage_test(joint.meaning, limit=2.5).z == pytest.approx(found.z_meaning)
    assert math.isnan(passage_test(meaning, limit=2.5).z_form)
    assert np.abs(np.mean(z, axis=0)).max() < 4.0 / math.sqrt(len(z))
    assert np.std(z, axis=0) == pytest.approx(1.0, abs=4.0 / math.sqrt(2 * len(z)))


def test_what_is_shown_of_each_word(bound) -> None:
    """(u + h)/√2, or the one of them that it has."""
    text = used_words()
    (found,) = score_texts(bound, [text])
    matrix = read(bound, text).matrix
    evidence, form = matrix.under(bound.own), matrix.form
    u = np.append(evidence.alignments, np.nan)[evidence.positions]
    h = np.full(len(u), np.nan)
    h[form.places] = bound.own.form.noise(form.numbers)
    both, none = ~np.isnan(u + h), np.isnan(u) & np.isnan(h)
    assert min(both.sum(), np.sum(np.isnan(u) & ~none)) > 200
    expected = np.where(both, (u + h) / math.sqrt(2.0), np.where(np.isnan(h), u, h))
    np.testing.assert_allclose(
        [token.score for token in found.tokens], np.where(none, 0.0, expected), rtol=1e-5
    )
    assert [token.scored for token in found.tokens] == (~none).tolist()


def test_one_view_where_h_is_unknown_or_the_text_has_none(bound) -> None:
    reading, key = read(bound, new_words()), next(use_keys(1))
    half = KeyEvidence.of(bound.under(UseKey(key.W)), reading)
    assert (len(half.views), half.hypotheses) == (1, 1)
    matrix = reading.matrix
    pairs = dataclasses.replace(matrix.pairs, form=dataclasses.replace(matrix.form, weights=np.zeros(0)))
    bare = dataclasses.replace(matrix, pairs=pairs)
    assert len(bare.views(bare.under(key))) == 1


def test_each_use_of_a_ring_is_searched_by_both_sums(bound) -> None:
    """By those of the use that fits, under the message whose signs it has."""
    ring = Key(bytes(range(32)), members=32, payload_bits=2)
    bound = DEW().bind(ring, no_host(), Workspace(cache=Path("unused"))).reading_with(NO_READER)
    reading = read(bound, new_words())
    found = KeyEvidence.of(bound, reading)
    assert found.hypotheses == 2 * bound.n_hypotheses
    best = bound.uses.find(reading.matrix)
    assert passage_test(found.views[1], limit=2.5).z_form == pytest.approx(best.z_form)


# What is found


class PlantedForm(FormKey):
    """A key whose h are larger by `shift` for some numbers."""

    marked = np.zeros(0, dtype=np.uint64)
    shift = 0.0

    def noise(self, numbers):
        return super().noise(numbers) + self.shift * np.isin(numbers, self.marked)


def planted(matrix: TextMatrix, start: int, end: int, *, u: float, h: float, count: int) -> Iterator[UseKey]:
    """Keys under which the words [start, end) score higher by so many standard deviations."""
    inside = np.unique(matrix.blank.positions[start:end])
    inside = inside[inside >= 0]
    T, C = (np.asarray(rows, dtype=np.float64)[inside] for rows in (matrix.blank.T, matrix.blank.C))
    sd = np.linalg.norm(T, axis=1) * np.linalg.norm(C, axis=1)
    shift = np.linalg.solve((T @ T.T) * (C @ C.T) + 0.05 * np.diag(sd**2), u * sd)
    form = matrix.form
    for key in use_keys(count, seed=5):
        own = PlantedForm(key.form.first, key.form.second)
        marked = form.numbers[(form.places >= start) & (form.places < end)]
        object.__setattr__(own, "marked", marked)
        object.__setattr__(own, "shift", h)
        yield UseKey((key.W + (T * shift[:, None]).T @ C).astype(np.float32), own)


def found_by_views(bound: BoundDEW, *, u: float, h: float, keys: int) -> np.ndarray:
    """Whether meaning alone and the joint sum find a passage of 150 words in 830, (keys, 2)."""
    reading = read(bound, " ".join(register_texts()[:6]))
    under = planted(reading.matrix, 300, 450, u=u, h=h, count=keys)
    found = searched(bound, reading, under, level=2e-3)
    return np.array([[bool(each.segments) for each in views] for views in found.values()])


def test_a_weak_passage_is_found_by_both_sums_where_meaning_does_not_reach(bound) -> None:
    meaning, joint = found_by_views(bound, u=0.35, h=0.35, keys=24).mean(axis=0)
    assert joint > 0.7
    assert meaning < 0.5 * joint


def test_a_passage_whose_form_is_destroyed_is_found_by_its_meaning(bound) -> None:
    meaning, joint = found_by_views(bound, u=0.6, h=0.0, keys=24).mean(axis=0)
    assert meaning > 0.7
    assert meaning > joint


def test_the_verdict_shows_the_passage_once(bound) -> None:
    """Both views find it; the smaller p-value stays, and pays for both."""
    text = " ".join(register_texts()[:6])
    reading = read(bound, text)
    (key,) = planted(reading.matrix, 300, 450, u=0.8, h=0.8, count=1)
    (found,) = detect_texts([text], bound.under(key))
    (passage,) = found.passages
    places = reading.text.offsets
    assert abs(passage.start - places[300][0]) < 200
    assert abs(passage.end - places[449][1]) < 200
    (views,) = searched(bound, reading, iter([key]), level=0.01).values()
    least = min(segment.corrected for each in views for segment in each.segments)
    assert passage.p_value == pytest.approx(max(2.0 * least, 2.0**-256), rel=0.01)
