"""Detection of many texts: in batches and chunks, looked up once; and what a stored detector maps."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from tests.fakes import COMPOSED

import dewmark
from dewmark.detect import _parts, score_text, score_texts
from dewmark.dew.reading import distinct_windows
from dewmark.encoders.contexts import ComposedContexts
from dewmark.encoders.lexicon import sums_of
from dewmark.encoders.token_tables import rows_of
from dewmark.text.windows import ABSENT
from dewmark_lab.testing.fake_host import FakeHost

KEY = dewmark.Key(bytes(range(32)))
CONFIGURATIONS = {"words": ("dew", {}), "tokens": ("dew-paper", COMPOSED), "window": ("dew-paper", {})}


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def texts(host: FakeHost) -> list[str]:
    """Texts of 1 to 300 tokens, some of which repeat themselves."""
    random = np.random.default_rng(0)
    lengths = [1, 2, 3, 4, 5, 30, 31, 90, 200, 300]
    rows = [(4 + random.zipf(1.3, size=n) % 500).tolist() for n in lengths]
    rows += [[7] * 60, [7, 8, 9] * 40]
    return host.tokenizer.decode(rows)


def numbers(detections):
    return np.array([(d.z, d.p_value, d.effective_length, d.score, d.tokens_scored) for d in detections])


@pytest.mark.parametrize(("scheme", "settings"), CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_batch_a_text_alone_and_small_parts_agree(scheme, settings, host, texts, bag_encoder, monkeypatch):
    bound = dewmark.load_scheme(KEY, host=host.info, scheme=scheme, settings=settings)
    alone = [score_text(bound, text) for text in texts]
    # float32 sums in another order: a few units in its 24th bit
    close = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(numbers(score_texts(bound, texts)), numbers(alone), **close)
    monkeypatch.setattr("dewmark.detect._CHARACTERS_AT_ONCE", 200)
    np.testing.assert_allclose(numbers(score_texts(bound, texts)), numbers(alone), **close)


def test_parts_hold_a_bounded_number_of_characters_and_of_texts(monkeypatch) -> None:
    texts = ["x" * n for n in (30, 34, 30, 100, 5, 1, 1, 1)]
    monkeypatch.setattr("dewmark.detect._CHARACTERS_AT_ONCE", 64)
    parts = [slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 8)]
    assert list(_parts(texts)) == parts
    monkeypatch.setattr("dewmark.detect._TEXTS_AT_ONCE", 3)
    assert list(_parts(texts)) == [*parts[:3], slice(4, 7), slice(7, 8)]
    assert list(_parts([])) == []


def test_contexts_are_normalised_sums() -> None:
    random = np.random.default_rng(1)
    table = random.normal(size=(50, 16)).astype(np.float16)
    windows = random.integers(-1, 50, size=(300, 3))
    windows[7] = ABSENT
    padded = np.concatenate((table.astype(np.float64), np.zeros((1, 16))))
    sums = padded[windows].sum(axis=1)
    expected = sums / np.maximum(np.linalg.norm(sums, axis=1), 1e-30)[:, None]
    np.testing.assert_allclose(ComposedContexts(table).vectors(windows), expected, atol=1e-6)
    none = np.zeros((0, 3), dtype=np.int64)
    assert sums_of(np.zeros((0, 16), dtype=np.float32), none).shape == (0, 16)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_distinct_windows_are_numpys(k: int) -> None:
    windows = np.random.default_rng(k).integers(ABSENT, 4, size=(500, k))
    for size in (5, 200_000):  # with k = 5 the larger one does not fit into one integer
        rows, places = distinct_windows(windows, size)
        expected, inverse = np.unique(windows, axis=0, return_inverse=True)
        assert (rows == expected).all()
        assert (places == inverse).all()


def test_rows_of_a_mapped_table_are_copied_and_its_pages_given_back(tmp_path) -> None:
    table = np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float16)
    np.save(tmp_path / "table.npy", table)
    mapped = np.load(tmp_path / "table.npy", mmap_mode="r")
    ids = np.random.default_rng(1).integers(0, 3000, size=1300)
    assert (rows_of(mapped, ids) == table[ids].astype(np.float32)).all()
    assert (rows_of(table, ids) == table[ids].astype(np.float32)).all()
    assert isinstance(mapped._mmap, mmap.mmap)  # what numpy calls it: rows_of depends on it


@pytest.mark.parametrize("settings", [CONFIGURATIONS["tokens"][1], {**COMPOSED, "mode": "context_only"}])
def test_a_stored_detector_maps_its_tables_in_half_precision(settings, host, texts, bag_encoder, tmp_path):
    bound = dewmark.load_scheme(KEY, host=host.info, scheme="dew-paper", settings=settings)
    dewmark.Detector(bound).save(tmp_path / "detector")
    stored = dewmark.Detector.load(tmp_path / "detector").scheme
    rows, contexts = stored.reader.token_rows, stored.reader.contexts.table
    for table in (rows, contexts):
        assert isinstance(table, np.memmap)
        assert table.dtype == np.float16
    assert isinstance(stored.fold._product, np.memmap)
    np.testing.assert_allclose(
        numbers(score_texts(stored, texts)), numbers(score_texts(bound, texts)), rtol=1e-5
    )
    again = stored.state()
    assert again.arrays.keys() == bound.state().arrays.keys()
    np.testing.assert_allclose(
        stored.fold.table(rows, source=stored.source),
        bound.fold.table(rows, source=bound.source),
        rtol=1e-4,
        atol=1e-6,
    )
