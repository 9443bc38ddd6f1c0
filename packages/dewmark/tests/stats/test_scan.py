"""The scan of all windows and the marked segments: variances, family-wise p-values, boundaries."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc

import numpy as np
import pytest
from scipy.special import gammaincc, ndtr, ndtri

from dewmark.core.whitening import normalize_rows
from dewmark.dew.paper.null_distribution import tanh_kernel
from dewmark.stats import scan as module
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic, covariance, key_test
from dewmark.stats.scan import Scan, Search, Segment, Test, Units, gains

GAMMA = 0.5


def scan(evidence: Evidence, *, draws: int = module.DRAWS) -> Scan:
    """Every window of a text under one key."""
    prepared = module.Search(evidence, draws=draws)
    return prepared.scan(prepared.z(evidence.scores[:, None])[:, 0])


def locate(evidence: Evidence, *, fpr: float = 0.05, test: Test = key_test) -> list[Segment]:
    """The marked segments of a text under one key."""
    (found,) = module.search([evidence], levels=[fpr], tests=[test])
    return found.segments


def text_like(units: int, *, seed: int = 0, d: int = 20) -> Evidence:
    """A text of ``units`` units with what real text has: repeated tokens, contexts that share a component and
    drift, unscored units at the start, and a stretch of 30 units that occurs twice. All scores are 0.
    """
    rng = np.random.default_rng(seed)
    vocabulary = normalize_rows(rng.normal(size=(max(units // 3, 2), d)))
    T = vocabulary[rng.integers(len(vocabulary), size=units)]
    drift = np.cumsum(rng.normal(size=(units, d)), axis=0) / np.sqrt(units)
    C = normalize_rows(rng.normal(size=(units, d)) + 0.3 + drift)
    positions = np.arange(units)
    positions[-40:-10] = positions[20:50]
    positions[:3] = -1
    pairs, inverse, counts = np.unique(positions[3:], return_inverse=True, return_counts=True)
    positions[3:] = inverse
    nothing = np.zeros(len(pairs))
    return Evidence(nothing, nothing, counts.astype(float), positions, T[pairs], C[pairs], tanh_kernel(GAMMA))


def scores_under_keys(evidence: Evidence, keys: int, *, seed: int = 1) -> np.ndarray:
    """tanh(γ t_iᵀ W c_i) for fresh Gaussian W, (keys, N): the alignments have covariance ρ exactly."""
    rng = np.random.default_rng(seed)
    outer = np.einsum("ia,ib->iab", evidence.T, evidence.C).reshape(len(evidence), -1)
    return np.tanh(GAMMA * (rng.normal(size=(keys, outer.shape[1])) @ outer.T))


def under(evidence: Evidence, scores: np.ndarray) -> Evidence:
    """The same text with the scores (N,) of another key."""
    return dataclasses.replace(evidence, scores=scores, alignments=scores)


def with_scores(windows: Scan, z: np.ndarray) -> Scan:
    """The same windows with other z: what a scan draws does not depend on the scores."""
    return dataclasses.replace(windows, z=z)


def window_sums(evidence: Evidence, scores: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """S_w under several keys' scores (keys, N): (keys, W)."""
    units = Units.of(evidence)
    total = np.cumsum(scores[:, units.pair] * units.weight, axis=1)
    total = np.hstack([np.zeros((len(scores), 1)), total])
    return total[:, end] - total[:, start]


def independent(scores: np.ndarray, positions: np.ndarray | None = None) -> Evidence:
    places = np.arange(len(scores)) if positions is None else positions
    return Evidence.independent(scores, np.bincount(places, minlength=len(scores)).astype(float), places)


@pytest.fixture(scope="module")
def text() -> Evidence:
    evidence = text_like(260)
    return under(evidence, scores_under_keys(evidence, 1)[0])


@pytest.fixture(scope="module")
def windows(text):
    return scan(text)


def test_each_window_has_the_z_of_the_key_test_on_its_units_alone(text, windows):
    units = Units.of(text)
    for w in np.random.default_rng(0).choice(len(windows.z), size=25, replace=False):
        inside = units.pair[windows.start[w] : windows.end[w]]
        pairs, counts = np.unique(inside, return_counts=True)
        part = dataclasses.replace(
            text, scores=text.scores[pairs], weights=counts.astype(float), T=text.T[pairs], C=text.C[pairs]
        )
        statistic = key_test(part)
        assert windows.z[w] == pytest.approx(statistic.z, rel=1e-4, abs=1e-5)
        assert statistic.effective_length >= module.MIN_EFFECTIVE_LENGTH - 1e-3


def test_scores_with_a_variance_of_their_own(text):
    """Each window and the rest are tested with it, and family-wise p-values hold over keys."""
    rng, keys, level = np.random.default_rng(4), 1000, 0.1
    own = rng.uniform(0.0, 0.3, size=len(text))
    blank, units = dataclasses.replace(text, own=own), Units.of(text)
    scores = scores_under_keys(text, keys) + rng.standard_normal((keys, len(text))) * np.sqrt(own)
    found = under(blank, scores[0])
    windows, prepared = scan(found), Search(blank)
    for w in rng.choice(len(windows.z), size=10, replace=False):
        part = module.restrict(found, units[windows.start[w] : windows.end[w]])
        assert windows.z[w] == pytest.approx(key_test(part).z, rel=1e-4, abs=1e-5)
    z = prepared.z(scores.T)
    assert np.var(z, axis=1).mean() == pytest.approx(1.0, abs=math.sqrt(2.0 / keys))
    alarms = np.mean([prepared.scan(each).corrected.min() <= level for each in z.T])
    margin = 3.5 * math.sqrt(level * (1.0 - level) / keys)
    assert 0.5 * level - margin < alarms <= level + margin
    outside = np.arange(len(units)) >= 120
    rests = [module.rest_of(under(blank, each), units, outside, windows, [0]).z for each in scores]
    assert np.mean(rests) == pytest.approx(0.0, abs=4.0 / math.sqrt(keys))
    assert np.std(rests) == pytest.approx(1.0, abs=4.0 / math.sqrt(2 * keys))


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_pairs_without_rows_are_left_out_of_the_covariance(monkeypatch, share):
    """Their variances are summed beside it: windows and the law of the least q are the same."""
    rng, n = np.random.default_rng(6), 150
    T = normalize_rows(rng.normal(size=(n, 12)) + 0.3) * (rng.random((n, 1)) >= share)
    C = normalize_rows(rng.normal(size=(n, 12)) + 0.3)
    counts = np.where(T.any(axis=1) & (rng.random(n) < 0.1), 2.0, 1.0)
    positions = rng.permutation(np.repeat(np.arange(n), counts.astype(int)))
    own = np.where(T.any(axis=1), 0.1, rng.uniform(0.2, 1.0, size=n))
    none = np.zeros(n)
    text = Evidence(none, none, counts, positions, T, C, (1.0,), unit_rows=False, own=own)
    apart = Search(text, draws=4000)
    assert len(apart._whole._covariance) == np.count_nonzero(T.any(axis=1))
    monkeypatch.setattr(module, "_without_rows", lambda evidence, pairs: np.zeros(len(pairs), dtype=bool))
    together = Search(text, draws=4000)
    np.testing.assert_array_equal(apart.windows.start, together.windows.start)
    np.testing.assert_allclose(apart._deviation, together._deviation, rtol=1e-5)
    np.testing.assert_allclose(apart._crowding, together._crowding, rtol=0.1)


def test_the_family_covers_the_text_at_every_length(windows, text):
    length = len(Units.of(text))
    sizes = windows.end - windows.start
    assert sizes.max() == length
    assert windows.start.min() == 0
    assert windows.end.max() == length
    assert np.all(np.diff(np.unique(sizes)) <= np.maximum(0.16 * np.unique(sizes)[:-1], 2))
    assert windows.share.sum() == pytest.approx(1.0, abs=0.25)  # windows of few independent units are out


def test_family_wise_p_values_hold_over_keys(text, windows):
    """Correlated contexts and repeats, 1,500 fresh keys: alarms at most nominal, and not far below it."""
    keys = 1500
    sd = window_sums(text, text.scores[None], windows.start, windows.end)[0] / windows.z
    z = window_sums(text, scores_under_keys(text, keys, seed=7), windows.start, windows.end) / sd
    least = np.array([with_scores(windows, row).corrected.min() for row in z])
    for level in (0.05, 0.2):
        # the draws add up to two standard errors of their own (some 10%) on the cautious side, and sums of
        # saturated scores have lighter tails than normal ones: the true rate lies between half and nominal
        margin = 3.5 * math.sqrt(level * (1.0 - level) / keys)
        assert 0.5 * level - margin < np.mean(least <= level) <= level + margin
    bonferroni = np.mean(np.min(ndtr(-z) / windows.share, axis=1) <= 0.2)
    assert bonferroni < 0.1  # what is gained over it


def test_the_curve_is_the_law_of_the_least_q(text, windows):
    """P(Q ≤ q) from conditional draws against plain simulation of normal scores, down to 1%."""
    rng, draws = np.random.default_rng(3), 4000
    every = np.arange(len(text))
    K = covariance(text, every, every).astype(float)
    values, vectors = np.linalg.eigh(K)
    normal = rng.normal(size=(draws, len(K))) @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
    sd = window_sums(text, text.scores[None], windows.start, windows.end)[0] / windows.z
    least = np.min(ndtr(-window_sums(text, normal, windows.start, windows.end) / sd) / windows.share, axis=1)
    for share in (0.3, 0.1, 0.03, 0.01):
        q = float(np.quantile(least, share))
        said = windows.correct(0, q * windows.share[0])
        # 4 standard errors of the simulated quantile; above, room for the scan's own two and their error
        error = math.sqrt(share * (1.0 - share) / draws)
        assert share - 4.0 * error < said < 1.25 * share + 4.0 * error


def test_far_tails_lie_between_the_raw_p_and_bonferroni(windows):
    for z in (5.0, 8.0, 12.0, 30.0):
        one = with_scores(windows, np.full_like(windows.z, z))
        p = ndtr(-z)
        assert np.all(one.corrected <= np.minimum(p / windows.share, 1.0) * (1 + 1e-9))
        assert np.all(one.corrected >= p)
    steps = np.linspace(-3.0, 40.0, 200)
    p = [with_scores(windows, np.full_like(windows.z, z)).corrected[0] for z in steps]
    assert np.all(np.diff(p) <= 0.0)


def test_the_result_is_deterministic(text, windows):
    again = scan(text)
    assert np.array_equal(again.corrected, windows.corrected)
    other = scan(under(text, -text.scores))
    assert np.array_equal(other.crowding, windows.crowding)  # the draws do not see the scores
    assert np.array_equal(other.z, -windows.z)


def test_long_texts_are_divided_into_chunks(monkeypatch, text, windows):
    whole = dict(zip(zip(windows.start, windows.end, strict=True), windows.z, strict=True))
    monkeypatch.setattr(module, "REACH", 64)
    cut = scan(text)
    assert (cut.end - cut.start).max() == 64
    shared = [w for w in range(len(cut.z)) if (cut.start[w], cut.end[w]) in whole]
    assert len(shared) > 100
    for w in shared:
        assert cut.z[w] == pytest.approx(whole[cut.start[w], cut.end[w]], rel=1e-4, abs=1e-5)
    assert len({*zip(cut.start, cut.end, strict=True)}) == len(cut.z)  # no window belongs to two chunks


def test_chunks_are_more_conservative(monkeypatch):
    rng = np.random.default_rng(5)
    scores = rng.normal(size=(400, 320))
    monkeypatch.setattr(module, "REACH", 64)
    cut = scan(independent(scores[0]))
    z = window_sums(independent(scores[0]), scores, cut.start, cut.end) / np.sqrt(cut.end - cut.start)
    alarms = np.mean([with_scores(cut, row).corrected.min() <= 0.1 for row in z])
    assert 0.03 < alarms < 0.1 + 3.5 * math.sqrt(0.1 * 0.9 / 400)


def test_memory_does_not_grow_with_the_square_of_the_text(monkeypatch):
    monkeypatch.setattr(module, "REACH", 64)
    monkeypatch.setattr(module, "BATCH", 16)
    text = independent(np.random.default_rng(0).normal(size=4000))
    tracemalloc.start()
    try:
        scan(text, draws=100)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4000**2 * 8 / 4  # a quarter of the one matrix that it does not make


def test_a_chunk_is_held_once_beside_its_factor(monkeypatch):
    """Two matrices in double precision and one in single; what is made on the way is no larger."""
    monkeypatch.setattr(module, "BATCH", 4)
    n = 1000
    text = independent(np.random.default_rng(0).normal(size=n))
    tracemalloc.start()
    try:
        scan(text, draws=8)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (8 + 8 + 4 + 4) * n**2


def test_pairs_that_a_scheme_counts_once_count_where_they_first_occur():
    positions = np.tile(np.arange(60), 2)
    scores = np.random.default_rng(0).normal(size=60)
    once = Evidence.independent(scores, np.full(60, 0.5), positions)
    units = Units.of(once)
    assert units.place.tolist() == list(range(60))
    assert np.all(units.weight == 0.5)
    assert Units.of(Evidence.independent(scores, np.full(60, 2.0), positions)).weight.sum() == 120


def test_scores_that_cancel_are_no_evidence():
    """Two tokens of opposite meaning in one context, by turns: every other window sums to nothing."""
    turns = np.where(np.arange(80) % 2 == 0, 1.0, -1.0)
    T = np.outer(turns, [0.6, 0.8]).astype(np.float32)
    text = Evidence(turns, turns, np.ones(80), np.arange(80), T, np.ones((80, 1), dtype=np.float32), (1.0,))
    windows = scan(text)
    assert np.all(np.isfinite(windows.z))
    assert windows.corrected.min() > 0.05


def noise(units: int, *marked: tuple[int, int], strength: float, seed: int) -> np.ndarray:
    scores = np.random.default_rng(seed).normal(size=units)
    for start, end in marked:
        scores[start:end] += strength
    return scores


@pytest.fixture
def one_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scans of independent scores share their draws by length, which do not depend on the scores."""
    kept: dict[int, Search] = {}

    def shared(evidence: Evidence) -> Search:
        if len(evidence) not in kept:
            kept[len(evidence)] = Search(evidence)
        return kept[len(evidence)]

    monkeypatch.setattr(module, "Search", shared)


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


def test_two_segments_stay_separate(one_family):
    for seed in range(5):
        segments = locate(independent(noise(500, (60, 160), (330, 430), strength=1.0, seed=seed)))
        assert len(segments) == 2
        assert segments[0].end <= segments[1].start
        assert overlap(segments, (60, 160), (330, 430)) > 0.75


def test_a_text_that_is_marked_throughout_is_one_segment(one_family, monkeypatch):
    (segment,) = locate(independent(noise(300, (0, 300), strength=0.8, seed=1)))
    assert (segment.start, segment.end) == (0, 300)


def test_segments_longer_than_a_window_are_joined(monkeypatch):
    monkeypatch.setattr(module, "REACH", 64)
    (segment,) = locate(independent(noise(500, (100, 400), strength=1.0, seed=2)))
    assert overlap([segment], (100, 400)) > 0.9
    assert segment.end - segment.start > 4 * 64
    assert segment.z == pytest.approx(math.sqrt(300), abs=4.0)


def test_segments_are_positions_in_the_text():
    scores = noise(400, (200, 300), strength=1.2, seed=3)
    positions = np.arange(400)
    holes = np.random.default_rng(0).choice(400, size=80, replace=False)
    positions[holes] = -1
    kept = np.flatnonzero(positions >= 0)
    positions[kept] = np.arange(len(kept))
    evidence = Evidence.independent(scores[kept], np.ones(len(kept)), positions)
    (segment,) = locate(evidence)
    assert overlap([segment], (200, 300)) > 0.8
    assert gains(evidence)[0].shape == (320,)


def test_a_repeated_stretch_counts_once():
    """Forty pairs with a little luck: once and ten times over, they weigh the same."""
    luck = np.full(40, 0.55)  # z = 0.55 √40 = 3.5 however often it is said
    rest = noise(200, strength=0.0, seed=4)
    once = independent(np.concatenate([luck, rest]))
    positions = np.concatenate([np.tile(np.arange(40), 10), np.arange(40, 240)])
    often = independent(np.concatenate([luck, rest]), positions)
    best = {name: scan(text).z.max() for name, text in (("once", once), ("often", often))}
    assert best["once"] == pytest.approx(3.5, abs=0.3)
    assert best["often"] == pytest.approx(best["once"], abs=0.3)


def test_nothing_is_found_at_a_level_that_sharing_made_zero():
    (found,) = module.search([independent(np.full(60, 3.0))], levels=[5e-324 / 50], tests=[key_test])
    assert found == module.NOTHING_FOUND


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
    marked, _ = gains(independent(noise(300, (100, 200), strength=1.0, seed=5)))
    assert np.all((marked >= 0.0) & (marked <= 1.0))
    assert marked[120:180].mean() > 0.9
    assert marked[:80].mean() < 0.1
    assert len(gains(independent(np.zeros(0)))[0]) == 0


def rest_of(scores: np.ndarray) -> module.Rest:
    (found,) = module.search([independent(scores)], levels=[0.01], tests=[key_test])
    assert found.rest is not None
    return found.rest


def test_the_rest_of_a_quotation_carries_no_evidence(one_family):
    """100 marked units of 500: over seeds the rest's p-values are those of unmarked text."""
    rests = [rest_of(noise(500, (200, 300), strength=1.0, seed=seed)) for seed in range(60)]
    assert all(300 < rest.units < 440 for rest in rests)
    # boundaries are off by a few units, which shifts z by a few tenths at most
    assert abs(np.mean([rest.z for rest in rests])) < 0.5 + 3.0 / math.sqrt(60)
    assert np.mean([rest.p_value < 0.01 for rest in rests]) < 0.1
    assert all(rest.p_like_segments < 1e-4 for rest in rests)


def test_a_uniform_mark_is_seldom_called_a_part(one_family):
    """Weak marks throughout: segments are picked from them, and the correction pays for the choice."""
    level, called = 0.01, 0
    for seed in range(150):
        (found,) = module.search(
            [independent(noise(300, (0, 300), strength=0.3, seed=seed))], levels=[level], tests=[key_test]
        )
        rest = found.rest
        called += rest is not None and rest.p_value >= level and rest.p_like_segments < level
    assert called <= 7  # P(X > 7) = 0.02% for 150 texts at 1%


def test_the_rest_is_tested_given_what_it_shares_with_the_segment():
    """A rest with the vocabulary of a marked segment inherits some of its score, which does not count.

    Under keys tilted towards the first 100 units the mean of S_0 is exactly βS_1 in expectation.
    """
    rng = np.random.default_rng(0)
    T = normalize_rows(rng.normal(size=(400, 8)) + 0.4)
    blank = Evidence(
        np.zeros(400), np.zeros(400), np.ones(400), np.arange(400), T, np.zeros(400, dtype=int), (1.0,)
    )
    windows, outside = scan(blank, draws=64), np.arange(400) >= 100
    tilt = T[:100].sum(axis=0) / np.linalg.norm(T[:100].sum(axis=0))
    plain, given = [], []
    for _ in range(200):
        u = T @ (rng.normal(size=8) + 4.0 * tilt)
        rest = module.rest_of(under(blank, u), Units.of(blank), outside, windows, [0])
        part = dataclasses.replace(blank, scores=u[100:], weights=np.ones(300), T=T[100:], C=blank.C[100:])
        plain.append(key_test(part).z)
        given.append(rest.z)
    assert np.mean(plain) > 2.0
    assert abs(np.mean(given)) < 4.0 / math.sqrt(200)
    assert np.std(given) == pytest.approx(1.0, abs=0.2)


def test_a_simulation_adds_two_standard_errors_of_its_own(text):
    """Few draws make p-values larger, never smaller."""
    prepared = Search(text, draws=64)
    mass = float(prepared.windows.share.sum())
    inverse = prepared._whole.inverse_counts(prepared.windows, 64, np.random.default_rng(0))
    mean, error = mass * inverse.mean(axis=0), mass * inverse.std(axis=0) / math.sqrt(len(inverse))
    assert np.all(error[error > 0.0] > 1e-3 * mean[error > 0.0])
    assert np.allclose(prepared._crowding, np.minimum(mean + 2.0 * error, mass))


def test_how_far_the_rest_falls_behind_accounts_for_what_the_parts_share():
    rng = np.random.default_rng(2)
    T = normalize_rows(rng.normal(size=(120, 40)) + 0.15).astype(np.float32)  # one direction runs through all
    evidence = Evidence(
        rng.normal(size=120) + np.repeat([0.0, 0.4], 60), np.zeros(120), np.ones(120), np.arange(120),
        T, np.ones((120, 1), dtype=np.float32), (1.0,),
    )  # fmt: skip
    windows, outside = scan(evidence), np.arange(120) < 60
    chosen = [int(np.argmin(np.abs(windows.start - 60) + np.abs(windows.end - 120)))]
    rest = module.rest_of(evidence, Units.of(evidence), outside, windows, chosen)
    contrast = np.where(outside, -1.0 / 60, 1.0 / 60)
    K = covariance(evidence, np.arange(120), np.arange(120)).astype(np.float64)
    below = 1.0 - ndtr(contrast @ evidence.scores / math.sqrt(contrast @ K @ contrast))
    assert rest.p_like_segments == pytest.approx(windows.correct(chosen[0], below), rel=1e-3)
    assert rest.p_like_segments < 0.9


def test_each_window_is_counted_in_the_chunk_in_which_it_begins(monkeypatch):
    """Also one that begins where the next chunk does: counted twice, it would weigh twice in the law."""
    monkeypatch.setattr(module, "REACH", 64)
    prepared, counted = Search(independent(np.zeros(320)), draws=64), []
    inverse_counts = module._Chunk.inverse_counts

    def counts(chunk, windows, draws, rng):
        counted.append(len(windows.start))
        return inverse_counts(chunk, windows, draws, rng)

    monkeypatch.setattr(module._Chunk, "inverse_counts", counts)
    assert {64, 128} < {*prepared.windows.start.tolist()}
    assert np.all(prepared._crowding > 0.0)
    assert sum(counted) == len(prepared.windows.start)


def test_a_part_of_a_text_has_positions_of_its_own():
    text = independent(np.arange(5.0), np.array([0, 1, 0, 2, 3, 4, 1]))
    units = Units.of(text)
    part = module.restrict(text, units[3:7])
    assert part.positions.tolist() == [1, 2, 3, 0]
    assert part.scores.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert Units.of(part).pair.tolist() == [1, 2, 3, 0]
