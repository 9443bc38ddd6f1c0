"""The exact distribution of accepted transitions against brute force, and valid p-values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dewmark_lab.schemes.sentence.semstamp import acceptance_pmf, exact_test, paper_test


def _partition(rng: np.random.Generator, bins: int, accepted: int) -> np.ndarray:
    rows = np.zeros((bins, bins), dtype=bool)
    for row in rows:
        row[rng.permutation(bins)[:accepted]] = True
    return rows


def test_one_bin_is_drawn_without_replacement() -> None:
    counts = np.zeros((4, 4), dtype=np.int64)
    counts[2] = [3, 0, 1, 1]
    sums = [sum(counts[2][list(chosen)]) for chosen in itertools.combinations(range(4), 2)]
    pmf = acceptance_pmf(counts, 2)
    assert pmf == pytest.approx([sums.count(value) / 6 for value in range(5)])


@pytest.mark.parametrize("seed", range(3))
def test_distribution_agrees_with_all_partitions(seed) -> None:
    """Three bins, one accepted after each: 27 partitions, all equally likely."""
    counts = np.random.default_rng(seed).integers(0, 4, size=(3, 3))
    sums = []
    for chosen in itertools.product(range(3), repeat=3):
        partition = np.zeros((3, 3), dtype=bool)
        partition[range(3), chosen] = True
        sums.append(int(counts[partition].sum()))
        tail = exact_test(counts, partition).p_value
        sums_p = np.mean(
            [_total(counts, other) >= sums[-1] for other in itertools.product(range(3), repeat=3)]
        )
        assert tail == pytest.approx(sums_p)
    pmf = acceptance_pmf(counts, 1)
    assert pmf == pytest.approx([sums.count(value) / 27 for value in range(len(pmf))])


def _total(counts: np.ndarray, chosen: tuple[int, ...]) -> int:
    return int(sum(counts[a, b] for a, b in enumerate(chosen)))


def test_p_values_are_valid_and_z_has_variance_one() -> None:
    """1,500 keys on a text of 60 transitions; a share near a has a standard deviation of √(a(1−a)/1500)."""
    rng = np.random.default_rng(0)
    bins = rng.integers(8, size=61)
    counts = np.zeros((8, 8), dtype=np.int64)
    np.add.at(counts, (bins[:-1], bins[1:]), 1)
    found = [exact_test(counts, _partition(rng, 8, 2)) for _ in range(1500)]
    p, z = np.array([f.p_value for f in found]), np.array([f.z for f in found])
    for level in (0.01, 0.1, 0.5):
        assert np.mean(p <= level) <= level + 4.5 * math.sqrt(level * (1.0 - level) / 1500)
    assert np.mean(p <= 0.5) > 0.3  # conservative only because S is discrete
    assert abs(z.mean()) < 4.5 / math.sqrt(1500)
    assert abs(z.var() - 1.0) < 4.5 * math.sqrt(2.0 / 1500) + 0.02


def test_repeating_a_transition_is_no_evidence() -> None:
    """The published test takes a loop as proof, although a quarter of all keys accept it."""
    counts = np.zeros((8, 8), dtype=np.int64)
    counts[3, 5] = 40
    partition = np.zeros((8, 8), dtype=bool)
    partition[:, [5, 6]] = True
    assert exact_test(counts, partition).p_value == pytest.approx(0.25)
    assert exact_test(counts, partition).effective_length == pytest.approx(1.0)
    assert paper_test(counts, partition).p_value < 1e-20


def test_least_p_value() -> None:
    """Two transitions from each of eight bins, all accepted: (1/28)^8."""
    counts = np.zeros((8, 8), dtype=np.int64)
    counts[:, :2] = 1
    assert acceptance_pmf(counts, 2)[-1] == pytest.approx(28.0**-8)
    partition = counts.astype(bool)
    assert exact_test(counts, partition).p_value == pytest.approx(28.0**-8)
    assert exact_test(counts * 0, partition).p_value == 1.0


def test_text_that_says_nothing_about_the_key() -> None:
    """If all bins are visited equally often after each, the sum is the same under every key."""
    partition = _partition(np.random.default_rng(0), 8, 2)
    found = exact_test(np.ones((8, 8), dtype=np.int64), partition)
    assert found.p_value == pytest.approx(1.0)
    assert found.z == 0.0
