"""Marked segments: planted ones are found where they are, and skewed scores do not accuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import gammaincc, ndtri
from tests.stats.synthetic import scores_under_keys, text_like, under, with_scores

from dewmark.stats import passages as module
from dewmark.stats import passages as scanning
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic, key_test
from dewmark.stats.passages import locate, posterior


def independent(scores: np.ndarray, positions: np.ndarray | None = None) -> Evidence:
    places = np.arange(len(scores)) if positions is None else positions
    return Evidence.independent(scores, np.bincount(places, minlength=len(scores)).astype(float), places)


def noise(units: int, *marked: tuple[int, int], strength: float, seed: int) -> np.ndarray:
    scores = np.random.default_rng(seed).normal(size=units)
    for start, end in marked:
        scores[start:end] += strength
    return scores


@pytest.fixture
def one_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scans of independent scores share their draws by length, which do not depend on the scores."""
    kept = {}

    def fast(evidence: Evidence) -> scanning.Scan:
        if len(evidence) not in kept:
            kept[len(evidence)] = scanning.scan(evidence)
        windows = kept[len(evidence)]
        total = np.concatenate([[0.0], np.cumsum(evidence.scores)])
        sums = total[windows.end] - total[windows.start]
        return with_scores(windows, sums / np.sqrt((windows.end - windows.start) * evidence.variance))

    monkeypatch.setattr(module, "scan", fast)


def overlap(segments, *marked: tuple[int, int]) -> float:
    found = {i for s in segments for i in range(s.start, s.end)}
    truth = {i for a, b in marked for i in range(a, b)}
    return len(found & truth) / len(found | truth)


def test_a_planted_segment_is_found_where_it_is(one_family):
    """Strength 1, 100 units: its z is 10 ± 1, and a boundary moves by a few units of 1/strength² each."""
    overlaps = []
    for seed in range(20):
        (segment,) = locate(independent(noise(500, (200, 300), strength=1.0, seed=seed)))
        overlaps.append(overlap([segment], (200, 300)))
        assert segment.corrected < 1e-6
        assert segment.p_value < segment.corrected
        assert segment.share > 0.8
    assert np.mean(overlaps) > 0.9
    assert min(overlaps) > 0.7


def test_a_weak_segment_is_found_most_of_the_time(one_family):
    """Strength 0.4 over 150 of 500 units: z is 4.9 ± 1, the threshold at 5% near 3."""
    found = [locate(independent(noise(500, (200, 350), strength=0.4, seed=seed))) for seed in range(30)]
    assert sum(map(bool, found)) >= 26  # P(z > 3) = 0.97: fewer than 26 of 30 has probability 0.2%
    assert np.mean([overlap(each, (200, 350)) for each in found if each]) > 0.7


def test_two_segments_are_two(one_family):
    for seed in range(5):
        segments = locate(independent(noise(500, (60, 160), (330, 430), strength=1.0, seed=seed)))
        assert len(segments) == 2
        assert segments[0].end <= segments[1].start
        assert overlap(segments, (60, 160), (330, 430)) > 0.75


def test_a_text_that_is_marked_throughout_is_one_segment(one_family, monkeypatch):
    (segment,) = locate(independent(noise(300, (0, 300), strength=0.8, seed=1)))
    assert (segment.start, segment.end) == (0, 300)


def test_segments_longer_than_a_window_are_joined(monkeypatch):
    monkeypatch.setattr(scanning, "REACH", 64)
    (segment,) = locate(independent(noise(500, (100, 400), strength=1.0, seed=2)))
    assert overlap([segment], (100, 400)) > 0.9
    assert segment.end - segment.start > 4 * 64
    assert segment.z == pytest.approx(math.sqrt(300), abs=4.0)


def test_units_are_places_in_the_text():
    scores = noise(400, (200, 300), strength=1.2, seed=3)
    positions = np.arange(400)
    holes = np.random.default_rng(0).choice(400, size=80, replace=False)
    positions[holes] = -1
    kept = np.flatnonzero(positions >= 0)
    positions[kept] = np.arange(len(kept))
    evidence = Evidence.independent(scores[kept], np.ones(len(kept)), positions)
    (segment,) = locate(evidence)
    assert overlap([segment], (200, 300)) > 0.8
    assert posterior(evidence).shape == (320,)


def test_a_repeated_stretch_is_no_more_evidence_than_one():
    """Forty pairs with a little luck: once and ten times over, they weigh the same."""
    luck = np.full(40, 0.55)  # z = 0.55 √40 = 3.5 however often it is said
    rest = noise(200, strength=0.0, seed=4)
    once = independent(np.concatenate([luck, rest]))
    positions = np.concatenate([np.tile(np.arange(40), 10), np.arange(40, 240)])
    often = independent(np.concatenate([luck, rest]), positions)
    best = {name: scanning.scan(text).z.max() for name, text in (("once", once), ("often", often))}
    assert best["once"] == pytest.approx(3.5, abs=0.3)
    assert best["often"] == pytest.approx(best["once"], abs=0.3)


def test_nothing_is_found_in_unmarked_texts():
    """DEW-like scores under 20 keys: at a level of 0.1% an alarm has probability 2%."""
    text = text_like(150)
    assert not any(locate(under(text, scores), fpr=1e-3) for scores in scores_under_keys(text, 20, seed=11))


def gamma_law(evidence: Evidence) -> Statistic:
    """The exact test of a sum of exponential scores minus one."""
    n = len(evidence)
    p = float(gammaincc(n, max(evidence.total + n, 0.0)))
    return Statistic(-float(ndtri(max(p, 1e-300))), p, float(n))


def test_an_exact_law_tames_skewed_scores(one_family):
    """Exponential scores: the normal law alarms too often, the scheme's own law does not."""
    texts, level = 500, 0.01
    draw = np.random.default_rng(8)
    alarms = {"normal": 0, "exact": 0}
    for _ in range(texts):
        evidence = independent(draw.exponential(size=200) - 1.0)
        alarms["normal"] += bool(locate(evidence, fpr=level, test=key_test))
        alarms["exact"] += bool(locate(evidence, fpr=level, test=gamma_law))
    margin = 3.0 * math.sqrt(level * (1.0 - level) / texts)
    assert alarms["normal"] / texts > level + margin
    assert alarms["exact"] / texts < level + margin


def test_the_posterior_is_a_probability_that_follows_the_mark():
    marked = posterior(independent(noise(300, (100, 200), strength=1.0, seed=5)))
    assert np.all((marked >= 0.0) & (marked <= 1.0))
    assert marked[120:180].mean() > 0.9
    assert marked[:80].mean() < 0.1
    assert len(posterior(independent(np.zeros(0)))) == 0


@pytest.mark.parametrize("units", [0, 5, 30])
def test_short_texts_have_no_segments(units):
    assert locate(independent(np.zeros(units))) == []
