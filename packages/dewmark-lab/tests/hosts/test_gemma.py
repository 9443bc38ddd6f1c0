"""Gemma-3-270M from its five wheels: fluent after begin-of-text, marked and detected like any host."""

from __future__ import annotations

import math

import numpy as np
import pytest

import dewmark
from dewmark.decoding import Decoding
from dewmark.detect import score_texts
from dewmark.text.words import distinct

pytestmark = pytest.mark.models

PROMPTS = [
    "The old bridge over the river",
    "My grandmother kept a small shop at the end of the harbour, and every summer",
    "Dear editor, I have read your paper for thirty years, and",
    "Die alte Brücke über den Fluss",
]


@pytest.fixture(scope="module")
def watermark() -> dewmark.Watermark:
    return dewmark.Watermark(dewmark.Key(bytes(range(32))), host="gemma3-270m")


def test_it_writes_fluent_text_and_no_control_tokens(watermark):
    host = watermark.host
    options = {"seeds": range(4), "decoding": Decoding(max_new_tokens=60, min_new_tokens=60)}
    texts = [made.text for made in host.generate(PROMPTS, scheme=None, **options)]
    assert host.info.embeddings().shape == (262_144, 640)
    assert not any("_of_image>" in text or "<unused" in text for text in texts)
    assert min(distinct(text, 3) for text in texts) > 0.7  # without its begin-of-text it repeats itself
    pairs = host.log_likelihood(PROMPTS, texts)
    assert all(count >= 50 for _, count in pairs)  # the prompt and the begin-of-text are not counted
    # its own samples have a median near 25; a wrong conversion gives thousands
    assert 5.0 < np.median([math.exp(-total / count) for total, count in pairs]) < 150.0
    human, noise = host.log_likelihood(
        PROMPTS[:1] * 2, [" was closed for repairs, so we took the ferry.", " xq zzv lorp tig bnn qwe"]
    )
    assert human[0] / human[1] > noise[0] / noise[1] + 2.0


def test_its_mark_is_found(watermark):
    made = watermark.generate_batch(PROMPTS, seeds=range(4), max_new_tokens=120, min_new_tokens=120)
    found = watermark.detect_batch([each.text for each in made])
    # z is between 3 and 8 in texts of this length; the mean of four unmarked ones has a deviation of 0.5
    assert np.mean([d.z for d in found]) > 2.0
    other = dewmark.load_scheme(dewmark.Key(bytes(32)), host=watermark.scheme.host)
    assert not any(d.is_marked for d in score_texts(other, [each.text for each in made], fpr=1e-3))


def test_one_detector_without_a_host_finds_the_texts_of_two_hosts(watermark):
    """Words need no tokenizer: one key, one detector, two hosts."""
    key = dewmark.Key(bytes(range(32)))
    other = dewmark.Watermark(key)  # SmolLM2-135M
    detector = dewmark.Detector.from_key(key)
    assert detector.scheme.host.vocab_size == 0
    for writer in (watermark, other):
        made = writer.generate_batch(PROMPTS[:3], seeds=range(3), max_new_tokens=120, min_new_tokens=120)
        # seen 8 to 11, once 4, at 150 tokens; three unmarked texts: 0, with a deviation of 0.6 in the mean
        assert np.mean([found.z for found in detector.detect_batch([g.text for g in made])]) > 4.0
