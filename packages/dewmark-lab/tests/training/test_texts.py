"""Training texts from a file or from the host."""

from __future__ import annotations

import dataclasses
import json

import pytest

from dewmark.errors import InputError
from dewmark.workspace import silent
from dewmark_audit.texts import openings
from dewmark_lab.testing.trial import tiny_host
from dewmark_lab.training import texts
from dewmark_lab.training.texts import FileTexts, HostTexts, sentence_starts


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(texts, "BATCH", 32)


class CountingHost:
    """The tiny host; counts the texts it writes, and can be interrupted."""

    def __init__(self, stop_after: int = 10**9) -> None:
        self.written = 0
        self._stop_after = stop_after

    def generate(self, prompts, *, decoding, **options):
        if self.written >= self._stop_after:
            raise KeyboardInterrupt
        self.written += len(prompts)
        return tiny_host().generate(
            prompts, decoding=dataclasses.replace(decoding, max_new_tokens=6, min_new_tokens=6), **options
        )


def texts_of(host, cache, *, seed=0):
    return HostTexts(tiny_host().info, lambda: host, cache=cache, seed=seed, progress=silent)


def test_the_host_s_texts_are_cached(tmp_path):
    host = CountingHost()
    first = texts_of(host, tmp_path).take(20, least=20)
    assert len(first) == 20
    assert host.written == 32  # whole batches of 32
    assert texts_of(host, tmp_path).take(20, least=20) == first
    assert host.written == 32
    more = texts_of(host, tmp_path).take(40, least=40)
    assert more[:20] == first
    assert host.written == 64


def test_no_text_continues_an_evaluation_prompt():
    """Experiments continue the package's openings: no artifact is trained on them."""
    starts = sentence_starts()
    assert len(starts) >= 200
    prompts = " ".join(row["text"] for row in openings())
    assert not [start for start in starts if start in prompts]


def test_texts_continue_the_same_starts_and_differ_by_seed(tmp_path):
    first, other = (texts_of(CountingHost(), tmp_path, seed=seed).take(16, least=16) for seed in (0, 100))
    assert first != other
    assert [text[:12] for text in first] == [text[:12] for text in other]  # the same starts


class TestFiles:
    def test_jsonl_and_paragraphs(self, tmp_path):
        jsonl, plain = tmp_path / "a.jsonl", tmp_path / "a.txt"
        rows = [{"text": "one"}, {"response": "two"}, {"text": "one"}]
        jsonl.write_text("".join(json.dumps(row) + "\n" for row in rows))
        plain.write_text("one\n\n\ntwo\n")
        for path in (jsonl, plain):
            texts = FileTexts(path)
            assert texts.take(100, least=2) == ["one", "two"]
            assert texts.option == path.name

    def test_too_few_texts_are_rejected(self, tmp_path):
        path = tmp_path / "a.txt"
        path.write_text("one\n\ntwo")
        with pytest.raises(InputError, match=r"2 distinct texts, it takes 3"):
            FileTexts(path).take(3, least=3)
