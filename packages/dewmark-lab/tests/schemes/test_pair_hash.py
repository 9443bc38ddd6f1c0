"""Words of the PRF: fixed forever, uniform over keys, and independent between pairs."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import torch
from tests.schemes.toy_host import VOCAB

from dewmark_lab.schemes.pair_hash import (
    PairHash,
    VocabularyHash,
    below,
    below_on_device,
    combine,
    combine_torch,
    to_uniforms,
    torch_uniforms,
)

SECRET = bytes(range(32))
CONTEXTS = np.array([[5, 6, 7], [5, 7, 6], [-1, -1, 7]])


def secrets(count: int) -> list[bytes]:
    return [hashlib.sha256(f"secret {i}".encode()).digest() for i in range(count)]


def test_words_never_change() -> None:
    """A change here would invalidate every mark ever made."""
    pairs = PairHash(SECRET, 16)
    assert pairs.token_words[:3].tolist() == [779171968, 2134592159, 777048859]
    assert pairs.seeds(CONTEXTS).tolist() == [
        [1179102844, 4169677651],
        [2228609166, 2497695812],
        [429252170, 1529613212],
    ]
    assert pairs.words(CONTEXTS, np.array([1, 1, 15])).tolist() == [3443050459, 3397266911, 848490660]
    assert pairs.table("ranks", 3).tolist() == [4062571937, 270688590, 2835812558]


def test_words_do_not_depend_on_the_vocabulary_size() -> None:
    tokens = np.arange(3)
    assert np.array_equal(
        PairHash(SECRET, 3).words(CONTEXTS, tokens), PairHash(SECRET, 999).words(CONTEXTS, tokens)
    )


def test_contexts_differ_by_order_length_and_secret() -> None:
    contexts = [[1, 2], [2, 1], [1, 2, 0], [0, 1, 2], [1], [], [-1]]
    seeds = {PairHash(SECRET, 1).seeds(np.array([c], dtype=np.int64)).tobytes() for c in contexts}
    assert len(seeds) == len(contexts)
    other = PairHash(SECRET[::-1], 1).seeds(CONTEXTS)
    assert not (other == PairHash(SECRET, 1).seeds(CONTEXTS)).any()


def test_combine_is_a_bijection_of_the_token_word() -> None:
    """Written out in Python integers, and inverted step by step."""
    mask, multiplier, a, b = 2**32 - 1, 0x7FEB352D, 0x12345678, 0x9ABCDEF0
    for t in (0, 1, 0x80000000, 0xFFFFFFFF, 0xDEADBEEF):
        x = (t ^ a) * (b | 1) & mask
        x ^= x >> 16
        x = x * multiplier & mask
        x ^= x >> 16
        assert int(combine(np.uint32(a), np.uint32(b), np.array([t], dtype=np.uint32))[0]) == x
        x ^= x >> 16
        x = x * pow(multiplier, -1, 2**32) & mask
        x ^= x >> 16
        assert x * pow(b | 1, -1, 2**32) & mask ^ a == t


def test_words_are_uniform_over_keys() -> None:
    """Chi-square over 64 cells of the upper bits and of the lower ones: 63 degrees of freedom, sd √126."""
    words = np.concatenate([PairHash(s, 4).words(CONTEXTS[:1], np.array([2])) for s in secrets(6400)])
    for cells in (words >> np.uint32(26), words & np.uint32(63)):
        counts = np.bincount(cells, minlength=64)
        assert abs(((counts - 100.0) ** 2 / 100.0).sum() - 63.0) < 4.5 * math.sqrt(126.0)


def signs(words: np.ndarray) -> np.ndarray:
    """Each of the 32 bits of words as ±1: (…, 32)."""
    return 1.0 - 2.0 * ((words[..., None] >> np.arange(32, dtype=np.uint32)) & np.uint32(1))


@pytest.fixture(scope="module")
def grid() -> np.ndarray:
    """Signs of the words of one secret, 600 contexts by 600 tokens, and each of their 32 bits."""
    pairs = PairHash(SECRET, 600)
    seeds = pairs.seeds(np.random.default_rng(0).integers(0, 50_000, (600, 2)))
    return signs(combine(seeds[:, :1], seeds[:, 1:], pairs.token_words[None])).astype(np.float32)


def test_words_of_one_key_are_balanced_in_every_bit(grid: np.ndarray) -> None:
    """360,000 fair signs have a mean of standard deviation 1/600; one of 32 exceeds 5 of them in 60,000."""
    assert np.abs(grid.mean(axis=(0, 1))).max() < 5.0 / 600.0


@pytest.mark.parametrize("what", ["contexts", "tokens", "both"])
def test_words_of_one_key_are_independent_in_every_bit(grid: np.ndarray, what: str) -> None:
    """Signs of neighbours, multiplied; ``both`` multiplies the four of two contexts and two tokens.

    That last product is what a hash linear in context and token would fail: there it is always 1.
    """
    product = grid
    if what in ("contexts", "both"):
        product = product[::2] * product[1::2]
    if what in ("tokens", "both"):
        product = product[:, ::2] * product[:, 1::2]
    count = product.shape[0] * product.shape[1]
    assert np.abs(product.mean(axis=(0, 1))).max() < 5.0 / math.sqrt(count)


def test_four_related_pairs_are_independent_over_keys() -> None:
    """The same over secrets, in the comparison with γ that green lists make."""
    contexts, tokens = np.array([[3], [3], [9], [9]]), np.array([1, 2, 1, 2])
    below = np.array([PairHash(s, 4).words(contexts, tokens) < np.uint32(2**30) for s in secrets(4000)])
    score = (below - 0.25) / math.sqrt(0.25 * 0.75)
    assert abs(score.mean()) < 4.5 / math.sqrt(16_000)
    for a in range(4):
        for b in range(a):
            assert abs((score[:, a] * score[:, b]).mean()) < 4.5 / math.sqrt(4000)
    # the product of four independent standardised scores has mean 0 and variance 1
    assert abs(score.prod(axis=1).mean()) < 4.5 / math.sqrt(4000)


def test_uniforms_lie_strictly_within_the_unit_interval() -> None:
    ends = to_uniforms(np.array([0, 2**32 - 1], dtype=np.uint32))
    assert 0.0 < ends[0] < 2.0**-32
    assert 1.0 - 2.0**-32 < ends[1] < 1.0
    found = PairHash(SECRET, 16).uniforms(CONTEXTS, np.array([1, 2, 3]))
    assert found == pytest.approx(
        PairHash(SECRET, 16).words(CONTEXTS, np.array([1, 2, 3])) / 2.0**32, abs=1e-9
    )


def test_words_on_a_device_equal_those_of_numpy() -> None:
    """The torch arithmetic of other devices, run on the CPU, against the numpy one that detection uses."""
    pairs = PairHash(bytes(range(32)), VOCAB)
    vocabulary = VocabularyHash(pairs)
    contexts = torch.randint(0, VOCAB, (4, 3), generator=torch.Generator().manual_seed(0))
    candidates = torch.randint(0, VOCAB, (4, 50), generator=torch.Generator().manual_seed(1))
    for chosen in (None, candidates):
        ids = torch.arange(VOCAB).expand(4, VOCAB) if chosen is None else chosen
        expected = np.stack(
            [
                pairs.words(np.tile(c, (len(t), 1)), t)
                for c, t in zip(contexts.numpy(), ids.numpy(), strict=True)
            ]
        )
        for found in (vocabulary.words(contexts, chosen), vocabulary.words_on_device(contexts, chosen)):
            assert np.array_equal(found.numpy(), expected)  # the same numbers, not only the same bits
            assert np.array_equal(torch_uniforms(found).numpy(), to_uniforms(expected))
    seeds = torch.from_numpy(pairs.seeds(contexts.numpy()).view(np.int32))
    table = torch.from_numpy(pairs.token_words.view(np.int32)).unsqueeze(0)
    assert torch.equal(combine_torch(seeds[:, :1], seeds[:, 1:], table), vocabulary.signed_words(contexts))


@pytest.mark.parametrize("limit", [1, 2**31, 2**32 - 1])
def test_comparisons_are_unsigned(limit: int) -> None:
    words = torch.tensor([[0, 1, 2**31 - 1, -(2**31), -1]], dtype=torch.int32)
    expected = [x < limit for x in (0, 1, 2**31 - 1, 2**31, 2**32 - 1)]
    limits = np.array([[limit]], dtype=np.uint32)
    assert below(words, limits)[0].tolist() == expected
    assert below_on_device(words, limits)[0].tolist() == expected
