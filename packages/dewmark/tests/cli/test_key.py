"""``dewmark key new --audit``: keys are drawn until one passes, and a bad one is never written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.command_line import StubBound

from dewmark.core.keys import Key
from dewmark.stats.key_test import one_sided_p
from dewmark.types import Detection
from dewmark.verdict import verdict_of

WORDS = ["the", "old", "bridge", "over", "river", "house", "water", "light", "night", "city", "hill", "sea"]


@pytest.fixture
def negatives(tmp_path: Path) -> Path:
    z = np.random.default_rng(0).normal(size=450)
    path = tmp_path / "n.jsonl"
    rows = ({"text": f"The text number {i} has z={value:.6f}"} for i, value in enumerate(z))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, host) -> list[Key]:
    """The keys as they are drawn; the stub adds a lean of its own to each, by `leans`."""
    keys: list[Key] = []

    def generate() -> Key:
        keys.append(Key(bytes([len(keys)] * 32)))
        return keys[-1]

    monkeypatch.setattr(Key, "generate", generate)
    return keys


def lean(monkeypatch: pytest.MonkeyPatch, drawn: list[Key], *leans: float) -> None:
    """The i-th key drawn shifts every z by leans[i], the last one of them by that for ever."""

    def one(self: StubBound, text: str, fpr: float, test: str | None) -> Detection:
        number = [key.fingerprint for key in drawn].index(self.fingerprint)
        z = float(text.partition("z=")[2]) + leans[min(number, len(leans) - 1)]
        p = one_sided_p(z)
        return Detection(
            verdict_of(p, 100.0, fpr), p, z, 0.0, 100.0, 100, "key", fpr, "dew", self.fingerprint
        )

    monkeypatch.setattr(StubBound, "_one", one)


def test_the_first_key_that_passes_is_written(run, monkeypatch, drawn, negatives, tmp_path):
    lean(monkeypatch, drawn, 1.0, 1.0, 0.0)
    out = tmp_path / "good.key"
    result = run("key", "new", "--out", out, "--audit", negatives, "--json", "-q")
    row = json.loads(result.out)
    assert (row["drawn"], row["audit"]["outcome"]) == (3, "passes")
    assert Key.load(out) == drawn[2]
    assert row["key_fingerprint"] == drawn[2].fingerprint
    assert not any(bytes([i] * 32).hex() in result.out for i in range(5))


def test_plain_output(run, monkeypatch, drawn, negatives, tmp_path):
    lean(monkeypatch, drawn, 0.0)
    first, second, third = run(
        "key", "new", "--out", tmp_path / "k", "--audit", negatives, "-q"
    ).out.splitlines()
    assert first == f"wrote {tmp_path / 'k'}, fingerprint {drawn[0].fingerprint}"
    assert second.startswith("Drew 1 key. The key passes: ")
    assert third.startswith("Keep it secret: anyone with this file")


def test_no_key_is_written_if_none_passes(run, monkeypatch, drawn, negatives, tmp_path):
    lean(monkeypatch, drawn, 2.0, 1.0, 2.0)
    out = tmp_path / "bad.key"
    error = run("key", "new", "--out", out, "--audit", negatives, "--tries", 7, "-q").error
    assert error.startswith(
        "none of 7 keys passed, and none was written; the best: The key fails for all texts"
    )
    assert not out.exists()
    assert len(drawn) == 7


def test_too_few_texts_are_reported_at_once(run, monkeypatch, drawn, tmp_path):
    lean(monkeypatch, drawn, 0.0)
    path = tmp_path / "few.jsonl"
    path.write_text("".join(f'{{"text": "text {i} z=0.{i}"}}\n' for i in range(30)), encoding="utf-8")
    error = run("key", "new", "--out", tmp_path / "k", "--audit", path, "-q").error
    assert error.startswith(
        "these texts are too few to show that a key is good. Cannot tell: 30 texts are too few"
    )
    assert not (tmp_path / "k").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["some.txt"], "without an audit a key needs no TEXTS: add --audit TEXTS"),
        (["--host", "stub"], "needs no --host"),
        (["--audit", "missing.txt"], "cannot read missing.txt"),
        (["--audit", "N", "--scheme", "none"], "scheme none has no key to audit"),
        (["--audit", "N", "--host", "nowhere"], "no model 'nowhere'"),
        (["--audit", "N", "--tries", "0"], "--tries"),
    ],
)
def test_bad_options(run, host, negatives, tmp_path, arguments, said):
    given = [negatives if argument == "N" else argument for argument in arguments]
    assert said in run("key", "new", "--out", tmp_path / "k", *given, "-q").error


def test_an_existing_file_is_reported_before_the_work(run, drawn, negatives, tmp_path):
    out = tmp_path / "there.key"
    out.write_text("mine")
    assert "exists already" in run("key", "new", "--out", out, "--audit", negatives, "-q").error
    assert not drawn
    assert out.read_text() == "mine"


def test_a_real_scheme_reads_the_texts_once_for_all_keys(run, tiny, bag_encoder, tmp_path):
    """Five keys read the texts as often as one does: the encoder is asked for the same windows."""
    rng = np.random.default_rng(1)
    path = tmp_path / "n.jsonl"
    rows = ({"text": " ".join(rng.choice(WORDS, size=60))} for _ in range(40))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    Key(bytes(32)).save(tmp_path / "one.key")
    one = ["audit", "--key", tmp_path / "one.key", "--negatives", path, "--batch-size", 40, "--json"]
    many = ["key", "new", "--out", tmp_path / "k", "--audit", path]
    asked = []
    for command in (one, one, many):  # the first also fits the encoder's statistics
        bag_encoder.calls.clear()
        run(*command, "--scheme", "dew-paper", "-q")
        asked.append(sum(bag_encoder.calls))
    assert asked[2] == asked[1] > 0
