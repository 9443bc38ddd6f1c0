"""What was found in a text, as plain values."""

from __future__ import annotations

import dewmark
from dewmark.detect import detect_texts
from dewmark_lab.testing.fake_host import FakeHost


def test_tokens_are_among_the_values_if_they_are_asked_for() -> None:
    bound = dewmark.load_scheme(dewmark.Key(bytes(32)), host=FakeHost().info, scheme="kgw")
    (found,) = detect_texts([" the old bridge over the river"], bound)
    assert "tokens" not in found.to_dict()["detection"]
    tokens = [token.to_dict() for token in found.detection.tokens]
    assert len(tokens) == 6
    assert found.to_dict(tokens=True)["detection"]["tokens"] == tokens
