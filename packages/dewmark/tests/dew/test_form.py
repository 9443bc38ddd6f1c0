"""h: independent standard normals, one for every word in every context, and the sums that they make."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from tests.many_keys import score_under

from dewmark.core.keys import Key
from dewmark.dew.form import AllForms, FormKey, FormPairs, form_pairs, pair_numbers, window_numbers
from dewmark.dew.ring import EpochMatrices, KeyUse
from dewmark.dew.scheme import DEW
from dewmark.encoders.contexts import register_texts
from dewmark.workspace import NO_READER, Workspace, no_host

KEY = Key(bytes(range(32)))
COUNT = 200_000


def many_numbers() -> np.ndarray:
    """Numbers of neighbouring rows in neighbouring contexts, as texts have them."""
    rows = np.arange(COUNT) % 1000
    windows = np.stack([np.arange(COUNT) // 1000 + i for i in (5, 3, 1)], axis=1)
    return pair_numbers(rows, windows)


def test_h_is_standard_normal_and_independent() -> None:
    """Of one key over words, of neighbouring words, and of two keys."""
    numbers, other = many_numbers(), FormKey.of(Key(bytes(32)))
    h, theirs = FormKey.of(KEY).noise(numbers), other.noise(numbers)
    assert stats.kstest(h, "norm").pvalue > 1e-3
    margin = 4.5 / math.sqrt(COUNT)
    assert abs(np.corrcoef(h[:-1], h[1:])[0, 1]) < margin
    assert abs(np.corrcoef(h[:-1000], h[1000:])[0, 1]) < margin
    assert abs(np.corrcoef(h, theirs)[0, 1]) < margin
    assert abs(np.corrcoef(h**2, theirs**2)[0, 1]) < margin


def test_h_of_two_words_is_independent_over_keys() -> None:
    """Numbers that differ in one bit, and in the lowest row: over 4,000 keys."""
    numbers = np.array([1 << 20, (1 << 20) + 1, 1 << 21], dtype=np.uint64)
    h = np.array([FormKey(*pair).noise(numbers) for pair in secret_words(4000)])
    for column in h.T:
        assert stats.kstest(column, "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(h.T)[~np.eye(3, dtype=bool)]).max() < 4.5 / math.sqrt(4000)


def secret_words(count: int) -> list[tuple[int, int]]:
    return [tuple(pair) for pair in KEY.stream("test").words(2 * count).reshape(-1, 2).tolist()]


def test_signs_of_messages_are_independent_over_keys() -> None:
    """Two messages of one key differ in half of the signs."""
    numbers, secret = many_numbers(), secret_words(1)[0]
    h = [FormKey(*secret, message=message).noise(numbers) for message in (0, 1, 0b110, 0xFFFF)]
    for one, other in ((0, 1), (1, 2), (2, 3), (0, 3)):
        assert np.mean(h[one] == h[other]) == pytest.approx(0.5, abs=4.5 * 0.5 / math.sqrt(COUNT))
        assert np.array_equal(np.abs(h[one]), np.abs(h[other]))


def test_a_key_shows_nothing_of_its_words() -> None:
    form = FormKey.of(KEY)
    shown = repr(form) + repr(FormPairs(many_numbers()[:2], np.arange(2), np.ones(2)))
    assert str(form.first) not in shown
    assert str(form.second) not in shown
    assert FormKey.stored(form.words) == form


def test_equal_windows_have_equal_numbers_and_others_do_not() -> None:
    windows = np.array([[1, 2, 3], [3, 2, 1], [1, 2, 3], [0, 0, 0], [0, 0, 1]])
    found = window_numbers(windows).tolist()
    assert found[0] == found[2]
    assert len(set(found)) == 4


def test_a_word_counts_where_its_context_is_new() -> None:
    windows = np.array([9, 5, 5, 7, 5, 8, 2], dtype=np.uint64)
    rows = np.array([1, 1, 2, 3, 4, 1, 7], dtype=np.uint64)
    possible = np.array([0, 1, 1, 1, 1, 1, 1], dtype=bool)
    found = form_pairs(rows + windows, windows, possible=possible)
    # the second 5 and the third have come before; 1 + 8 = 7 + 2 is one number, which counts once
    assert found.places.tolist() == [1, 3, 5]


def test_z_is_uniform_over_keys_for_words_and_both_sums() -> None:
    """1,000 keys on a text of 150 words: form alone, and the verdict of both."""
    text = " ".join(" ".join(register_texts()[0].split())[:900].split())
    keys = [Key(i.to_bytes(32, "big")) for i in range(1000)]
    bound = DEW().bind(KEY, no_host(), Workspace(cache=None)).reading_with(NO_READER)
    (reading,) = bound.read(bound.tokenize([text]), bound.tokenize([""]))
    z_form = np.array([reading.matrix.form.z(FormKey.of(key)) for key in keys])
    assert stats.kstest(z_form, "norm").pvalue > 1e-3
    found = score_under(DEW(), keys, [text], no_host(), Workspace(cache=None, expectations=NO_READER))
    p = [each.p_value for each in found[0]]
    assert stats.kstest(p, "uniform").pvalue > 1e-3
    z = np.array([each.z for each in found[0]])
    assert abs(np.corrcoef(z_form, z)[0, 1]) > 0.4  # the verdict rests on both


def test_texts_together_have_the_z_of_each() -> None:
    numbers, rng = many_numbers(), np.random.default_rng(1)
    texts = [
        FormPairs(numbers[start : start + n], np.arange(n), rng.uniform(0.1, 2.0, n))
        for start, n in ((0, 5), (5, 0), (9, 70))
    ]
    key = FormKey.of(KEY)
    np.testing.assert_allclose(AllForms.of(texts).z(key), [each.z(key) for each in texts], rtol=1e-12)


@pytest.mark.parametrize(("members", "bits"), [(4, 0), (1, 6), (32, 3)])
def test_all_uses_have_the_z_of_each(members: int, bits: int) -> None:
    """One Walsh transform gives what every use has by its own signs."""
    key = Key(bytes(range(32)), members=members, payload_bits=bits)
    epoch = EpochMatrices.of(key, d_T=8, d_C=8)
    text = FormPairs(many_numbers()[:90], np.arange(90), np.linspace(0.5, 1.5, 90))
    scores = epoch.form_scores(text)
    assert scores.shape == (len(epoch.W), epoch.messages.count)
    for place in np.random.default_rng(2).choice(scores.size, size=min(scores.size, 40), replace=False):
        use = epoch.use(*divmod(int(place), scores.shape[1]))
        own = epoch.form(KeyUse(use.member, use.payload))
        assert scores.flat[place] == pytest.approx(text.z(own), abs=1e-9)
