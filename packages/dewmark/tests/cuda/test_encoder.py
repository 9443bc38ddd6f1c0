"""Encoders in CUDA graphs give the same vectors as run eagerly.

Without a CUDA device only the two parts of an encoder are tested.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.tiny_encoder import tiny_bert
from tests.tiny_use import TinyTokenizer, tiny_weights

from dewmark.cuda.encoder import GraphedEncoder, SentenceTransformerParts
from dewmark.encoders.sentence_transformers import SentenceTransformerEncoder
from dewmark.encoders.use import USEWordTokenizer
from dewmark.encoders.use_torch import TorchUSE
from dewmark.text.windows import ids_and_mask

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WORDS = [*"abcdefghijk", "the", "red", "apple", "river", "runs", "bridge"]
TEXTS = ["red", "apple", "the river runs", "", "a b c d e f g h i j k", "bridge"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tiny_bert(tmp_path_factory.mktemp("encoder"), WORDS)
    return SentenceTransformerEncoder(
        "tiny", identity="tiny", source=lambda: str(folder), device=DEVICE.type, prefix="the "
    )


def encoded(graphs, texts):
    with graphs.lock, torch.cuda.stream(graphs.stream):
        return graphs.encode(texts).cpu().numpy()


@torch.no_grad()
@pytest.mark.parametrize("side", ["right", "left"])
def test_both_parts_together_equal_the_encoder(encoder, monkeypatch, side):
    model = encoder._loaded()
    monkeypatch.setattr(model.tokenizer, "padding_side", side)  # left padding takes the tokenizer's own path
    parts = SentenceTransformerParts(model, prefix="the ")
    monkeypatch.setattr(model.tokenizer, "padding_side", "right")
    given = parts.tokenize(TEXTS, multiple=8)
    assert given.shape == (len(TEXTS), 16)
    assert given.dtype == torch.int32
    assert parts.tokenize(["river " * 100], multiple=8).shape == (1, model.max_seq_length)
    found = parts(*ids_and_mask(given.to(DEVICE), fill=parts.fill))
    np.testing.assert_allclose(found.cpu().numpy(), encoder.encode(TEXTS), atol=1e-5)


@cuda
def test_graphs_equal_the_encoder(encoder):
    graphs = encoder.graphed(DEVICE)
    assert encoder.graphed(DEVICE) is graphs
    for texts in (TEXTS[:1], TEXTS, TEXTS * 60, TEXTS[::-1]):  # several shapes, one of them twice
        np.testing.assert_allclose(encoded(graphs, texts), encoder.encode(texts), atol=1e-5)


@cuda
def test_graphs_of_use_equal_it(tmp_path):
    model = TorchUSE(tiny_weights(tmp_path / "weights.npz"), USEWordTokenizer(TinyTokenizer()), device=DEVICE)
    graphs = GraphedEncoder(model)
    for texts in (TEXTS[:1], TEXTS, TEXTS * 60, TEXTS[::-1], ["river " * 50], TEXTS[:1]):
        np.testing.assert_allclose(encoded(graphs, texts), model.encode(texts), atol=1e-5)
