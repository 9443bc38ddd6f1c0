"""Timing of schemes in rounds."""

from __future__ import annotations

import pytest

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.opening import load_scheme
from dewmark_lab.evaluation import runtime
from dewmark_lab.evaluation.runtime import DETECT, GENERATE, NO_MARK, time_round, warm_up
from dewmark_lab.testing.fake_host import FakeHost

DECODING = Decoding(max_new_tokens=8, min_new_tokens=8)


@pytest.fixture(scope="module")
def host():
    return FakeHost()


@pytest.fixture
def schemes(host):
    return {
        name: load_scheme(Key(bytes(range(32))), host=host.info, scheme=name, settings={})
        for name in ("kgw", "unigram")
    }


def test_schemes_are_timed_in_both_phases_and_unmarked_text_in_one(host, schemes):
    warm_up(host, schemes, "the river", decoding=DECODING)
    rows = time_round(host, schemes, ["the river", "the sea"], decoding=DECODING, number=1)
    assert [(row["scheme"], row["phase"]) for row in rows] == [
        (NO_MARK, GENERATE),
        ("kgw", GENERATE),
        ("unigram", GENERATE),
        ("kgw", DETECT),
        ("unigram", DETECT),
    ]
    assert all(row["seconds_per_text"] > 0.0 and row["round"] == 1 for row in rows)
    assert all(row["device"].startswith("cpu") for row in rows)
    assert all(row["peak_mib"] is None or row["peak_mib"] > 1.0 for row in rows)


def test_seconds_are_per_text_and_the_order_rotates(host, schemes, monkeypatch):
    """The clock ticks once per generated and a quarter per detected text."""
    now, order = [0.0], []
    write, detect = host.generate, runtime.detect_texts

    def generate(prompts, *, scheme, **options):
        now[0] += 1.0
        order.append(NO_MARK if scheme is None else scheme.scheme.name)
        return write(prompts, scheme=scheme, **options)

    def detected(texts, bound, **options):
        now[0] += 0.25 * len(texts)
        return detect(texts, bound, **options)

    monkeypatch.setattr(host, "generate", generate)
    monkeypatch.setattr(runtime, "detect_texts", detected)
    monkeypatch.setattr(runtime, "now_on", lambda host: now[0])
    for number in range(3):
        rows = time_round(host, schemes, ["the river", "the sea"], decoding=DECODING, number=number)
        assert {row["seconds_per_text"] for row in rows if row["phase"] == GENERATE} == {1.0}
        assert {row["seconds_per_text"] for row in rows if row["phase"] == DETECT} == {0.25}
    assert order[::6] == [NO_MARK, "kgw", "unigram"]  # each round has two texts of three rows
