"""Detections in words and colours."""

from __future__ import annotations

import dataclasses
import random

import pytest

from dewmark.detect import Examined
from dewmark.reports.detection_display import (
    group_by_passage,
    level,
    located_sentence,
    one_in,
    passage_sentence,
    sentence,
    spans,
)
from dewmark.types import Coverage, Detection, Extent, Looks, Passage, TokenScore, Verdict


def detection(tokens=(), *, verdict=Verdict.MARKED, p=1e-5) -> Detection:
    return Detection(verdict, p, 4.2, 0.5, 90.0, 100, "key", 0.01, "dew", "ab12", tuple(tokens))


def cut(text: str, *places: tuple[int, int]) -> list[TokenScore]:
    return [TokenScore(text[a:b], a, b, 1.0 + i, i > 0) for i, (a, b) in enumerate(places)]


EVIL = "</div><script>alert(\"x\")</script> & <b title='y'>\r\nline two\r\ttabbed\n\n  שלום &amp; 𝄞🙂 end"


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("", []),
        ("no tokens at all", []),
        ("abc", [(0, 1), (1, 2), (2, 3)]),
        ("a🙂b", [(0, 1), (1, 2), (1, 2), (1, 2), (1, 2), (2, 3)]),  # byte-level pieces of one character
        ("🙂🙂", [(0, 1), (0, 2), (1, 2)]),  # a piece that ends one character and begins the next
        (" gap  here ", [(1, 4), (6, 10)]),
        ("zero", [(0, 0), (0, 2), (2, 2), (2, 4), (4, 4)]),
        ("zero in a gap", [(0, 4), (6, 6), (8, 9)]),
        ("out of range", [(0, 3), (3, 99)]),
        ("unsorted", [(4, 8), (0, 4)]),
        (EVIL, [(0, 6), (6, 14), (14, 40), (40, 41), (41, 60)]),
    ],
)
def test_spans_join_up_to_the_text(text, places):
    tokens = cut(text, *places)
    pieces = spans(text, tokens)
    assert "".join(piece.text for piece in pieces) == text
    if text:
        assert sum(len(piece.tokens) for piece in pieces) == len(tokens)  # no token is lost


def test_colour_levels():
    assert [level(u) for u in (0.0, 0.29, -0.29, 0.4, -0.4, 2.2, -9.0, float("nan"), float("inf"))] == [
        0, 0, 0, 1, -1, 4, -4, 0, 0,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (1.0, "100 in 100"),
        (0.4, "40 in 100"),
        (0.011, "1 in 91"),
        (3.2e-4, "1 in 3,100"),
        (2e-9, "1 in 500,000,000"),
        (2e-13, "1 in 10^12"),
        (1e-194, "1 in 10^77"),
        (0.0, "1 in 10^77"),
        (float("nan"), "an unknown share"),
    ],
)
def test_one_in(p, expected):
    assert one_in(p) == expected


def test_a_sentence_for_every_verdict():
    assert "p = 1e-05 (1 in 100,000 keys would score this text so high)" in sentence(detection())
    calibrated = dataclasses.replace(detection(), test="empirical")  # these p-values count texts
    assert "(1 in 100,000 unmarked texts scores this high)" in sentence(calibrated)
    long = detection(verdict=Verdict.TOO_SHORT)
    assert "leaves no room for a mark" in sentence(long)
    assert "too few independent tokens" in sentence(dataclasses.replace(long, tokens_scored=20))


def test_a_language_that_the_detector_does_not_know_in_words() -> None:
    unsupported = detection(verdict=Verdict.UNSUPPORTED_LANGUAGE)
    refused = dataclasses.replace(unsupported, language="hi", language_known=False)
    assert "the text is in Hindi, which this detector does not know: one key may" in sentence(refused)
    unread = dataclasses.replace(refused, effective_length=3.0)
    assert "Hindi, which this detector does not know: its words carry no evidence" in sentence(unread)
    assert "audit" not in sentence(unread)


def passage(text: str, start: int, end: int, *, p: float = 1e-4) -> Passage:
    return Passage(start, end, text[start:end], 5.1, p, p / 100, 80.0, 100, 0.9, "ab12")


def test_random_passages_never_lose_or_repeat_a_character():
    draw = random.Random(8)
    for _ in range(200):
        text = "".join(draw.choice("ab <>&\r\n🙂é") for _ in range(draw.randrange(2, 30)))
        ends = sorted(draw.sample(range(len(text) + 1), k=2))
        tokens = cut(text, *((i, min(i + 2, len(text))) for i in range(0, len(text), 2)))
        groups = group_by_passage(spans(text, tokens), [(ends[0], ends[1])])
        assert "".join(span.text for _, inside in groups for span in inside) == text
        inside = "".join(span.text for place, each in groups if place == 0 for span in each)
        assert text[ends[0] : ends[1]] in inside
        assert len(inside) <= ends[1] - ends[0] + 2


def located(whole: Detection, *passages: Passage) -> Examined:
    coverage = Coverage(Extent.PART, 0.22, 0.4, passages) if passages else None
    p, looks = whole.p_value, Looks()
    return Examined(whole.verdict, p, 0, (p,), looks, 0.05, 1.0, (whole,), whole, coverage)


def test_passages_in_words():
    one = passage("x" * 400, 100, 300)
    found = located(detection([TokenScore("x", i, i + 1, 0.0, True) for i in range(400)]), one)
    assert located_sentence(found).startswith(
        "marked, part of it: about 22%, characters 100 to 300; 1 marked passage at level 0.05, p = "
    )
    assert "characters 100 to 300, p = 0.0001 over all passages tried, z = 5.10" in passage_sentence(one)
    assert located_sentence(located(detection())).startswith("marked; no marked passage at level 0.05, p = ")
