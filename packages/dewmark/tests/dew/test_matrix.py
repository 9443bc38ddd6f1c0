"""The text as one matrix: normal over keys, what is cut from it, and each word only once."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tests.many_keys import score_under

import dewmark.dew.matrix as module
from dewmark.capabilities import evidence_of
from dewmark.core.keys import Key
from dewmark.detect import score_texts
from dewmark.dew.matrix import Cuts, cuts_of
from dewmark.dew.reading import Pairs
from dewmark.dew.scheme import DEW
from dewmark.stats.key_test import cross_variance, score_variance
from dewmark.workspace import Workspace, no_host

KEY = Key(bytes(range(32)))
KEYS = [Key(i.to_bytes(32, "big")) for i in range(1, 401)]
FIRST = "an old bridge over the river leads to the harbour where ships wait for wind and a bell rings at dusk"
SECOND = (
    "the old bridge across a river goes to the port where boats stay until a wind comes and the bell sounds"
)


def rows(count: int, dim: int, *, seed: int, common: float = 0.0) -> np.ndarray:
    """Unit rows (count, dim) that share a direction of this size."""
    drawn = np.random.default_rng(seed).standard_normal((count, dim))
    drawn[:, 0] += common * np.sqrt(dim)
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def matrix(T, C, weights) -> np.ndarray:
    return (T * np.asarray(weights)[:, None]).T.astype(np.float64) @ C


def flatten(T, C, weights, *, limit: float) -> Cuts:
    index = np.arange(len(T))
    return cuts_of(matrix(T, C, weights)[None], [Pairs(index, index, weights, index)], limit=limit)[0]


@pytest.mark.parametrize(("pairs", "limit"), [(30, 2.0), (80, 2.0 * (64 / 150) ** (1 / 3))])
def test_flattening_brings_every_direction_down_to_the_limit(pairs, limit) -> None:
    """From twice as many pairs as dimensions on, the limit falls."""
    T, C = rows(pairs, 40, seed=1, common=0.8), rows(pairs, 32, seed=2, common=0.8)
    weights = np.random.default_rng(3).integers(1, 4, size=pairs).astype(np.float64)
    cuts = flatten(T, C, weights, limit=2.0)
    M = matrix(T, C, weights)
    flat = M - (cuts.left.T * cuts.sizes) @ cuts.right
    assert weights.sum() == {30: 55, 80: 150}[pairs]
    bound = limit * np.linalg.norm(flat) / np.sqrt(min(weights.sum(), 32))
    before, after = (np.linalg.svd(x, compute_uv=False) for x in (M, flat))
    assert before[0] > 1.2 * bound
    np.testing.assert_allclose(after, np.minimum(before, bound), rtol=1e-3, atol=1e-4)


def test_a_long_text_is_summed_part_by_part(monkeypatch) -> None:
    """In parts its sum is the same, and no second copy of its rows in double precision is held."""
    T, C = rows(5_000, 40, seed=1), rows(5_000, 32, seed=2)
    weights = np.random.default_rng(3).integers(1, 4, size=5_000).astype(np.float64)
    monkeypatch.setattr(module, "_PAIRS_AT_ONCE", 100)
    tracemalloc.start()
    try:
        M, energy = module._sum_of_pairs(T, C, weights)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < T.nbytes
    np.testing.assert_allclose(M, matrix(T, C, weights), rtol=1e-5, atol=1e-4)
    assert energy == pytest.approx(float(np.sum(weights**2)), rel=1e-5)


def test_words_of_the_lexicon_count_where_they_are_new_and_follow_another() -> None:
    """All texts are read in one pass, whatever their prompts; this reads them word by word."""
    bound = DEW().bind(KEY, no_host(), Workspace(cache=Path("unused")))
    texts = ["the the the the the xyzzy bridge bridge", "xyzzy plugh qwz river", "bridge", f"{FIRST} {FIRST}"]
    prompts = ["an old", "", "", ""]
    tokenized, before = bound.tokenize(texts), bound.tokenize(prompts)
    lexicon, k = bound.reader.lexicon, bound.reader.k
    reading = bound.reader.read(tokenized, before)
    for pairs, text in zip(reading.texts, tokenized, strict=True):
        for i, form in enumerate(text.forms):
            around = text.forms[:i][-k:]
            limit = int(lexicon.limits[lexicon.rows([form])[0]])
            counts = text.forms[:i].count(form) < limit and any(lexicon.rows(around))
            counts = counts and i >= k
            pair = pairs.positions[i]
            assert (pair >= 0) == counts, (form, i)
            if counts:
                unit = bound.reader.lexicon.tokens(bound.reader.lexicon.rows([form]))[0]
                np.testing.assert_array_equal(reading.token_rows[pairs.tokens[pair]], unit)
                context = lexicon.contexts_of(lexicon.rows(around)[None])[0]
                np.testing.assert_allclose(reading.context_rows[pairs.windows[pair]], context, atol=1e-6)


def test_texts_without_a_common_direction_are_left_alone() -> None:
    T, C = rows(60, 64, seed=1), rows(60, 64, seed=2)
    plain = flatten(T, C, np.ones(60), limit=3.0)
    blank = flatten(0 * T[:4], C[:4], np.ones(4), limit=3.0)
    assert len(plain.sizes) == len(blank.sizes) == 0


def test_flattening_uncouples_texts_that_share_a_direction() -> None:
    """Their correlation under one key is the cosine of their matrices."""

    def flat(seed: int) -> tuple[np.ndarray, np.ndarray]:
        T, C = rows(150, 32, seed=seed, common=0.7), rows(150, 32, seed=seed + 50, common=0.7)
        M = matrix(T, C, np.ones(150))
        cuts = flatten(T, C, np.ones(150), limit=2.0)
        return M, M - (cuts.left.T * cuts.sizes) @ cuts.right

    texts = [flat(seed) for seed in range(12)]
    plain, cut = (
        np.corrcoef([np.ravel(text[which]) for text in texts])[np.triu_indices(12, 1)].mean()
        for which in (0, 1)
    )
    assert plain > 0.5
    assert cut < 0.2


def test_the_correlation_of_two_texts_over_keys_is_the_closed_form(bag_encoder, tmp_path) -> None:
    scheme, space = DEW().with_settings({"flatten": 1.5}), Workspace(cache=tmp_path)
    first, second = score_under(scheme, KEYS, [FIRST, SECOND], no_host(), space)
    bound = scheme.bind(KEY, no_host(), space)
    a, b = evidence_of(bound, bound.tokenize([FIRST, SECOND]), bound.tokenize(["", ""]))
    assert a.extra > 0
    expected = cross_variance(a, b) / np.sqrt(score_variance(a) * score_variance(b))
    measured = np.corrcoef([each.z for each in first], [each.z for each in second])[0, 1]
    assert abs(measured - expected) < 4.0 / np.sqrt(len(KEYS))  # standard error at most 1/√400
    assert expected > 0.1


def test_detections_say_how_many_words_can_carry_the_mark() -> None:
    bound = DEW().bind(KEY, no_host(), Workspace(cache=Path("unused")))
    texts = ["The old bridge of 1984 leads over talossanikin", "他们在使用计算机编写程序", "12 34 56 78"]
    assert [each.carrying for each in score_texts(bound, texts)] == [0.875, 1.0, 0.0]
    found = score_under(DEW(), [KEY], texts, no_host(), Workspace(cache=Path("unused")))
    assert [row[0].to_dict()["carrying"] for row in found] == [0.875, 1.0, 0.0]
