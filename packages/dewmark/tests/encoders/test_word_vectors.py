from __future__ import annotations

import sqlite3
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.fakes import BagEncoder

from dewmark.core.whitening import normalize_rows
from dewmark.encoders.contexts import ordinary_texts
from dewmark.encoders.word_vectors import (
    REMOVED,
    STATISTICS,
    RowMemo,
    WordContexts,
    WordStatistics,
    WordTokens,
    WordVectors,
    fit_word_statistics,
    load_word_statistics,
    register_texts,
    save_word_statistics,
    windows_before,
    word_weight,
)
from dewmark.errors import ArtifactError, ConfigError, InputError
from dewmark.text.words import words
from dewmark.workspace import Workspace

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


def test_the_file_is_private(tmp_path) -> None:
    WordVectors(BagEncoder(), tmp_path).vectors(WORDS)
    assert stat.S_IMODE(file_of(tmp_path).stat().st_mode) == 0o600


def test_a_damaged_file_is_replaced(tmp_path) -> None:
    first = WordVectors(BagEncoder(), tmp_path).vectors(WORDS)
    file_of(tmp_path).write_bytes(b"this is no database, " * 1000)
    assert np.array_equal(WordVectors(BagEncoder(), tmp_path).vectors(WORDS), first)
    encoder = BagEncoder()
    WordVectors(encoder, tmp_path).vectors([*WORDS, "more"])
    assert sum(encoder.calls) in (1, 6)  # the file was made anew by the call before, or is now
    encoder = BagEncoder()
    WordVectors(encoder, tmp_path).vectors([*WORDS, "more"])
    assert encoder.calls == []


def test_a_truncated_row_is_encoded_again(tmp_path) -> None:
    first = WordVectors(BagEncoder(), tmp_path).vectors(WORDS)
    with sqlite3.connect(file_of(tmp_path)) as database:
        database.execute("UPDATE blobs SET data = x'0011' WHERE name = 'bridge'")
    database.close()
    encoder = BagEncoder()
    assert np.array_equal(WordVectors(encoder, tmp_path).vectors(WORDS), first)
    assert encoder.calls == [1]


def test_a_missing_disk_is_not_an_error(tmp_path) -> None:
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
def test_a_full_memo_is_cleared_and_stays_correct(limit) -> None:
    computed = []

    def lengths(words: list[str]) -> np.ndarray:
        computed.append(len(words))
        return np.array([[len(word), 1.0] for word in words])

    memo = RowMemo(lengths, 2, limit=limit)
    for given in (["a", "bb"], ["ccc", "a"], ["a", "bb", "ccc", "dddd", "eeeee"], ["dddd"]):
        assert memo.rows(given)[:, 0].tolist() == [len(word) for word in given]
    assert computed == ([2, 1, 5] if limit == 3 else [2, 1, 2])


LANGUAGES, DIM = 15, 64  # fifteen means differ in fourteen directions, and so many are removed


class AccentEncoder(BagEncoder):
    """Words of language i begin with "ix"; all its vectors share a component of their own."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        parts = [text.rpartition("x") for text in texts]
        meaning = super().encode([meant for _, _, meant in parts])
        accents = np.random.default_rng(0).normal(size=(LANGUAGES, self.dim))
        spoken = [int(language or 0) for language, _, _ in parts]
        return (meaning / np.linalg.norm(meaning, axis=1, keepdims=True) + 0.15 * accents[spoken]).astype(
            np.float32
        )


def speak(language: int, seed: int, length: int = 400) -> str:
    rng = np.random.default_rng(seed)
    return " ".join(f"{language}x{''.join(rng.choice(list('abcdefgh'), 4))}" for _ in range(length))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Workspace:
    return Workspace(cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def spoken(workspace) -> tuple[WordVectors, WordStatistics]:
    vectors = WordVectors(AccentEncoder(DIM), None)
    texts = [speak(i, i) for i in range(LANGUAGES)]
    return vectors, fit_word_statistics(
        vectors, languages=texts[5:], registers=texts[:5], workspace=workspace
    )


def test_frequent_words_weigh_little_in_every_language() -> None:
    for frequent in ("the", "und", "de", "の", "的", "ที่", "и", "في"):
        assert 0.0 < word_weight(frequent) < 0.05
    assert word_weight("the") < word_weight("between") < word_weight("bridge") == 1.0


def test_windows_before_each_word() -> None:
    assert windows_before(["a", "b", "c"], k=2) == [(), ("a",), ("a", "b")]
    assert windows_before(["a", "b"], k=2, before=["x", "y", "z"]) == [("y", "z"), ("z", "a")]
    assert windows_before([], k=2, before=["x"]) == []


def test_contexts_are_weighted_sums(spoken) -> None:
    vectors, statistics = spoken
    window = ("0xabcd", "the", "1xhgfe")
    got = WordContexts(vectors, statistics).vectors([window, (), window[:1], ()])
    rows = statistics.contexts(vectors.vectors(window))
    expected = sum(word_weight(word) * row for word, row in zip(window, rows, strict=True))
    np.testing.assert_allclose(got[0], normalize_rows(expected[None])[0], atol=2e-3)  # float16 rows
    np.testing.assert_allclose(got[2], normalize_rows(rows[:1])[0], atol=2e-3)
    assert (got[[1, 3]] == 0).all()
    assert WordContexts(vectors, statistics).vectors([]).shape == (0, DIM)


def test_many_windows_are_summed_in_blocks(spoken) -> None:
    vectors, statistics = spoken
    forms = [word.form for word in words(speak(3, 9, 5000))]
    windows = windows_before(forms, k=4)
    contexts = WordContexts(vectors, statistics)
    got = contexts.vectors(windows)
    picked = [0, 1, 2047, 2048, 2049, 4999]
    np.testing.assert_allclose(got[picked], contexts.vectors([windows[i] for i in picked]), atol=1e-5)


def test_tokens_are_unit_rows_without_the_removed_directions(spoken) -> None:
    vectors, statistics = spoken
    rows = WordTokens(vectors, statistics).vectors([f"{i}xabcd" for i in range(LANGUAGES)])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=2e-3)
    gram = statistics.removed @ statistics.removed.T
    np.testing.assert_allclose(gram, np.eye(REMOVED), atol=1e-5)
    assert np.abs(rows @ statistics.removed.T).max() < 5e-3


def test_a_word_has_the_same_row_alone_and_among_others() -> None:
    """To the last bit of float16: one row of a float32 product differs with the rows beside it."""
    rng = np.random.default_rng(0)
    removed = np.linalg.qr(rng.normal(size=(512, REMOVED)))[0].T.astype(np.float32)
    centres = [0.02 * rng.normal(size=512).astype(np.float32) for _ in range(3)]
    statistics = WordStatistics(*centres, removed=removed)
    vectors = normalize_rows(rng.normal(size=(500, 512)))
    for rows in (statistics.tokens, statistics.contexts):
        alone = np.concatenate([rows(vectors[i : i + 1]) for i in range(len(vectors))])
        np.testing.assert_array_equal(alone.astype(np.float16), rows(vectors).astype(np.float16))


def test_the_language_component_is_removed(spoken) -> None:
    """Unrelated texts of one language share it in raw contexts, and a translated word differs by it."""
    vectors, statistics = spoken
    forms = {seed: [word.form for word in words(speak(7, seed))] for seed in (100, 101)}
    raw = {seed: normalize_rows(vectors.vectors(f) - statistics.context_centre) for seed, f in forms.items()}
    contexts = WordContexts(vectors, statistics)
    clean = {seed: contexts.vectors([(form,) for form in f]) for seed, f in forms.items()}
    shared = float(np.mean(raw[100] @ raw[101].T))
    left = float(np.mean(clean[100] @ clean[101].T))
    assert shared > 0.2
    assert abs(left) < 0.05  # means of 400 words in 50 directions: an error of 1/400 in each of two means
    same = [f"{i}xfade" for i in range(LANGUAGES)]
    unit = normalize_rows(vectors.vectors(same) - statistics.running_centre)
    tokens = WordTokens(vectors, statistics).vectors(same)
    assert float(np.mean(tokens @ tokens.T)) > float(np.mean(unit @ unit.T)) + 0.1


def test_fitting_needs_enough_texts(workspace) -> None:
    vectors = WordVectors(BagEncoder(), None)
    with pytest.raises(InputError, match="more than 14 texts"):
        fit_word_statistics(vectors, languages=["one text"], registers=["another one"], workspace=workspace)
    with pytest.raises(InputError, match="got 15"):
        fit_word_statistics(vectors, languages=["word"] * 15, registers=["...", "?"], workspace=workspace)


def test_the_package_has_texts_of_many_kinds() -> None:
    texts = register_texts()
    assert len(texts) >= 30
    assert min(len(words(text)) for text in texts) > 80
    assert len(ordinary_texts()) == 15


def test_statistics_are_fitted_once_and_read_again(tmp_path) -> None:
    encoder, workspace = BagEncoder(), Workspace(cache=tmp_path)
    fitted = load_word_statistics("default", vectors=WordVectors(encoder, None), workspace=workspace)
    encoder.calls.clear()
    again = load_word_statistics("default", vectors=WordVectors(encoder, None), workspace=workspace)
    assert encoder.calls == []
    for name in STATISTICS:
        assert np.array_equal(getattr(fitted, name), getattr(again, name))


def test_shipped_statistics_are_read_without_the_encoder(workspace) -> None:
    class Named(BagEncoder):
        def __init__(self) -> None:
            super().__init__(512)
            self.name = "use-m3"

    vectors = WordVectors(Named(), None)
    statistics = load_word_statistics("default", vectors=vectors, workspace=workspace)
    assert statistics.removed.shape == (REMOVED, 512)
    assert vectors.encoder.calls == []


def test_statistics_that_do_not_fit_are_rejected(tmp_path, spoken) -> None:
    vectors, statistics = spoken
    save_word_statistics(statistics, tmp_path / "mine", vectors=vectors)
    other = WordVectors(BagEncoder(), None)
    with pytest.raises(ConfigError, match="64 dimensions, bag has 24"):
        load_word_statistics(str(tmp_path / "mine"), vectors=other, workspace=Workspace(cache=tmp_path))
    with pytest.raises(ArtifactError, match="no bundle.json"):
        load_word_statistics(str(tmp_path / "none"), vectors=other, workspace=Workspace(cache=tmp_path))
