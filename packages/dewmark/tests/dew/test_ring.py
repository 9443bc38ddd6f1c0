"""Rings, payloads and epochs: exact corrections over random keys, and what is read is what was written."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from tests.dew.keyed_texts import drawn_forms, matrix_of

from dewmark.core.keys import Key
from dewmark.dew.form import FormKey
from dewmark.dew.ring import TURNS, EpochMatrices, KeyMatrices, KeyUse, random_member
from dewmark.errors import ConfigError, KeyFileError

SHAPE = (20, 24)
RNG = np.random.default_rng(1)


def matrices(members: int = 1, bits: int = 0, *, rng: np.random.Generator = RNG) -> KeyMatrices:
    W = rng.standard_normal((min(members, 16), *SHAPE)).astype(np.float32)
    return KeyMatrices([EpochMatrices(None, members, bits, W, drawn_forms(rng, len(W)))])


def text(rng: np.random.Generator = RNG) -> np.ndarray:
    return (rng.standard_normal((60, SHAPE[0])).T @ rng.standard_normal((60, SHAPE[1]))).astype(np.float32)


def marked(M: np.ndarray, W: np.ndarray, z: float) -> np.ndarray:
    """A text's matrix with a mark of about this z: M plus a multiple of W."""
    unit = M / np.linalg.norm(M)
    return (unit + z * W / np.sum(W * W)).astype(np.float32)


@pytest.mark.parametrize(("members", "bits"), [(1, 0), (5, 0), (16, 2), (32, 2)])
def test_the_corrected_p_value_is_valid_over_keys(members: int, bits: int) -> None:
    """Exact up to Bonferroni within a matrix: never below uniform, and near it where p is small."""
    rng = np.random.default_rng(members + bits)
    M = text(rng)
    p = np.array([matrices(members, bits, rng=rng).find(matrix_of(M)).p_value for _ in range(600)])
    for level in (0.01, 0.05, 0.2):
        error = 3.5 * np.sqrt(level * (1 - level) / len(p))
        assert np.mean(p <= level) < level + error
        assert np.mean(p <= level) > 0.75 * level - error
    if members <= 16 and bits == 0:
        assert stats.kstest(p, "uniform").pvalue > 1e-3


def test_a_rotated_key_pays_for_all_its_epochs() -> None:
    """Rotated five times, with six rings of two: the best of 12 independent matrices."""
    key = Key(bytes(32), members=2)
    for name in "bcdef":
        key = key.rotated(name, members=2)
    keys = KeyMatrices.of(key, d_T=SHAPE[0], d_C=SHAPE[1])
    found = keys.find(matrix_of(text(np.random.default_rng(7)), words=0))
    assert len(keys.epochs) == 6
    assert found.n_hypotheses == 12
    assert found.p_value == pytest.approx(1.0 - stats.norm.cdf(found.z) ** 12, rel=1e-6)


def test_scores_are_those_of_each_uses_own_matrix() -> None:
    keys, M = matrices(64, 3), text()
    (epoch,) = keys.epochs
    z = epoch.scores(M)
    assert z.size == keys.count == 64 * 8
    seen = set()
    for index in range(z.shape[0]):
        for place in range(z.shape[1]):
            use = epoch.use(index, place)
            seen.add(use)
            if (index + place) % 7 == 0:
                direct = float(np.sum(M * keys.key(use).W)) / np.linalg.norm(M)
                assert z[index, place] == pytest.approx(direct, abs=1e-3)
    assert len(seen) == keys.count


@pytest.mark.parametrize(
    ("key", "shared"),
    [(Key(bytes(32), members=64), KeyUse(member=19)), (Key(bytes(32), payload_bits=4), KeyUse(payload=9))],
)
def test_signs_are_in_coordinates_that_only_the_key_knows(key: Key, shared: KeyUse) -> None:
    """Uses that share a matrix do not differ by signs in public coordinates, and are unrelated there."""
    keys = KeyMatrices.of(key, d_T=64, d_C=64)
    (epoch,) = keys.epochs
    one, other = (keys.key(use).W for use in (KeyUse(shared.member % 16), shared))
    np.testing.assert_array_equal(one, epoch.W[shared.member % 16])
    assert not np.allclose(np.abs(one), np.abs(other), atol=0.1)
    # they differ in the signs of one side, and 64 random signs have a mean of 0 ± 0.125
    assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.2
    M = RNG.standard_normal((64, 64)).astype(np.float32)
    for index, place in ((0, 0), (0, 1), (len(epoch.W) - 1, 2)):
        direct = float(np.sum(M * keys.key(epoch.use(index, place)).W)) / np.linalg.norm(M)
        assert epoch.scores(M)[index, place] == pytest.approx(direct, abs=1e-3)
    again = KeyMatrices.stored(keys.meta(), keys.arrays())
    np.testing.assert_array_equal(again.key(shared).W, other)
    secret = key.subkey(TURNS)
    assert secret.hex() not in repr(epoch)
    assert str(secret) not in repr(epoch)
    with pytest.raises(ConfigError, match="cannot be published"):
        keys.published()


def test_turned_messages_are_nearly_uncorrelated() -> None:
    """Over keys, the scores of messages m and 0 have the correlation ⟨M, A M B⟩/‖M‖²."""
    decay = np.exp(-np.arange(96) / 40)
    T, C = (RNG.standard_normal((120, 96)) * decay for _ in range(2))
    M = (T.T @ C).astype(np.float32)
    M /= np.linalg.norm(M)
    correlation = EpochMatrices(None, 1, 8, M[None], secret=b"secret").scores(M)[0]
    assert correlation[0] == pytest.approx(1.0, abs=1e-4)
    assert np.sqrt(np.mean(np.square(correlation[1:]))) < 0.05
    assert np.abs(correlation[1:]).max() < 0.2


def test_member_payload_and_epoch_are_read_and_wrong_ones_are_not_reported() -> None:
    rng = np.random.default_rng(3)
    old, new = (EpochMatrices(n, 64, 4, rng.standard_normal((16, *SHAPE)).astype(np.float32)) for n in "ab")
    keys = KeyMatrices([old, new])
    right = wrong = 0
    for trial in range(300):
        use = KeyUse(int(rng.integers(64)), int(rng.integers(16)), "ab"[trial % 2])
        found = keys.find(matrix_of(marked(text(rng), keys.key(use).W, 4.0 + 6.0 * rng.random()), words=0))
        if found.payload_confidence >= 0.99 and found.p_value <= 0.01:
            right += found.use.payload == use.payload
            wrong += found.use.payload != use.payload
            assert found.use == use or found.use.payload != use.payload or found.member_confidence < 0.999
    assert right > 150
    assert wrong <= 3  # 1% of 300


def test_the_use_of_a_strong_mark_is_certain() -> None:
    """z 60: the weight of the right use by itself is exp(3600)."""
    keys = matrices(16, 2)
    found = keys.find(matrix_of(marked(text(), keys.key(KeyUse(5, 3)).W, 60.0)))
    assert (found.use.member, found.use.payload) == (5, 3)
    confidences = (found.payload_confidence, found.member_confidence, found.epoch_confidence)
    assert confidences == pytest.approx((1.0, 1.0, 1.0))


def test_keys_make_the_same_matrices_every_time() -> None:
    key = Key(bytes(range(32)), members=64, payload_bits=2)
    keys = KeyMatrices.of(key, d_T=6, d_C=5)
    np.testing.assert_allclose(keys.key(KeyUse(17, 3)).W[0], MATRIX, atol=1e-6)
    assert keys.count == 256
    restored = KeyMatrices.stored(keys.meta(), keys.arrays())
    np.testing.assert_array_equal(restored.key(KeyUse(63, 1)).W, keys.key(KeyUse(63, 1)).W)


def test_payload_zero_is_the_mark_without_a_payload() -> None:
    plain, longer = (
        KeyMatrices.of(Key(bytes(32), payload_bits=bits), d_T=SHAPE[0], d_C=SHAPE[1]) for bits in (0, 8)
    )
    np.testing.assert_array_equal(longer.key(KeyUse()).W, plain.key(KeyUse()).W)
    assert (plain.count, longer.count) == (1, 256)


def test_what_is_published_scores_the_meaning_alone() -> None:
    keys, M = matrices(4), text()
    public = keys.published()
    best = max(float(np.sum(M * W)) / np.linalg.norm(M) for W in keys.epochs[0].W)
    found = public.find(matrix_of(M))
    assert found.z == found.z_meaning == pytest.approx(best, abs=1e-3)
    assert np.isnan(found.z_form)
    restored = KeyMatrices.stored(public.meta(), public.arrays())
    assert [each.is_public for each in (keys, public, restored)] == [False, True, True]


def test_what_is_published_has_no_secret() -> None:
    """Neither what gives form, nor the sub-key of the turns, which a ring of 16 members does not need."""
    key = Key(bytes(range(32)), members=4).rotated("b", members=4)
    stored = KeyMatrices.of(key, d_T=SHAPE[0], d_C=SHAPE[1]).published().arrays()
    assert stored.keys() == {f"ring_{i}{part}" for i in range(2) for part in ("", "_secret")}
    assert [stored[f"ring_{i}_secret"].size for i in range(2)] == [0, 0]
    for each in (*key.retired, key):
        words = [FormKey.of(each.independent_member(i)).words for i in range(4)]
        for secret in (each.subkey(TURNS), *(word.tobytes() for own in words for word in own[:2])):
            assert all(secret not in array.tobytes() for array in stored.values())


def test_the_form_scores_of_all_uses_are_those_of_each_use() -> None:
    keys = KeyMatrices.of(Key(bytes(range(32)), members=64, payload_bits=3), d_T=8, d_C=8)
    (epoch,) = keys.epochs
    words = matrix_of(np.ones((8, 8)), words=40).form
    scores = epoch.form_scores(words)
    for index, place in ((0, 0), (3, 1), (15, 31), (7, 20)):
        assert scores[index, place] == pytest.approx(words.z(keys.key(epoch.use(index, place)).form))


def test_seeds_choose_members_evenly_and_for_ever() -> None:
    chosen = np.bincount([random_member(seed, 16) for seed in range(4000)], minlength=16)
    assert stats.chisquare(chosen).pvalue > 1e-3
    assert [random_member(seed, 4096) for seed in range(3)] == MEMBERS


def test_impossible_uses_are_named() -> None:
    with pytest.raises(KeyFileError, match="members 0 to 3, got 9"):
        matrices(4).key(KeyUse(9))
    for payload in (1, -1):
        with pytest.raises(KeyFileError, match=f"payloads of 0 bits .none., got {payload}"):
            matrices(4).key(KeyUse(payload=payload))


MATRIX = [0.738153, -0.059438, -1.343398, 1.203311, 1.823824]
MEMBERS = [3653, 1902, 3976]
