from __future__ import annotations

import numpy as np
import pytest
from tests.fakes import BagEncoder

from dewmark.core.whitening import Whitening, normalize_rows
from dewmark.encoders.contexts import ComposedContexts, WindowContexts, load_context_whitening, token_vectors
from dewmark.text.windows import ABSENT
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(300, padded_vocab=5)


def test_composed_is_the_whitened_mean(host, tmp_path) -> None:
    """Whitening the table once equals whitening each mean: the map is affine and the weights sum to one."""
    encoder, workspace = BagEncoder(), Workspace(cache=tmp_path)
    whitening = Whitening.fit(np.random.default_rng(0).normal(1.0, 2.0, size=(500, encoder.dim)))
    table = token_vectors(encoder, host.info, whitening=whitening, workspace=workspace)
    windows = np.array([[10, 20, 30], [ABSENT, 40, 41], [ABSENT, ABSENT, ABSENT]])
    got = ComposedContexts(table).vectors(windows)
    for i, ids in enumerate(([10, 20, 30], [40, 41])):
        raw = encoder.encode(host.info.tokenizer.decode([[j] for j in ids])).mean(axis=0, keepdims=True)
        np.testing.assert_allclose(got[i], normalize_rows(whitening.apply(raw))[0], atol=5e-3)  # float16
    assert (got[2] == 0).all()
    assert (table[:4] == 0).all()
    assert (table[300:] == 0).all()


def test_token_vectors_are_encoded_once_ever(host, tmp_path) -> None:
    encoder, workspace = BagEncoder(), Workspace(cache=tmp_path)
    first = token_vectors(encoder, host.info, whitening=None, workspace=workspace)
    assert sum(encoder.calls) == 296
    assert np.array_equal(token_vectors(encoder, host.info, whitening=None, workspace=workspace), first)
    assert sum(encoder.calls) == 296


def test_window_is_the_encoding_of_the_text(host) -> None:
    encoder = BagEncoder()
    contexts = WindowContexts(encoder, host.info.tokenizer, None)
    ids = host.info.tokenizer.encode([" the old bridge"])[0].ids
    got = contexts.vectors(np.array([ids, [ABSENT, *ids[1:]], [ABSENT] * 3]))
    expected = normalize_rows(encoder.encode([" the old bridge", " old bridge"]))
    np.testing.assert_allclose(got[:2], expected, atol=1e-6)
    assert (got[2] == 0).all()


@pytest.mark.parametrize("context", ["composed", "window"])
def test_whitening_removes_the_common_component(host, tmp_path, monkeypatch, context) -> None:
    encoder, workspace = BagEncoder(), Workspace(cache=tmp_path)
    rng = np.random.default_rng(0)
    texts = host.info.tokenizer.decode(rng.integers(4, 300, size=(60, 40)).tolist())
    monkeypatch.setattr("dewmark.encoders.contexts.ordinary_texts", lambda: texts)
    statistics = load_context_whitening(encoder, host.info, encoding=context, k=3, workspace=workspace)
    windows = rng.integers(4, 300, size=(2000, 3))

    def mean_norm(whitening: Whitening | None) -> float:
        made = (
            ComposedContexts(token_vectors(encoder, host.info, whitening=whitening, workspace=workspace))
            if context == "composed"
            else WindowContexts(encoder, host.info.tokenizer, whitening)
        )
        return float(np.linalg.norm(made.vectors(windows).mean(axis=0)))

    assert mean_norm(None) > 0.4
    assert mean_norm(statistics) < 0.1


def test_statistics_are_cached(host, tmp_path) -> None:
    encoder, workspace = BagEncoder(), Workspace(cache=tmp_path)
    fitted = load_context_whitening(encoder, host.info, encoding="composed", k=3, workspace=workspace)
    calls = len(encoder.calls)
    again = load_context_whitening(encoder, host.info, encoding="composed", k=3, workspace=workspace)
    assert len(encoder.calls) == calls
    np.testing.assert_array_equal(fitted.matrix, again.matrix)
