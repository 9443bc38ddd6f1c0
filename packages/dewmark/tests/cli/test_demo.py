"""``dewmark demo``: four verdicts, and the exit code that reports a wrong one."""

from __future__ import annotations

import json
import re

from tests.command_line import StubBound

from dewmark.core.keys import Key


def test_four_verdicts(run, host):
    result = run("demo", "--seed", 4, "--json")
    assert result.code == 0
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [row["id"] for row in rows] == ["marked text", "unmarked text", "human paragraph", "wrong key"]
    assert [row["verdict"] for row in rows] == ["marked", "not_marked", "not_marked", "not_marked"]
    assert all(row["right"] for row in rows)
    assert rows[0]["key_fingerprint"] == rows[2]["key_fingerprint"] != rows[3]["key_fingerprint"]
    assert rows[0]["text"] == rows[3]["text"] != rows[1]["text"]
    assert "ready in" in result.err


def test_every_run_draws_a_fresh_key(run, host):
    drawn = {json.loads(run("demo", "--json").out.splitlines()[0])["key_fingerprint"] for _ in range(3)}
    assert len(drawn) == 3


def test_a_wrong_verdict_sets_the_exit_code(run, host, monkeypatch):
    monkeypatch.setattr(StubBound, "_one", _always_marked(StubBound._one))
    result = run("demo", "-q")
    assert result.code == 1
    (line,) = result.err.splitlines()
    assert "unmarked text, human paragraph, wrong key" in line
    assert "one unmarked text in a hundred" in line


def _always_marked(original):
    def patched(self, text, fpr, test):
        return original(self, text + f" ✓{self.fingerprint[:4]}", fpr, test)

    return patched


def test_plain_output_and_key(run, host, tmp_path):
    key_file = tmp_path / "demo.key"
    result = run("demo", "--keep-key", key_file)
    assert result.code == 0
    key = Key.load(key_file)
    assert key.fingerprint in result.err
    assert key._secret.hex() not in result.out + result.err
    assert result.out.startswith("request: Write a short story")
    assert "stub, temperature 0.6, top-p 1" in result.out
    (line,) = re.findall(r"^ marked text .*", result.out, re.MULTILINE)
    assert line.split()[2:] == ["marked", "1e-06", "1", "in", "1,000,000", "1.50"]
    assert "Price of the mark: +0.00 nats a token" in result.out
    assert "not overwritten" in run("demo", "--keep-key", key_file).error
