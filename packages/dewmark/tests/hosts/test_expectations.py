"""Readers: what a language model expected at each word, computed by hand from its own logits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dewmark.errors import ConfigError, ModelError
from dewmark.hosts.expectations import HostExpectations, WordStarts, open_reader, places_of
from dewmark.text.spelling import Spelling
from dewmark.text.words import words
from dewmark.workspace import ExpectedWords
from dewmark_lab.testing.fake_host import FakeHost

TEXT = ' the old bridge over the river,\nwater "light" (night) and day'
PROMPT = "there was"


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(400, kind="bytes")


def reader_of(host: FakeHost) -> HostExpectations:
    return HostExpectations(host.info, lambda: host)


def distribution(found: ExpectedWords, place: int) -> dict[str, float]:
    total: dict[str, float] = {}
    for j in range(found.bounds[place], found.bounds[place + 1]):
        form = found.forms[found.index[j]]
        total[form] = total.get(form, 0.0) + float(found.probabilities[j])
    return total


def extended(tail: str, piece: str) -> tuple[list[str], int]:
    """The words that a piece makes after an open word, and how many of the last words they replace."""
    if "\N{REPLACEMENT CHARACTER}" in piece:
        return [], 0
    before, after = ([word.form for word in words(text)] for text in (tail, tail + piece))
    same = sum(
        1 for _ in itertools.takewhile(lambda both: both[0] == both[1], zip(before, after, strict=False))
    )
    return (after[same:], len(before) - same) if same < len(after) else ([], 0)


def by_hand(host: FakeHost, prompt: str, text: str, start: int) -> tuple[dict[str, float], str]:
    """The candidates at the word that starts at a character, each asked what it would make of the text."""
    (tokenized,) = host.info.tokenizer.encode([text])
    (logits,) = host.next_logits([prompt], [tokenized.ids])
    first = next(i for i, (_, end) in enumerate(tokenized.offsets) if end > start)
    word = next(word for word in words(text) if word.start == start)
    last = next(
        (i for i, (begin, _) in enumerate(tokenized.offsets) if begin >= word.end), len(tokenized.ids)
    )
    before = prompt + text[: tokenized.offsets[first][0]]
    tail = words(before)[-1].form if words(before) and words(before)[-1].end == len(before) else ""
    shares = logits[first].softmax(dim=-1).tolist()
    found: dict[str, float] = {}
    own = 1.0
    for i in range(first + 1, last):
        own *= float(logits[i].softmax(dim=-1)[tokenized.ids[i]])
    for token, piece in enumerate(Spelling(host.info.tokenizer, host.info.vocab_size).pieces):
        new, replaced = extended(tail, piece)
        if not new or replaced:
            continue
        p = shares[token]
        if last - first > 1 and token == tokenized.ids[first]:
            found[word.form] = found.get(word.form, 0.0) + p * own
            p *= 1.0 - own
        found[new[0]] = found.get(new[0], 0.0) + p
    return found, word.form


@pytest.mark.parametrize("prompt", ["", PROMPT])
def test_each_place_has_the_models_own_probabilities(host, prompt) -> None:
    """After a space, a line break, a quotation mark and a bracket."""
    (found,) = reader_of(host).read([TEXT], [prompt])
    assert found.starts.tolist() == [word.start for word in words(TEXT)]
    for place, start in enumerate(found.starts.tolist()):
        expected, _ = by_hand(host, prompt, TEXT, start)
        mine = distribution(found, place)
        assert sum(mine.values()) < 1.0 + 1e-6
        for form, p in expected.items():
            assert mine.get(form, 0.0) == pytest.approx(p, abs=3e-5), (TEXT[start : start + 8], form)


def test_after_an_open_word_only_a_separator_begins_one(host) -> None:
    starts = WordStarts(host.info)
    pieces = Spelling(host.info.tokenizer, host.info.vocab_size).pieces
    for token, piece in enumerate(pieces):
        new, _ = extended("", piece)
        assert (starts.form_of[token] >= 0) == bool(new), piece
        if new:
            assert list(starts.numbers)[starts.form_of[token]] == new[0]
            assert starts.soft[token] == (extended("old", piece)[1] == 1), piece


def test_a_word_inside_the_token_of_another_has_no_place() -> None:
    found = places_of("the old_bridge over", [(0, 3), (3, 14), (14, 19)], "")
    assert [(place.start, place.token, place.end) for place in found] == [(0, 0, 1), (4, 1, 2), (15, 2, 3)]
    (only,) = places_of("ab c", [(0, 1), (1, 3), (3, 4)], "")[:1]
    assert (only.token, only.end) == (0, 2)


def test_a_long_text_is_read_in_windows(host) -> None:
    """Every word has its place, and away from the windows' edges the model sees the words before."""
    text = " the old bridge over the river and water" * 40
    short = FakeHost(400, kind="bytes", context=128)
    (found,) = reader_of(short).read([text], [PROMPT])
    assert found.starts.tolist() == [word.start for word in words(text)]
    assert len(found.bounds) == len(found.starts) + 1
    (whole,) = reader_of(FakeHost(400, kind="bytes", context=4096)).read([text], [PROMPT])
    first = [distribution(each, 0) for each in (found, whole)]
    assert first[0] == pytest.approx(first[1], abs=1e-4)  # the first window is the same
    (long_prompt,) = reader_of(short).read([TEXT], [text])
    assert len(long_prompt.starts) == len(words(TEXT))


def test_batches_and_the_cache_change_nothing(host, monkeypatch) -> None:
    texts = [TEXT, TEXT[: TEXT.index(",")], " night and day", TEXT]
    prompts = ["", "", PROMPT, PROMPT]
    alone = [reader_of(host).read([t], [p])[0] for t, p in zip(texts, prompts, strict=True)]
    calls: list[int] = []
    real = type(host).next_logits

    def counted(self, asked, completions):
        calls.append(len(asked))
        return real(self, asked, completions)

    monkeypatch.setattr(FakeHost, "next_logits", counted)
    reader = reader_of(host)
    together = reader.read(texts, prompts)
    assert reader.read(texts, prompts) == together
    assert calls == [4]  # none is read twice
    for mine, expected in zip(together, alone, strict=True):
        assert np.array_equal(mine.starts, expected.starts)
        for place in range(len(mine.starts)):
            assert distribution(mine, place) == pytest.approx(distribution(expected, place), abs=1e-4)


def test_disguises_do_not_change_what_is_read(host) -> None:
    (plain,) = reader_of(host).read([TEXT], [""])
    given = TEXT.replace("bridge", "bri\u200bdge")
    (found,) = reader_of(host).read([given], [""])
    assert found.starts.tolist() == [word.start for word in words(given)]
    assert np.allclose(found.probabilities, plain.probabilities, atol=1e-6)


def test_an_unknown_reader_is_an_error_at_once() -> None:
    with pytest.raises((ModelError, ConfigError), match="no-such-model"):
        open_reader("no-such-model")
