"""A growing text is split into the same sentences as the finished one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dewmark_lab.sentences import first_end, sentences

CASES = {
    "It rained. We stayed in!": ["It rained.", "We stayed in!"],
    'Dr. Ada B. King paid 3.14 euros at example.org. "Why?" he asked.': [
        "Dr. Ada B. King paid 3.14 euros at example.org.",
        '"Why?"',
        "he asked.",
    ],
    "In 1999. Then, e.g. in the U.S. army, it ended...": [
        "In 1999.",
        "Then, e.g. in the U.S. army, it ended...",
    ],
    "So do I. Now (it ended.) Go": ["So do I.", "Now (it ended.)", "Go"],
    "Chapter 1\nIt began\n\n1. First\n2. Second": ["Chapter 1", "It began", "1. First", "2. Second"],
    "今日は晴れ。「はい。」と言った。次": ["今日は晴れ。", "「はい。」", "と言った。", "次"],
    "Was ist das?! Vgl. Nr. 5 bzw. 6.": ["Was ist das?!", "Vgl. Nr. 5 bzw. 6."],
    "क्या है। अच्छा।": ["क्या है।", "अच्छा।"],
    "ends with Co.": ["ends with Co."],
    "...  !!": [],
    "": [],
}


@pytest.mark.parametrize(("text", "expected"), CASES.items())
def test_sentences(text, expected) -> None:
    assert [text[s.start : s.end] for s in sentences(text)] == expected


def test_only_the_last_sentence_can_be_incomplete() -> None:
    assert [s.complete for s in sentences("One. Two three")] == [True, False]
    assert [s.complete for s in sentences("One. Two three\n")] == [True, True]


def test_an_end_is_certain_only_when_something_follows() -> None:
    assert first_end("It was 3.") is None  # 3.14?
    assert first_end("It was 3.", last=True) == 9
    assert first_end("It was 3. ") == 9
    assert first_end('He said "go.') is None
    assert first_end('He said "go." ') == 13
    assert first_end("A heading\n") == 10


pieces = st.lists(
    st.sampled_from(["word", " ", ".", "!", "\n", "Dr", '"', "3", "。", "I", "e", " A"]), max_size=25
)


@settings(max_examples=120, deadline=None)
@given(pieces, pieces)
def test_certain_ends_stay(before, after) -> None:
    """However the text continues, and wherever reading restarts, certain ends stay the same."""
    text, whole = "".join(before), "".join(before + after)
    start = 0
    while (end := first_end(text, start=start)) is not None:
        assert first_end(whole, start=start) == end
        assert first_end(whole[start:]) == end - start
        start = end


@settings(max_examples=80, deadline=None)
@given(pieces)
def test_sentences_cover_all_letters_in_order(parts) -> None:
    text = "".join(parts)
    found = sentences(text)
    assert sum(c.isalpha() for c in text) == sum(c.isalpha() for s in found for c in text[s.start : s.end])
    assert all(a.end <= b.start for a, b in itertools.pairwise(found))
