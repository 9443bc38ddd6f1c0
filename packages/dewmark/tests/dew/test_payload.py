"""Messages by Walsh signs: the fast transform is the direct product, and every message has an exact law."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import hadamard

from dewmark.dew.ring import Messages, walsh_transform

RNG = np.random.default_rng(0)


def test_the_transform_is_the_hadamard_matrix() -> None:
    x = RNG.standard_normal((32, 5)).astype(np.float32)
    np.testing.assert_allclose(walsh_transform(x), hadamard(32) @ x, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "bits"),
    [((12, 10), range(6)), ((40, 300), range(16)), ((64, 48), [0, 1, 14, 15]), ((5, 7), []), ((9, 6), [3])],
)
def test_all_scores_at_once_are_the_direct_products(shape: tuple[int, int], bits: list[int]) -> None:
    messages = Messages(bits, d_T=shape[0], d_C=shape[1])
    W = RNG.standard_normal((3, *shape)).astype(np.float32)
    M = RNG.standard_normal(shape).astype(np.float32)
    scores = messages.scores(messages.arranged(M[None]), messages.arranged(W))
    assert scores.shape == (3, 2 ** len(bits))
    assert len(set(messages.numbers.tolist())) == 2 ** len(bits)
    for place in RNG.choice(messages.count, size=min(20, messages.count), replace=False):
        left, right = messages.signs(int(messages.numbers[place]))
        direct = np.einsum("kij,ij,i,j->k", W, M, left, right)
        np.testing.assert_allclose(scores[:, place], direct, rtol=1e-3, atol=2e-3)


def test_short_messages_are_the_first_of_the_long_ones() -> None:
    short, long = (Messages(range(bits), d_T=20, d_C=30) for bits in (4, 12))
    for message in range(16):
        for a, b in zip(short.signs(message), long.signs(message), strict=True):
            np.testing.assert_array_equal(a, b)
    left, right = long.signs(0)
    assert (left == 1).all()
    assert (right == 1).all()


def test_scores_of_other_messages_are_nearly_uncorrelated() -> None:
    """For a text whose coordinates have decreasing variance, as those of a lexicon do."""
    decay = np.exp(-np.arange(192) / 100)
    T = RNG.standard_normal((150, 192)) * decay
    C = RNG.standard_normal((150, 192)) * decay
    energy = np.square(T.T @ C)[None].astype(np.float32)
    for bits, limit in ((4, 0.12), (8, 0.2), (16, 0.3)):
        messages = Messages(range(bits), d_T=192, d_C=192)
        ones = np.ones_like(energy)
        correlation = messages.scores(messages.arranged(energy), messages.arranged(ones))[0] / energy.sum()
        others = correlation[messages.numbers != 0]
        assert np.sqrt(np.mean(others**2)) < 0.05
        assert np.abs(others).max() < limit


def test_the_score_of_every_message_is_standard_normal_over_keys() -> None:
    messages = Messages(range(6), d_T=8, d_C=8)
    M = RNG.standard_normal((8, 8)).astype(np.float32)
    W = RNG.standard_normal((4000, 8, 8)).astype(np.float32)
    z = messages.scores(messages.arranged(M[None]), messages.arranged(W)) / np.linalg.norm(M)
    for message in (0, 1, 37, 63):
        assert stats.kstest(z[:, message], "norm").pvalue > 1e-3
