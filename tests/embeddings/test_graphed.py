"""An encoder as CUDA graphs gives what it gives eagerly, and so do contexts that are begun ahead."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.tiny_encoder import tiny_bert

from dewmark.dew.window_rows import window_rows
from dewmark.embeddings.contexts import ABSENT, WindowContexts
from dewmark.embeddings.encoders import SentenceTransformerEncoder
from dewmark.testing.trial import tiny_host

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = torch.device("cuda")
WORDS = [*"abcdefghijk", "the", "red", "apple", "river", "runs", "bridge"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tiny_bert(tmp_path_factory.mktemp("encoder"), WORDS)
    return SentenceTransformerEncoder(
        "tiny", identity="tiny", source=lambda: str(folder), device="cuda", prefix="the "
    )


def test_graphs_give_what_the_encoder_gives(encoder):
    words = ["red", "apple", "the river runs", "", "a b c d e f g h i j k", "bridge"]
    graphs = encoder.graphed(DEVICE)
    assert encoder.graphed(DEVICE) is graphs
    for texts in (words[:1], words, words * 60, words[::-1]):  # several shapes, one of them twice
        found = graphs.encode(texts)
        torch.cuda.current_stream().wait_stream(graphs.stream)
        np.testing.assert_allclose(found.cpu().numpy(), encoder.encode(texts), atol=1e-5)


def test_rows_of_windows_are_the_contexts(encoder):
    host = tiny_host().info
    contexts = WindowContexts(encoder, host.tokenizer, None)
    rows = window_rows(contexts, DEVICE)
    absent, size = host.vocab_size, host.vocab_size
    for seed in range(3):
        windows = torch.randint(5, size, (7, 3), generator=torch.Generator().manual_seed(seed))
        windows[0] = absent
        windows[1, 0] = absent
        index = rows.index(windows.to(DEVICE), absent=absent)
        found = rows.rows(index).cpu().numpy()
        expected = contexts.vectors(np.where(windows.numpy() == absent, ABSENT, windows.numpy()))
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not found[0].any()
    assert window_rows(contexts, torch.device("cpu")) is None
