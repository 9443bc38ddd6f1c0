"""Random encoders have the right shapes and are reproducible."""

from __future__ import annotations

import numpy as np
import pytest

from dewmark.encoders import load_encoder
from dewmark.errors import UnknownNameError
from dewmark_lab.bench.random_models import random_encoder


def test_vectors_depend_on_the_text_alone() -> None:
    encoder = load_encoder("random:48")
    rows = encoder.encode(["bridge", "river", "bridge", ""])
    assert rows.shape == (4, encoder.dim) == (4, 48)
    assert (rows[0] == rows[2]).all()
    assert (rows == load_encoder("random:48").encode(["bridge", "river", "bridge", ""])).all()
    many = encoder.encode([str(i) for i in range(500)])
    assert abs(many.mean()) < 5 / np.sqrt(many.size)  # standard normal
    assert abs(many.std() - 1.0) < 5 / np.sqrt(2 * many.size)


def test_the_transformer_ignores_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"vocab_size": 1000, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    monkeypatch.setattr("dewmark_lab.bench.random_models._MPNET", small)
    encoder = random_encoder("mpnet-base", device="cpu")
    texts = ["over the river", "a", "", "the old bridge over the river"]
    rows = encoder.encode(texts)
    assert rows.shape == (4, encoder.dim) == (4, 32)
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    np.testing.assert_allclose(rows, alone, atol=1e-5)
    assert encoder.encode([]).shape == (0, 32)


@pytest.mark.parametrize("name", ["random:", "random:x", "random:1"])
def test_other_names_are_rejected(name: str) -> None:
    with pytest.raises(UnknownNameError, match="random:768"):
        load_encoder(name, device="cpu")
