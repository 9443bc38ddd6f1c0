"""How many texts stealing takes, against simulated texts, and the attackers of rings."""

from __future__ import annotations

import math
import zlib
from random import Random

import numpy as np
import pytest
from scipy.special import ndtr

from dewmark.errors import ConfigError
from dewmark_lab.attacks.stealing import sample_size
from dewmark_lab.attacks.stealing.clustering import expectation_maximisation, linked, spectral, told
from dewmark_lab.attacks.stealing.oracle import (
    expected_queries,
    forge_by_p_values,
    forge_by_verdicts,
    replaced,
    scrub_by_p_values,
)
from dewmark_lab.attacks.stealing.regression import (
    Observed,
    fitted_tilt,
    head_mask,
    posterior_mean,
    spend_on_tail,
)
from dewmark_lab.attacks.stealing.signs import align, sign_rows

LENGTH, BETA = 100, 1.0


def spectrum(a: int, b: int) -> np.ndarray:
    """Variances (a, b) that fall off as those of real text do, with sum 1."""
    v = np.outer(1.0 / (3.0 + np.arange(a)), 1.0 / (6.0 + np.arange(b)))
    return v / v.sum()


def texts_of(rng, W, variances):
    """Matrices (N, a, b) of texts marked under W (N, a, b): mean β L v W, variance L v."""
    noise = rng.standard_normal(W.shape) * np.sqrt(LENGTH * variances)
    return (BETA * LENGTH * variances * W + noise).astype(np.float32)


@pytest.mark.parametrize("number", [2, 16, 128])
def test_the_distribution_predicts_head_and_tail(number):
    """Cosines of the posterior mean per block, and the z that a forger reaches with them.

    A cosine over D effective directions varies by 1/√D a key: 0.06 in the head of 260. The mean of 8 keys
    deviates by 0.02, and 4 deviations are 0.08. The forged z of 8 keys x 200 texts deviates by 0.08·z.
    """
    v = spectrum(40, 60)
    head = head_mask(v)
    assert v[head].sum() == pytest.approx(0.5, abs=v.max())
    z = BETA * math.sqrt(LENGTH)
    found = {"head": [], "tail": []}
    scores = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        W = rng.standard_normal(v.shape)
        total = texts_of(rng, np.broadcast_to(W, (number, *v.shape)), v).sum(axis=0, dtype=np.float64)
        tilt = fitted_tilt(total, number * LENGTH, v)
        learned = posterior_mean(total, number * LENGTH, v, tilt=tilt)
        for name, block in (("head", head), ("tail", ~head)):
            a, b = learned[block] * np.sqrt(v[block]), W[block] * np.sqrt(v[block])
            found[name].append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        aimed = spend_on_tail(learned, v, head, share=0.75)
        assert float((np.square(aimed) * v)[~head].sum()) == pytest.approx(0.75)
        forged = texts_of(rng, np.broadcast_to(aimed, (200, *v.shape)), v)
        M, w = forged[:, ~head], W[~head]
        scores.append(np.mean((M @ w) / np.linalg.norm(M, axis=1)))
    for name, block in (("head", head), ("tail", ~head)):
        assert np.mean(found[name]) == pytest.approx(
            sample_size.cosine_after(v[block], number * LENGTH, tilt=BETA), abs=0.08
        )
    expected = sample_size.forged_z(v[~head], number, z=z, length=LENGTH, share=0.75)
    # the forged text's own signal adds to ‖M_tail‖ (by up to 8% here)
    assert np.mean(scores) == pytest.approx(expected, rel=0.2, abs=0.3)


def test_texts_needed_inverts_forged_z():
    v = spectrum(40, 60)[20:]
    common = {"z": 10.0, "length": 100.0, "power": 1.5, "share": 0.75}
    needed = sample_size.texts_needed(v, threshold=3.0, **common)
    assert sample_size.forged_z(v, needed, **common) == pytest.approx(3.0, rel=1e-3)
    assert sample_size.texts_needed(v, threshold=3.0, ring=64, **common) == pytest.approx(64 * needed)
    assert sample_size.texts_needed(v, threshold=16.0, **common) == math.inf
    # while little is known: D z*² / (q f z⁴ (B/β)²)
    short = sample_size.effective_directions(v) * 0.01 / (v.sum() * 0.75 * 1e4 * 2.25)
    assert sample_size.texts_needed(v, threshold=0.1, **common) == pytest.approx(short, rel=0.02)


def mixture(members: int, number: int, *, seed: int):
    v = spectrum(24, 32)
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((members, *v.shape))
    owners = rng.integers(members, size=number)
    return Observed(texts_of(rng, W[owners], v), np.full(number, float(LENGTH)), v), owners


def test_clusters_appear_at_the_spectral_threshold():
    """R² D/z⁴ texts: far above it both ways find the members, far below neither does."""
    v = spectrum(24, 32)
    z = BETA * math.sqrt(LENGTH)
    seen, owners = mixture(4, 160, seed=1)
    assert sample_size.cluster_texts(v, ring=4, z=z) < 5 < 160
    assert spectral(seen, members=4).purity(owners) > 0.9
    link = linked(seen, members=4, tilt=BETA)
    group = link.odds[:, link.best] > 0.5
    assert np.bincount(owners[group]).max() / group.sum() > 0.85  # a member may have fewer than a quarter
    best = expectation_maximisation(seen, members=4, tilt=BETA, restarts=1)
    assert best.purity(owners) > 0.95
    group = best.odds[:, best.best] > 0.5
    assert np.bincount(owners[group]).max() / group.sum() > 0.95
    seen, owners = mixture(60, 120, seed=2)
    assert sample_size.cluster_texts(v, ring=60, z=z) > 120
    # clusters of two texts have a purity of 1/2 by chance
    assert spectral(seen, members=60).purity(owners) < 0.8
    assert told(seen, owners).purity(owners) == 1.0
    with pytest.raises(ConfigError, match="members must lie in 2 … 120"):
        spectral(seen, members=121)


def signed_texts(number: int, size: int, *, signal: float, members: int, seed: int):
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((members, size, size)).astype(np.float32)
    owners, signs = rng.integers(members, size=number), rng.integers(size, size=(number, 2))
    left, right = sign_rows(size, signs[:, 0]), sign_rows(size, signs[:, 1])
    noise = rng.standard_normal((number, size, size)).astype(np.float32)
    M = signal / size * left[:, :, None] * right[:, None, :] * W[owners] + noise
    flat = np.full((size, size), 1.0 / size**2)
    return Observed(M, np.full(number, float(size**2)), flat), owners, signs, W


def test_a_public_sign_group_is_aligned_when_texts_are_long_enough():
    """z²/√D against √(2 ln G), G = D = 1,024: aligned at z = 16 (2.1 times), not at z = 5 (0.2 times)."""
    variances = np.full((32, 32), 1.0 / 1024)
    assert sample_size.aligned_pairs(variances, z=16.0, messages=1024) > 2.0
    assert sample_size.aligned_pairs(variances, z=5.0, messages=1024) < 0.25
    rows = sign_rows(32, np.arange(32))
    np.testing.assert_array_equal(rows @ rows.T, 32 * np.eye(32))
    texts, owners, signs, W = signed_texts(60, 32, signal=16.0, members=2, seed=3)
    found = align(texts, rows, rows, members=2, tilt=0.5, starts=2)
    assert len(found.used) == 30
    mine = found.used[owners[found.used] == owners[found.used[0]]]
    assert len(mine) >= 27  # the others are not of this member, of which there may be fewer than 30
    common = found.signs[mine] ^ signs[mine]
    assert (common == common[0]).all(axis=1).mean() > 0.95
    turned = found.W * rows[common[0, 0]][:, None] * rows[common[0, 1]]
    assert np.corrcoef(turned.ravel(), W[owners[mine[0]]].ravel())[0, 1] > 0.9
    texts, _, signs, _ = signed_texts(60, 32, signal=5.0, members=1, seed=4)
    common = align(texts, rows, rows, tilt=0.16, starts=1).signs ^ signs
    assert max(np.unique(common, axis=0, return_counts=True)[1]) < 10
    with pytest.raises(ConfigError, match="16 x 32"):
        align(texts, rows[:, :16], rows)


class TinyDetector:
    """z = Σ u(place, word)/√n with u ~ N(0, 1) for every word in every place."""

    def __init__(self, words: int) -> None:
        self.n = words
        self.asked = 0

    def p_value(self, text: str) -> float:
        self.asked += 1
        u = [
            np.random.default_rng(zlib.crc32(f"{i} {word}".encode())).standard_normal()
            for i, word in enumerate(text.split())
        ]
        return float(ndtr(-sum(u) / math.sqrt(self.n)))


def test_p_values_forge_in_dozens_of_questions_and_verdicts_in_one_over_the_level():
    others = [f"w{i}" for i in range(400)]
    words = [f"t{i}" for i in range(64)]
    queries = []
    for seed in range(12):
        detector = TinyDetector(64)
        run = forge_by_p_values(
            detector.p_value,
            [f"{w}{seed}" for w in words],
            others,
            level=1e-3,
            most=2000,
            random=Random(seed),
        )
        assert run.reached
        assert run.queries == detector.asked
        assert 0.0 < run.changed < 0.8
        queries.append(run.queries)
        scrubbed = scrub_by_p_values(
            detector.p_value, run.text.split(), others, level=0.1, most=2000, random=Random(seed)
        )
        assert scrubbed.reached
    # the formula leaves out the start (z is 0 ± 1) and that good words are harder to improve: 20% or so
    assert 0.6 < np.mean(queries) / expected_queries(1e-3, 64) < 2.0
    counts = []
    for seed in range(12):
        detector = TinyDetector(64)
        run = forge_by_verdicts(
            lambda text, d=detector: d.p_value(text) < 0.05, [f"{w}{seed}" for w in words], others,
            most=1000, random=Random(seed),
        )  # fmt: skip
        counts.append(run.queries)
    # a geometric distribution of mean 20 has deviation 20, and variants of one text are correlated
    assert 4 < np.mean(counts) < 100
    never = forge_by_verdicts(lambda _: False, words, others, most=5, random=Random(0))
    assert (never.queries, never.reached, never.changed) == (5, False, 0.0)


def test_piggybacking_replaces_as_many_words_as_it_says():
    words = [f"t{i}" for i in range(30)]
    edited = replaced(words, ["x"], 3, Random(1))
    assert sum(now == "x" for now in edited) == 3
    assert sum(now == before for now, before in zip(edited, words, strict=True)) == 27
