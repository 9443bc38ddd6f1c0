"""The lexicon that is built: vectors of an encoder, cleaned, reduced, quantised; and its extension."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.fakes import BagEncoder

from dewmark.core.whitening import normalize_rows
from dewmark.encoders.lexicon import Lexicon, lexicon_folder, load_lexicon
from dewmark.errors import InputError
from dewmark.text.words import words
from dewmark.workspace import Workspace
from dewmark_lab.lexicon_build import (
    REMOVED,
    WordStatistics,
    WordVectors,
    build_lexicon,
    extend_lexicon,
    fit_word_statistics,
    load_word_statistics,
    reduce_vectors,
)
from dewmark_lab.word_lists import FormList, word_weight

WORDS = ["bridge", "brücke", "the", "橋", "l'eau"]
FORMS = (
    *("the", "und", "bridge", "brücke", "don't", "río", "water", "мост", "köprü", "l'eau"),
    *(
        f"{a}{b}{c}"
        for a in ("ka", "lo", "mi", "su")
        for b in ("ra", "te", "no")
        for c in ("", "m", "s", "t")
    ),
)
LISTED = FormList(
    forms=FORMS,
    frequency=np.array([0.05, 0.03, *[1e-5] * (len(FORMS) - 2)]),
    languages=tuple("en" if form.isascii() else "de" for form in FORMS),
)


def test_words_are_encoded_once_ever(tmp_path) -> None:
    encoder = BagEncoder()
    first = WordVectors(encoder, tmp_path).vectors([*WORDS, "bridge"])
    np.testing.assert_allclose(first[:5], normalize_rows(encoder.encode(WORDS)), atol=1e-3)
    assert np.array_equal(first[0], first[5])
    later, seen = BagEncoder(), []
    again = WordVectors(later, tmp_path)
    progress = lambda _, done, total: seen.append((done, total))  # noqa: E731
    assert np.array_equal(again.vectors(WORDS[::-1], progress=progress)[::-1], first[:5])
    assert later.calls == []
    assert seen == [(0, 5), (5, 5)]
    again.vectors(["new", "bridge"])
    assert later.calls == [1]


def test_a_truncated_row_is_encoded_again(tmp_path) -> None:
    first = WordVectors(BagEncoder(), tmp_path).vectors(WORDS)
    with sqlite3.connect(next(tmp_path.glob("*.sqlite"))) as database:
        database.execute("UPDATE blobs SET data = x'0011' WHERE name = 'bridge'")
    database.close()
    encoder = BagEncoder()
    assert np.array_equal(WordVectors(encoder, tmp_path).vectors(WORDS), first)
    assert encoder.calls == [1]


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
def spoken() -> tuple[WordVectors, WordStatistics]:
    vectors = WordVectors(AccentEncoder(DIM), None)
    texts = [speak(i, i) for i in range(LANGUAGES)]
    return vectors, fit_word_statistics(vectors, languages=texts[5:], registers=texts[:5])


def test_frequent_words_weigh_little_in_every_language() -> None:
    for frequent in ("the", "und", "de", "の", "的", "ที่", "и", "في"):
        assert 0.0 < word_weight(frequent) < 0.05
    assert word_weight("the") < word_weight("between") < word_weight("bridge") == 1.0


def test_the_language_component_is_removed(spoken) -> None:
    """Unrelated texts of one language share it in raw vectors, and a translated word differs by it."""
    vectors, statistics = spoken
    np.testing.assert_allclose(statistics.removed @ statistics.removed.T, np.eye(REMOVED), atol=1e-5)
    forms = {seed: [word.form for word in words(speak(7, seed))] for seed in (100, 101)}
    raw = {seed: vectors.vectors(f) - statistics.context_centre for seed, f in forms.items()}
    clean = {seed: normalize_rows(statistics.project(rows)) for seed, rows in raw.items()}
    shared = float(np.mean(normalize_rows(raw[100]) @ normalize_rows(raw[101]).T))
    assert shared > 0.2
    # means of 400 words in 50 directions: an error of 1/400 in each of two means
    assert abs(float(np.mean(clean[100] @ clean[101].T))) < 0.05
    same = vectors.vectors([f"{i}xfade" for i in range(LANGUAGES)]) - statistics.running_centre
    tokens, unit = normalize_rows(statistics.project(same)), normalize_rows(same)
    assert float(np.mean(tokens @ tokens.T)) > float(np.mean(unit @ unit.T)) + 0.1


def test_fitting_needs_enough_texts() -> None:
    vectors = WordVectors(BagEncoder(), None)
    with pytest.raises(InputError, match="more than 14 texts"):
        fit_word_statistics(vectors, languages=["one text"], registers=["another one"])
    with pytest.raises(InputError, match="got 15"):
        fit_word_statistics(vectors, languages=["word"] * 15, registers=["...", "?"])


def test_shipped_statistics_are_read_without_the_encoder() -> None:
    class Named(BagEncoder):
        def __init__(self) -> None:
            super().__init__(512)
            self.name = "use-m3"

    vectors = WordVectors(Named(), None)
    assert load_word_statistics(vectors).removed.shape == (REMOVED, 512)
    assert vectors.encoder.calls == []


# The lexicon


def statistics(dim: int = 24) -> WordStatistics:
    rng = np.random.default_rng(5)
    centres = (0.1 * rng.normal(size=(3, dim))).astype(np.float32)
    removed = np.linalg.qr(rng.normal(size=(dim, 4)))[0].T.astype(np.float32)
    return WordStatistics(*centres, removed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lexicon") / "bag"
    build_lexicon(LISTED, WordVectors(BagEncoder(), None), statistics(), out=out, dim=20)
    return out


@pytest.fixture
def lexicon(folder: Path, tmp_path: Path) -> Lexicon:
    return load_lexicon(str(folder), workspace=Workspace(cache=tmp_path))


def test_vectors_are_those_of_the_encoder_within_the_quantisation_error(lexicon) -> None:
    """With 20 dimensions left after P, 20 coordinates lose nothing but 4-bit rounding."""
    vectors, rows = WordVectors(BagEncoder(), None).vectors(FORMS), lexicon.rows(FORMS)
    exact = statistics()
    want = normalize_rows(exact.project(vectors - exact.running_centre))
    got = lexicon.tokens(rows)
    assert got.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, rtol=1e-5)
    # 4 bits keep 98.5% and more of a coordinate's variance: angles between words stay
    assert np.corrcoef((want @ want.T).ravel(), (got @ got.T).ravel())[0, 1] > 0.98
    want = exact.project(vectors - exact.context_centre) * lexicon.weights[rows, None]
    got = lexicon.contexts(rows)
    assert np.corrcoef((want @ want.T).ravel(), (got @ got.T).ravel())[0, 1] > 0.98


class TurnedEncoder(BagEncoder):
    """The same vectors in other coordinates."""

    def __init__(self) -> None:
        super().__init__()
        self.identity = "turned"

    def encode(self, texts):
        turn = np.linalg.qr(np.random.default_rng(2).normal(size=(24, 24)))[0]
        return (super().encode(texts) @ turn).astype(np.float32)


def test_an_extended_lexicon_keeps_its_rows_and_maps_the_vectors_of_another_encoder(folder, tmp_path) -> None:
    new = tuple(
        f"{a}{b}{c}" for a in ("ka", "lo", "mi", "su") for b in ("ra", "te", "no") for c in ("mi", "st")
    )
    more = FormList((*new, "bridge"), np.full(len(new) + 1, 1e-6), ("fi",) * (len(new) + 1))
    made = {}
    for encoder in (BagEncoder(), TurnedEncoder()):
        out = tmp_path / encoder.identity
        extend_lexicon(folder, more, WordVectors(encoder, None), statistics(), out=out)
        made[encoder.identity] = load_lexicon(str(out), workspace=Workspace(cache=tmp_path))
    first, rows = load_lexicon(str(folder), workspace=Workspace(cache=tmp_path)), np.arange(1, len(FORMS) + 1)
    for each in made.values():
        assert tuple(each.forms) == (*FORMS, *new)
        np.testing.assert_array_equal(each.tokens(rows), first.tokens(rows))
        assert each.meta["languages"]["fi"] == len(new)
    exact, mapped = (each.tokens(each.rows(new)) for each in made.values())
    cosines = exact @ mapped.T
    # the map is fitted on 53 words in 24 dimensions, with a ridge: near, not the same
    assert np.diag(cosines).mean() > 0.6
    assert np.diag(cosines).mean() > cosines.mean() + 0.3


def test_identity_is_that_of_the_content(folder, lexicon, tmp_path) -> None:
    assert lexicon.identity.startswith("bag-")
    build_lexicon(LISTED, WordVectors(BagEncoder(), None), statistics(), out=tmp_path / "again", dim=20)
    build_lexicon(LISTED, WordVectors(BagEncoder(), None), statistics(), out=tmp_path / "other", dim=10)
    again, other = (
        load_lexicon(str(tmp_path / name), workspace=Workspace(cache=tmp_path)) for name in ("again", "other")
    )
    assert again.identity == lexicon.identity != other.identity


def test_languages_weigh_the_same_in_the_basis() -> None:
    """However few its forms, a language's direction of most variance is among the leading ones."""
    rng = np.random.default_rng(0)
    rare, common = np.zeros((30, 6)), np.zeros((3000, 6))
    rare[:, 0] = rng.normal(size=30)
    common[:, 1] = 0.8 * rng.normal(size=3000)
    none = WordStatistics(*np.zeros((3, 6), dtype=np.float32), np.zeros((0, 6), dtype=np.float32))
    vectors = np.concatenate([common, rare]).astype(np.float16)
    reduced = reduce_vectors(vectors, none, languages=["en"] * 3000 + ["cy"] * 30, r=2)
    assert np.abs(reduced.basis[0, 0]) > 0.99
    np.testing.assert_allclose(reduced.basis @ reduced.basis.T, np.eye(2), atol=1e-6)


@pytest.mark.models
def test_shipped_vectors_are_those_of_the_encoder(tmp_path) -> None:
    from dewmark.encoders import load_encoder
    from dewmark.storage import load_bundle

    vectors = WordVectors(load_encoder("use-m3", device="cpu"), None)
    fitted, shipped = load_word_statistics(vectors), load_lexicon(workspace=Workspace(cache=tmp_path))
    forms = shipped.forms[:154_000:1541]  # those behind came through a map from another encoder
    basis = (
        load_bundle(lexicon_folder("default", Workspace(cache=tmp_path))).arrays["basis"].astype(np.float32)
    )
    rows = shipped.rows(forms)
    raw = vectors.vectors(forms).astype(np.float32)
    want = normalize_rows(fitted.project(raw - fitted.running_centre)) @ basis.T
    want /= np.linalg.norm(want, axis=1, keepdims=True)
    cosines = (want * shipped.tokens(rows)).sum(axis=1)
    assert cosines.mean() > 0.99
    assert cosines.min() > 0.95  # the outermost of 16 levels cut the longest coordinates off
    want = fitted.project(raw - fitted.context_centre) @ basis.T * shipped.weights[rows, None]
    got = shipped.contexts(rows)
    cosines = (want * got).sum(axis=1) / np.linalg.norm(want, axis=1) / np.linalg.norm(got, axis=1)
    assert cosines.mean() > 0.99
    assert cosines.min() > 0.95
