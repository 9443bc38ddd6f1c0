"""Random encoders have the right shapes and are reproducible."""

from __future__ import annotations

import numpy as np
import pytest

from dewmark.encoders import load_encoder
from dewmark.errors import UnknownNameError


def test_vectors_depend_on_the_text_alone() -> None:
    encoder = load_encoder("random:48")
    rows = encoder.encode(["bridge", "river", "bridge", ""])
    assert rows.shape == (4, encoder.dim) == (4, 48)
    assert (rows[0] == rows[2]).all()
    assert (rows == load_encoder("random:48").encode(["bridge", "river", "bridge", ""])).all()
    many = encoder.encode([str(i) for i in range(500)])
    assert abs(many.mean()) < 5 / np.sqrt(many.size)  # standard normal
    assert abs(many.std() - 1.0) < 5 / np.sqrt(2 * many.size)


@pytest.mark.parametrize("name", ["random:", "random:x", "random:1"])
def test_other_names_are_rejected(name: str) -> None:
    with pytest.raises(UnknownNameError, match="random:768"):
        load_encoder(name, device="cpu")
