"""The service under a policy: what it logs, and that the log can be computed from the text."""

from __future__ import annotations

import json

import pytest
from tests.desk.live import bound

from dewmark.policy import Policy

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
        assert (row["marked"], row["exempt"]) == (True, None)
        assert row["characters"] == len(choice["text"])
        spans = Policy().spans(choice["text"], "the old bridge")
        assert row["spans"] == [[each.start, each.end, each.reason] for each in spans]
    assert not any(word in log.read_text() for word in made["choices"][0]["text"].split() if len(word) > 5)
    assert log.stat().st_mode & 0o777 == 0o600


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
    assert [row["exempt"] for row in rows(log)] == ["opted_out", "greedy"]
    assert all(row["member"] is None and row["spans"] == [] for row in rows(log))
