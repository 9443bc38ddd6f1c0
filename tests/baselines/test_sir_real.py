"""SIR and X-SIR with the artifacts that come with the package, on SmolLM2-135M and USE-m v3."""

from __future__ import annotations

import numpy as np
import pytest

import dewmark
from dewmark.decoding import Decoding

pytestmark = pytest.mark.models

PROMPTS = [
    "The old bridge over the river",
    "My grandmother kept a small shop at the end of the harbour, and every summer",
    "Dear editor, I have read your paper for thirty years, and",
    "To repair a bicycle tyre you need",
]
LENGTH = {"max_new_tokens": 150, "min_new_tokens": 150}


@pytest.mark.parametrize("scheme", ["sir", "xsir"])
def test_marked_is_found_and_nothing_else(scheme: str) -> None:
    watermark = dewmark.Watermark(key=dewmark.Key(bytes(range(32))), scheme=scheme)
    marked = [each.text for each in watermark.generate_batch(PROMPTS, seeds=range(4), **LENGTH)]
    unmarked = watermark.host.generate(
        PROMPTS, scheme=None, seeds=range(4), decoding=Decoding(**LENGTH, no_repeat_ngram=4)
    )
    found = watermark.detect_batch(marked, prompts=PROMPTS)
    # four independent texts: for unmarked ones the mean z has a standard deviation of 0.5
    assert np.mean([each.z for each in found]) > 2.0
    assert not any(each.is_marked for each in watermark.detect_batch([u.text for u in unmarked], fpr=1e-3))
    wrong = dewmark.load_scheme(scheme, key=dewmark.Key(bytes(32)), host=watermark.scheme.host)
    assert not any(each.is_marked for each in wrong.detect_batch(marked, prompts=PROMPTS, fpr=1e-3))
