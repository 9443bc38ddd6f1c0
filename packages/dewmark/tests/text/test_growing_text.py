from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dewmark.hosts.fake import FakeHost
from dewmark.text.growing_text import (
    Extension,
    Spelling,
    TokenStream,
    WordStream,
    extend,
)
from dewmark.text.words import words

TEXT = (
    "L'été, the old bridge doesn't move: 1,000 rivers in the U.S. (water_light) \"über alles\" Ωμέγα 東京 x."
)


def forms(text: str) -> tuple[str, ...]:
    return tuple(word.form for word in words(text))


@pytest.fixture(scope="module")
def spelling() -> Spelling:
    host = FakeHost(400, kind="bytes", padded_vocab=7)
    return Spelling(host.info.tokenizer, host.info.vocab_size)


@pytest.mark.parametrize(
    ("tail", "piece", "expected"),
    [
        ("", " bri", Extension("bri", 0)),
        ("bri", "dge", Extension("bridge", 1)),
        ("bri", " dge", Extension("dge", 0)),
        ("bridge", ".\n", Extension(None, 0)),
        ("don", "'t", Extension("don't", 1)),
        ("U.", "S", Extension("u.s", 1)),
        ("1,", "000", Extension("1,000", 1)),
        ("mother", "-in", Extension("in", 0)),
        ("th", "e of", Extension("of", 1, ("the",))),
        ("", "\ufffd", Extension(None, 0)),
        ("我坐火", "车", Extension("火车", 1)),
        ("我坐火", "车站", Extension("火车站", 1)),
        ("除夕", "那时", Extension("那时", 0)),
    ],
)
def test_the_effect_of_a_piece(tail, piece, expected) -> None:
    assert extend(tail, piece) == expected


def test_contexts_of_new_and_growing_words() -> None:
    stream = WordStream("The old stone bri")
    begins, grows, ends = stream.extensions([" over", "dge", ","])
    assert stream.context(begins, k=3) == ("old", "stone", "bri")
    assert stream.context(grows, k=3) == ("the", "old", "stone")
    assert ends.form is None
    assert WordStream("").recent(3) == ()
    assert WordStream("one").context(Extension("ones", 1), k=3) == ()


@given(st.lists(st.text(alphabet="ab'.,1 é_–\u0301\n", max_size=4), max_size=20))
@settings(max_examples=300, deadline=None)
def test_a_stream_sees_the_words_of_its_text(pieces) -> None:
    """In scripts with spaces the stream is exact, however the text is split into pieces.

    But for hyphens at line ends: whether a word continues on the next line is known only there.
    """
    stream = WordStream()
    for piece in pieces:
        stream.append(piece)
    expected = forms("".join(pieces))
    assert stream.recent(64) == expected[-64:]
    assert stream.recent(3) == expected[-3:]


def test_marking_scores_the_words_that_detection_reads(spelling) -> None:
    """The same word after the same three words."""
    host = FakeHost(400, kind="bytes")
    ids = host.info.tokenizer.encode([TEXT])[0].ids
    stream, offered = TokenStream(spelling), set()
    for token in ids:
        (extension,) = stream.candidates([token])
        offered.add((stream.context(extension, k=3), extension.form))
        stream.push(token)
    final = forms(TEXT)
    assert len(ids) > 1.5 * len(final)  # most words take several pieces
    assert stream.recent(64) == final
    assert {(final[max(i - 3, 0) : i], word) for i, word in enumerate(final)} <= offered


def test_bytes_of_a_character_are_held_back(spelling) -> None:
    ids = FakeHost(400, kind="bytes").info.tokenizer.encode([" über"])[0].ids
    broken = next(i for i, token in enumerate(ids) if "\ufffd" in spelling.pieces[token])
    stream = TokenStream(spelling, ids[: broken + 1])
    assert stream.recent(1) == ()
    assert stream.candidates([ids[broken + 1]]) == [Extension("ü", 0)]


def test_special_and_unknown_tokens_make_no_word(spelling) -> None:
    host = FakeHost(400, kind="bytes", padded_vocab=7)
    ids = host.info.tokenizer.encode(["bri"])[0].ids
    special = min(host.info.tokenizer.special_ids)
    stream = TokenStream(spelling, ids)
    assert [e.form for e in stream.candidates([special, host.info.vocab_size - 1])] == [None, None]
    stream.push(special)
    for token in host.info.tokenizer.encode(["dge"])[0].ids:
        stream.push(token)
    assert stream.recent(2) == ("bri", "dge")


def test_an_endless_word_keeps_its_form_and_costs_nothing() -> None:
    stream = WordStream()
    for _ in range(2000):
        stream.append("ab" * 50)
    assert stream.recent(5) == ("ab" * 32,)
    assert stream.extensions(["x", " x"]) == [Extension(None, 0), Extension("x", 0)]
    stream.append("的" * 100_000)
    assert len(stream.recent(64)) == 64


def test_the_vocabulary_words_are_those_of_single_tokens(spelling) -> None:
    found = spelling.forms()
    assert found == sorted(set(found))
    assert {"a", "b"} <= set(found)
    assert len(spelling.pieces) == 407
