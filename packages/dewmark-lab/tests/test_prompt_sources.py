"""Prompts and human-written texts."""

from __future__ import annotations

import json

import pytest

from dewmark.errors import ConfigError, InputError
from dewmark_audit.texts import openings, requests
from dewmark_lab.prompt_sources import held_out, human_texts, prompt_texts, source_identity, truncate
from dewmark_lab.testing.fake_host import FakeHost


def test_openings_are_used_in_order_and_once():
    every = openings()
    assert prompt_texts("openings", 5) == every[:5]
    assert prompt_texts("requests", 5) == requests()[:5]
    with pytest.raises(ConfigError, match="--texts must not exceed"):
        prompt_texts("openings", len(every) + 1)


def test_a_long_corpus_repeats_openings_and_holds_some_out():
    corpus = prompt_texts("openings-again", 2000)
    assert len({row["id"] for row in corpus}) == 2000
    kept = held_out("openings-again", 100, beside=2000)
    assert not {row["text"] for row in kept} & {row["text"] for row in corpus}
    with pytest.raises(ConfigError, match="100 openings are held out"):
        held_out("openings-again", 101, beside=10)


def test_prompts_from_a_file(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text(
        '{"prompt": "the river", "id": 7}\n{"text": "the sea"}\n{"prompt": " "}\n', encoding="utf-8"
    )
    assert prompt_texts(str(file), 2) == [{"id": "7", "text": "the river"}, {"id": "1", "text": "the sea"}]
    before = source_identity(str(file))
    file.write_text('{"prompt": "the river"}\n', encoding="utf-8")
    assert source_identity(str(file)) != before
    with pytest.raises(ConfigError, match="has 1 prompts"):
        prompt_texts(str(file), 2)
    with pytest.raises(InputError, match="there is no file"):
        prompt_texts("nowhere.jsonl", 2)
    file.write_text('{"words": 3}\n', encoding="utf-8")
    with pytest.raises(InputError, match="line 1: prompt or text or response must be a string"):
        prompt_texts(str(file), 1)


def test_texts_are_truncated_after_whole_tokens():
    tokenizer = FakeHost().tokenizer
    rows = truncate(
        [{"id": "a", "text": "the river and the sea"}, {"id": "b", "text": "rain"}], tokenizer, tokens=3
    )
    assert [row["text"] for row in rows] == ["the river and", "rain"]


def test_short_and_repeated_human_texts_are_left_out(tmp_path):
    file, long = tmp_path / "human.jsonl", "the river and the sea " * 10
    texts = [long, "too short", long, long + "again"]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    found = human_texts(str(file), FakeHost().tokenizer, tokens=8, number=10)
    assert [row["id"] for row in found] == ["0", "3"]
    assert all(len(row["text"].split()) == 8 for row in found)
    file.write_text('{"text": "too short"}\n', encoding="utf-8")
    with pytest.raises(InputError, match="at least 30 words"):
        human_texts(str(file), FakeHost().tokenizer, tokens=8, number=10)
