"""The proof of a policy: structured answers parse by their grammar, and only words that may be are marked."""

from __future__ import annotations

import pytest

from dewmark import Key, Watermark
from dewmark.decoding import Decoding
from dewmark.hosts.base import ChatFormat
from dewmark.hosts.fake import FakeHost
from dewmark.policy import Policy
from dewmark_desk.policy_proof import _ASKED, parses, prove

pytest.importorskip("llguidance")


def proved(key: Key):
    watermark = Watermark(key, host=FakeHost(kind="bytes"))
    watermark.__dict__["chat_format"] = ChatFormat(lambda messages: messages[0]["content"], Decoding())
    return prove(watermark, Policy(), requests=2, max_new_tokens=200, batch_size=4)


def test_structured_answers_parse_with_the_mark_and_without(monkeypatch):
    """A host of random bytes: only the grammar makes its answers parse, and no key changes them."""
    monkeypatch.delitem(_ASKED, "code")
    proof, other = proved(Key(bytes(range(32)))), proved(Key(bytes(32)))
    assert [marked.text for _, marked in proof.answers] == [marked.text for _, marked in other.answers]
    found = proof.to_dict()
    rows = {row["kind"]: row for row in found["parsed"]}
    for kind in ("JSON", "tool call"):
        assert (rows[kind]["requests"], rows[kind]["unmarked"], rows[kind]["marked"]) == (1, 1, 1)
        assert rows[kind]["p_value"] == 1.0
    assert not any(plain.text in str(found) for plain, _ in proof.answers)
    calls = [marked for kind, (_, marked) in zip(proof.kinds, proof.answers, strict=True) if kind == "JSON"]
    assert all(Policy().reason(each.text[:-1]) == "structured" for each in calls)


@pytest.mark.parametrize(
    ("kind", "text", "right"),
    [
        ("JSON", '{"name": "a"}', True),
        ("JSON", '{"name": "a"', False),
        ("JSON", "[1]", False),
        ("code", "Here it is:\n```python\ndef f():\n    return 1\n```\nDone.", True),
        ("code", "```python\ndef f(:\n```", False),
        ("code", "def f():\n    return 1", True),
        ("code", "Sure, here you are.", False),
    ],
)
def test_what_counts_as_parsing(kind, text, right):
    assert parses(kind, text) is right
