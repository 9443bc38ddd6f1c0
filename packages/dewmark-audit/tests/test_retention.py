"""Retention against its definition: the correlation of two texts' sums of scores over fresh keys."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.stats.test_key_test import alignments_under_keys, evidence, text_like

from dewmark.core.whitening import normalize_rows
from dewmark.errors import InputError
from dewmark_audit.retention import pair_retentions, summarise

GAMMA = 0.5


def rewritten(T: np.ndarray, C: np.ndarray, *, changed: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Some units replaced by others, and every context moved a little."""
    rng = np.random.default_rng(seed)
    other = rng.uniform(size=len(T)) < changed
    return (
        np.where(other[:, None], normalize_rows(rng.normal(size=T.shape)), T),
        normalize_rows(C + 0.05 * rng.normal(size=C.shape)),
    )


def test_retention_is_the_correlation_over_keys() -> None:
    T, C = text_like(80)
    T2, C2 = rewritten(T, C, changed=0.4, seed=1)
    u = alignments_under_keys(np.vstack([T, T2]), np.vstack([C, C2]), keys=2000)
    sums = np.tanh(GAMMA * u).reshape(2000, 2, 80).sum(axis=2)
    (kept,), _ = pair_retentions([evidence(T, C)], [evidence(T2, C2)])
    assert 0.4 < kept < 0.9
    # a correlation r from 2,000 keys has standard error (1 − r²)/√2000 < 0.02
    assert kept == pytest.approx(np.corrcoef(sums.T)[0, 1], abs=0.06)


def test_an_unchanged_text_retains_everything() -> None:
    texts = [evidence(*text_like(60, seed=seed)) for seed in range(3)]
    kept, _ = pair_retentions(texts, texts)
    assert kept == pytest.approx([1.0] * 3, rel=1e-4)


def test_more_changes_retain_less() -> None:
    T, C = text_like(100)
    versions = [evidence(*rewritten(T, C, changed=share, seed=2)) for share in (0.1, 0.3, 0.5, 0.9)]
    kept, _ = pair_retentions([evidence(T, C)] * 4, versions)
    assert kept == sorted(kept, reverse=True)


def unrelated_texts(count: int, *, common: float) -> list:
    """Texts of different tokens; their contexts share a component of the given size."""
    rng = np.random.default_rng(3)
    made = []
    for _ in range(count):
        T = normalize_rows(rng.normal(size=(60, 24)) + common)
        made.append(evidence(T, normalize_rows(rng.normal(size=(60, 16)) + common)))
    return made


def test_unrelated_texts_share_nothing_unless_something_is_common_to_all() -> None:
    isotropic = unrelated_texts(20, common=0.0)
    found = summarise(*pair_retentions(isotropic, isotropic))
    assert found.sound
    assert found.unrelated.low <= 0.0 <= found.unrelated.high or abs(found.unrelated.value) < 0.03
    leaning = unrelated_texts(20, common=0.7)
    shared = summarise(*pair_retentions(leaning, leaning))
    assert not shared.sound
    assert shared.unrelated.value > 0.2


def test_means_and_their_intervals() -> None:
    rng = np.random.default_rng(4)
    kept, unrelated = rng.normal(0.5, 0.1, size=200), rng.normal(0.0, 0.02, size=200)
    found = summarise(kept.tolist(), unrelated.tolist())
    assert found.kept.value == pytest.approx(kept.mean())
    # a 95% interval of a mean reaches 1.96 standard errors either way
    half = 1.96 * kept.std() / np.sqrt(200)
    assert (found.kept.high - found.kept.low) / 2 == pytest.approx(half, rel=0.15)
    assert json.loads(json.dumps(found.to_dict()))["pairs"] == 200


def test_one_pair_is_not_enough() -> None:
    with pytest.raises(InputError, match="at least two pairs of texts with scored units, got 1"):
        summarise([0.5], [0.0])
