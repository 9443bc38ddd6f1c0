"""Policies: the proof that structured answers parse, and the log of what was marked."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.desk.live import bound

from dewmark import Key, Watermark
from dewmark.decoding import Decoding
from dewmark.hosts.base import ChatFormat
from dewmark.policy import Policy
from dewmark.storage import append_jsonl
from dewmark_desk.policy_proof import _ASKED, parses, prove
from dewmark_lab.testing.fake_host import FakeHost

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


ASKED = {"model": "tiny", "max_tokens": 40, "seed": 7, "prompt": "the old bridge"}


@pytest.fixture
def log(tmp_path):
    return tmp_path / "policy.jsonl"


def rows(log):
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def test_every_text_has_a_row_without_its_words(open_service, log):
    client = open_service(generates=True, policy="default", policy_log=str(log))
    made = client.post("/v1/completions", json={**ASKED, "n": 2}).json()
    assert made["marked"] is True
    found = rows(log)
    assert len(found) == 2
    for row, choice in zip(found, made["choices"], strict=True):
        assert row["policy"] == Policy().version
        assert row["key_fingerprint"] == bound("acme").fingerprint
        assert (row["marked"], row["unmarked"]) == (True, None)
        assert row["characters"] == len(choice["text"])
        spans = Policy().spans(choice["text"], "the old bridge")
        assert row["spans"] == [[each.start, each.end, each.reason] for each in spans]
    assert not any(word in log.read_text() for word in made["choices"][0]["text"].split() if len(word) > 5)
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("stream", [False, True])
def test_the_log_is_written_off_the_event_loop(open_service, log, monkeypatch, stream):
    def noted(*arguments, **options):
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return append_jsonl(*arguments, **options)

    monkeypatch.setattr("dewmark_desk.routes.openai.append_jsonl", noted)
    client = open_service(generates=True, policy="default", policy_log=str(log))
    assert client.post("/v1/completions", json={**ASKED, "stream": stream}).status_code == 200
    assert len(rows(log)) == 1


def test_streams_are_logged_too(open_service, log):
    client = open_service(generates=True, policy="default", policy_log=str(log))
    client.post("/v1/completions", json={**ASKED, "stream": True})
    assert len(rows(log)) == 1


def test_requests_opt_out_only_where_that_is_allowed(open_service, log):
    refused = open_service(generates=True).post("/v1/completions", json={**ASKED, "mark": False})
    assert refused.status_code == 422
    client = open_service(generates=True, opt_out=True, policy="default", policy_log=str(log))
    assert client.post("/v1/completions", json={**ASKED, "mark": False}).json()["marked"] is False
    client.post("/v1/completions", json={**ASKED, "temperature": 0})
    assert [row["unmarked"] for row in rows(log)] == ["opted_out", "greedy"]
    assert all(row["member"] is None and row["spans"] == [] for row in rows(log))
