from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dewmark.core.whitening import Whitening, normalize_rows
from dewmark.encoders.token_tables import build_token_table, markable_ids, token_table
from dewmark.errors import NumericalError, VocabularyError
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(300, padded_vocab=12)


def test_rows_are_whitened_unit_vectors(host) -> None:
    rows = build_token_table(host.info)
    E = host.info.embeddings()[4:300]
    expected = normalize_rows(Whitening.fit(E).apply(E))
    np.testing.assert_allclose(rows[4:300].astype(np.float32), expected, atol=1e-3)  # float16
    assert (rows[:4] == 0).all()
    assert (rows[300:] == 0).all()


def test_without_whitening_rows_are_the_embeddings(host) -> None:
    rows = build_token_table(host.info, whiten=False)
    np.testing.assert_allclose(rows[4:300], normalize_rows(host.info.embeddings()[4:300]), atol=1e-3)


def test_the_table_is_cached_and_a_corrupt_cache_is_rebuilt(host, tmp_path) -> None:
    calls = []

    def embeddings():
        calls.append(1)
        return host.info.embeddings()

    info = dataclasses.replace(host.info, embeddings=embeddings)
    workspace = Workspace(cache=tmp_path)
    first = np.array(token_table(info, whiten=True, donor=None, workspace=workspace))
    assert np.array_equal(token_table(info, whiten=True, donor=None, workspace=workspace), first)
    assert len(calls) == 1
    file = next(tmp_path.rglob("rows.npy"))
    file.write_bytes(file.read_bytes()[:-100])
    assert np.array_equal(token_table(info, whiten=True, donor=None, workspace=workspace), first)
    assert len(calls) == 2
    token_table(info, whiten=False, donor=None, workspace=workspace)
    assert len(calls) == 3


def test_a_donor_gives_the_mean_of_its_pieces_in_its_own_space(host) -> None:
    donor = FakeHost(300, kind="bytes", seed=3)
    rows = build_token_table(host.info, donor=donor.info)
    E = donor.info.embeddings()
    whitening = Whitening.fit(E[markable_ids(donor.info)])
    word = host.info.tokenizer.encode([" bridge"])[0].ids[0]
    pieces = donor.info.tokenizer.encode([" bridge"])[0].ids
    assert len(pieces) > 1
    expected = normalize_rows(whitening.apply(E[list(pieces)].mean(axis=0, keepdims=True)))[0]
    np.testing.assert_allclose(rows[word], expected, atol=1e-3)
    assert rows.shape == (312, E.shape[1])
    assert (rows[:4] == 0).all()


def test_mismatches_are_rejected(host) -> None:
    short = dataclasses.replace(host.info, embeddings=lambda: host.info.embeddings()[:100])
    with pytest.raises(VocabularyError, match="312 entries"):
        build_token_table(short)
    small = dataclasses.replace(host.info, vocab_size=40)
    with pytest.raises(VocabularyError, match="do not belong together"):
        markable_ids(small)
    bad = dataclasses.replace(host.info, embeddings=lambda: np.full((312, 8), np.nan, dtype=np.float32))
    with pytest.raises(NumericalError, match="NaN"):
        build_token_table(bad)


def test_an_unused_token_without_embedding_gets_no_row(host) -> None:
    E = host.info.embeddings().copy()
    E[77] = 0.0
    rows = build_token_table(dataclasses.replace(host.info, embeddings=lambda: E))
    assert (rows[77] == 0).all()
    assert (rows[78] != 0).any()


def test_a_tokenizer_may_have_a_few_more_ids_than_the_model(host) -> None:
    fewer = dataclasses.replace(host.info, vocab_size=298, embeddings=lambda: host.info.embeddings()[:298])
    assert markable_ids(fewer)[-1] == 297
    assert build_token_table(fewer).shape[0] == 298
