"""The fast path gives the numbers of the literal algorithms."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from tests.fakes import COMPOSED, BagEncoder

from dewmark.core.keys import Key
from dewmark.core.projections import draw_projections
from dewmark.detect import score_text, score_texts
from dewmark.dew.paper import reference
from dewmark.dew.paper.scheme import DewPaper, HashedContexts, permuted_rows
from dewmark.text.windows import windows_of
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost

KEY = Key(bytes(range(32)))
MODES = ("both", "context_only", "token_only", "neither")


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(300, padded_vocab=20)


def bind(host: FakeHost, tmp_path, **settings):
    contexts = {} if settings.get("mode") in ("token_only", "neither") else COMPOSED
    return DewPaper().with_settings({**contexts, **settings}).bind(KEY, host.info, Workspace(cache=tmp_path))


def literal_tables(bound, key: Key):
    """Ê_T, R_T, R_C as the paper has them, float64, with the ablation's permutation applied to the rows."""
    rows = np.asarray(bound.reader.token_rows, dtype=np.float64)
    projections = draw_projections(
        key, d_T=rows.shape[1], d_C=bound.reader.contexts.dim, kind=bound.scheme.projection, n=bound.fold.n
    )
    if not bound.scheme.token_semantics:
        rows = rows[permuted_rows(key, np.flatnonzero(np.any(rows != 0, axis=1)), len(rows))]
    return rows, *projections


@pytest.mark.parametrize(
    ("mode", "projection", "encoding", "white"),
    [
        *itertools.product(MODES, ("gaussian", "orthogonal"), ("composed",), (True,)),
        ("both", "gaussian", "window", True),
        ("both", "gaussian", "window", False),
        ("both", "gaussian", "composed", False),
    ],
)
def test_scores_equal_algorithm_2(host, bag_encoder, tmp_path, mode, projection, encoding, white) -> None:
    contexts = {"context_encoding": encoding, "whiten_contexts": white}
    if mode in ("token_only", "neither"):
        contexts = {}
    bound = bind(host, tmp_path, mode=mode, projection=projection, **contexts)
    text = " the river and the old bridge over the water was light and the night was old"
    tokenized = host.info.tokenizer.encode([text])[0]
    detection = score_text(bound, text, test="gaussian")  # which takes tokens as they are
    rows, R_T, R_C = literal_tables(bound, KEY)
    windows = windows_of(tokenized.ids, k=3, host=host.info)
    vectors = (bound.hashed or bound.reader.contexts).vectors(windows).astype(np.float64)
    assert detection.tokens_scored == len(tokenized.ids) - 3
    total = 0.0
    for i, token in enumerate(tokenized.ids):
        if i < 3:
            assert not detection.tokens[i].scored
            continue
        b = reference.score(rows[token], vectors[i], R_T=R_T, R_C=R_C, lambda_=2.0, gamma=0.5)
        assert 2.0 * np.tanh(0.5 * detection.tokens[i].score) == pytest.approx(b, abs=1e-5)
        total += b
    assert detection.score == pytest.approx(total / detection.tokens_scored, abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_marked_logits_equal_algorithm_1(host, bag_encoder, tmp_path, mode) -> None:
    bound = bind(host, tmp_path, mode=mode, m=16)
    ids = torch.tensor([host.info.tokenizer.encode([" the old bridge over the river"])[0].ids])
    logits = torch.randn(1, host.info.vocab_size, generator=torch.Generator().manual_seed(0)) * 2
    logits[:, :4] = logits[:, 300:] = -20.0  # tokens without a row are tested below
    marked = bound.session(ids)(ids, logits)
    rows, R_T, R_C = literal_tables(bound, KEY)
    e_C = (bound.hashed or bound.reader.contexts).vectors(ids[:, -3:].numpy())[0].astype(np.float64)
    expected = reference.insert(
        logits[0].numpy().astype(np.float64), e_C, rows, R_T=R_T, R_C=R_C, m=16, lambda_=2.0, gamma=0.5
    )
    np.testing.assert_allclose(marked[0].numpy(), expected, atol=1e-5)
    assert (marked != logits).sum() == 16


def test_tokens_without_text_get_no_bias(host, bag_encoder, tmp_path) -> None:
    bound = bind(host, tmp_path, m=320)
    ids = torch.tensor([host.info.tokenizer.encode([" the old bridge"])[0].ids])
    logits = torch.zeros(1, host.info.vocab_size)
    bias = (bound.session(ids)(ids, logits) - logits)[0]
    assert (bias[:4] == 0).all()  # special tokens
    assert (bias[300:] == 0).all()  # ids that the tokenizer does not know
    assert (bias[4:300] != 0).all()
    assert bias.abs().max() <= 2.0


def test_context_vectors_of_token_only_depend_on_key_and_ids() -> None:
    windows = np.array([[1, 2, 3], [1, 2, 4], [-1, -1, -1], [1, 2, 3]])
    a = HashedContexts(b"a" * 32, 64).vectors(windows)
    np.testing.assert_allclose(np.linalg.norm(a, axis=1), [1, 1, 0, 1], atol=1e-6)
    assert np.array_equal(a[0], a[3])
    assert abs(a[0] @ a[1]) < 4.5 / 8
    assert abs(a[0] @ HashedContexts(b"b" * 32, 64).vectors(windows)[0]) < 4.5 / 8


def test_window_contexts_encode_each_window_once(host, bag_encoder: BagEncoder, tmp_path) -> None:
    bound = bind(host, tmp_path, context_encoding="window", whiten_contexts=False)
    text = " the old bridge over the river" * 20
    bag_encoder.calls.clear()
    score_texts(bound, [text, text])
    assert bag_encoder.calls == [6]  # six distinct windows, one call
    score_text(bound, text)
    assert bag_encoder.calls == [6]
