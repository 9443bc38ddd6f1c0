from __future__ import annotations

import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.fakes import BagEncoder

from dewmark.core.whitening import normalize_rows
from dewmark.encoders.word_vectors import RowMemo, WordVectors

WORDS = ["bridge", "über", "東京", "don't", "1,000"]


def file_of(folder):
    return next(folder.glob("*.sqlite"))


def test_unit_rows_of_each_word(tmp_path) -> None:
    encoder = BagEncoder()
    got = WordVectors(encoder, tmp_path).vectors([*WORDS, "bridge"])
    assert got.dtype == np.float32
    assert got.shape == (6, encoder.dim)
    np.testing.assert_allclose(got[:5], normalize_rows(encoder.encode(WORDS)), atol=1e-3)  # float16 rows
    assert np.array_equal(got[0], got[5])
    assert WordVectors(encoder, None).vectors([]).shape == (0, encoder.dim)


def test_only_new_words_are_encoded_and_in_one_call(tmp_path) -> None:
    encoder = BagEncoder()
    vectors = WordVectors(encoder, tmp_path)
    vectors.vectors(["a", "b", "a"])
    vectors.vectors(["b", "c", "d", "a"])
    assert encoder.calls == [2, 2]


def test_a_later_process_encodes_nothing_and_sees_the_same_numbers(tmp_path) -> None:
    first = WordVectors(BagEncoder(), tmp_path).vectors(WORDS)
    encoder = BagEncoder()
    again = WordVectors(encoder, tmp_path)
    assert np.array_equal(again.vectors(WORDS[::-1])[::-1], first)
    assert encoder.calls == []
    again.vectors(["new"])
    assert encoder.calls == [1]


def test_encoders_do_not_share_a_file(tmp_path) -> None:
    WordVectors(BagEncoder(24), tmp_path).vectors(WORDS)
    other = BagEncoder(16)
    assert WordVectors(other, tmp_path).vectors(WORDS).shape == (5, 16)
    assert other.calls == [5]
    assert len(list(tmp_path.glob("*.sqlite"))) == 2


def test_the_file_is_its_owners_alone(tmp_path) -> None:
    WordVectors(BagEncoder(), tmp_path).vectors(WORDS)
    assert stat.S_IMODE(file_of(tmp_path).stat().st_mode) == 0o600


def test_a_broken_file_is_replaced(tmp_path) -> None:
    first = WordVectors(BagEncoder(), tmp_path).vectors(WORDS)
    file_of(tmp_path).write_bytes(b"this is no database, " * 1000)
    assert np.array_equal(WordVectors(BagEncoder(), tmp_path).vectors(WORDS), first)
    encoder = BagEncoder()
    WordVectors(encoder, tmp_path).vectors([*WORDS, "more"])
    assert sum(encoder.calls) in (1, 6)  # the file was made anew by the call before, or is now
    encoder = BagEncoder()
    WordVectors(encoder, tmp_path).vectors([*WORDS, "more"])
    assert encoder.calls == []


def test_a_row_cut_short_is_encoded_again(tmp_path) -> None:
    first = WordVectors(BagEncoder(), tmp_path).vectors(WORDS)
    with sqlite3.connect(file_of(tmp_path)) as database:
        database.execute("UPDATE words SET row = x'0011' WHERE word = 'bridge'")
    database.close()
    encoder = BagEncoder()
    assert np.array_equal(WordVectors(encoder, tmp_path).vectors(WORDS), first)
    assert encoder.calls == [1]


def test_no_disk_is_no_error(tmp_path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert WordVectors(BagEncoder(), blocked / "words").vectors(WORDS).shape == (5, 24)


def test_a_vocabulary_is_prepared_with_progress(tmp_path) -> None:
    encoder, seen = BagEncoder(), []
    vectors = WordVectors(encoder, tmp_path)
    vocabulary = [f"w{i}" for i in range(5000)]
    vectors.prepare([*vocabulary, *vocabulary], progress=lambda _, done, total: seen.append((done, total)))
    assert sum(encoder.calls) == 5000
    assert seen[0] == (0, 5000)
    assert seen[-1] == (5000, 5000)
    vectors.vectors(vocabulary)
    assert sum(encoder.calls) == 5000


def test_many_threads_and_two_stores_on_one_file(tmp_path) -> None:
    encoder = BagEncoder()
    stores = [WordVectors(encoder, tmp_path), WordVectors(encoder, tmp_path)]
    batches = [[f"w{i % 97}" for i in range(start, start + 40)] for start in range(0, 400, 10)]
    expected = [WordVectors(encoder, None).vectors(batch) for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda i: stores[i % 2].vectors(batches[i]), range(len(batches))))
    assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("limit", [3, 100])
def test_a_memo_forgets_when_full_and_is_still_right(limit) -> None:
    computed = []

    def lengths(words: list[str]) -> np.ndarray:
        computed.append(len(words))
        return np.array([[len(word), 1.0] for word in words])

    memo = RowMemo(lengths, 2, limit=limit)
    for words in (["a", "bb"], ["ccc", "a"], ["a", "bb", "ccc", "dddd", "eeeee"], ["dddd"]):
        assert memo.rows(words)[:, 0].tolist() == [len(word) for word in words]
    assert computed == ([2, 1, 5] if limit == 3 else [2, 1, 2])
