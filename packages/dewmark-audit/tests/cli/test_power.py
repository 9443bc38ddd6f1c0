"""``dewmark power``, with DEW on the tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dewmark_audit.texts import openings

STRONG = ["--set", "strength=4"]


@pytest.fixture
def power(run, tiny):
    def invoke(*arguments: object):
        return run("power", *arguments, *STRONG, "-q")

    return invoke


def test_a_sample_is_written_measured_and_drawn(power, tmp_path):
    out = tmp_path / "power"
    result = power("--length", "30,60", "--number", 8, "--out", out, "--json", "--seed", 3)
    assert result.code == 0, result.err
    row = json.loads(result.out)
    assert row.pop("version")
    assert row == json.loads((out / "power.json").read_text(encoding="utf-8"))
    assert (row["texts"], row["fpr"], row["config"]["strength"]) == (8, 0.01, 4.0)
    short, long = row["lengths"]
    assert (short["length"], long["length"]) == (30, 60)
    assert short["measured"]["trials"] == long["measured"]["trials"] == 8
    assert short["mean_z"] < long["mean_z"]
    assert 0.0 <= short["tpr"]["value"] <= long["tpr"]["value"] <= 1.0
    assert 0 < row["shortest"]["0.5"] <= row["shortest"]["0.9"]


def test_chat_answers_the_package_s_requests_as_the_host_decodes(power, key_file, monkeypatch):
    from dewmark_lab.testing.fake_host import FakeHost

    asked = []
    original = FakeHost.generate

    def watched(self, prompts, *, decoding, **options):
        asked.append((list(prompts), decoding))
        return original(self, prompts, decoding=decoding, **options)

    monkeypatch.setattr(FakeHost, "generate", watched)
    # under the known key all answers are long enough to be measured
    assert power("--key", key_file, "--length", "30", "--number", 4, "--chat", "--json").code == 0
    ((prompts, decoding),) = asked
    assert all(prompt.startswith("the old ") for prompt in prompts)
    assert (decoding.temperature, decoding.min_new_tokens, decoding.no_repeat_ngram) == (0.9, 0, 0)


@pytest.fixture
def marked(run, tiny, key_file, tmp_path) -> Path:
    """Four texts of 80 tokens, marked with the known key."""
    prompts, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = ({"prompt": f"the old {word}"} for word in ("bridge", "sea", "hill", "town"))
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    length = ["--max-new-tokens", 80, "--min-new-tokens", 80]
    run("generate", "--key", key_file, "--prompts", prompts, *length, "--seed", 1, "--out", out, *STRONG)
    return out


def test_given_texts_and_a_length_beyond_them(power, marked, key_file):
    result = power("--key", key_file, "--texts", marked, "--length", "50,1000")
    assert result.code == 0, result.err
    table = result.out.splitlines()
    assert table[1].split()[0] == "50"
    assert "of 4" in table[1]
    assert table[2].split()[0] == "1,000"
    assert "–" in table[2].split()  # not measured: the model alone speaks
    assert "At a false-positive rate of 0.01, from 4 marked texts: " in result.out


def test_a_truncated_text_scores_like_the_shorter_text(power, run, key_file, tmp_path):
    written = [row["text"].split() for row in openings()]
    texts = [[word for words in written[i::5] for word in words][:60] for i in range(5)]
    whole, short = tmp_path / "whole.jsonl", tmp_path / "short.jsonl"
    for path, length in ((whole, 60), (short, 40)):
        path.write_text("".join(json.dumps({"text": " ".join(words[:length])}) + "\n" for words in texts))
    row = json.loads(power("--key", key_file, "--texts", whole, "--length", 40, "--json").out)
    rows = run("detect", "--key", key_file, "--jsonl", short, "--json", "-q", *STRONG).out.splitlines()
    z = [json.loads(line)["z"] for line in rows]
    # flattening ends after a few iterations, so the last digits depend on the order of the pairs
    assert row["lengths"][0]["mean_z"] == pytest.approx(np.mean(z), abs=1e-2)
    assert row["lengths"][0]["sd_z"] == pytest.approx(np.std(z, ddof=1), abs=3e-2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--length", "many"], "--length needs positive numbers separated by commas, got 'many'"),
        (["--length", "0,50"], "--length needs positive numbers"),
        (["--length", ","], "--length needs positive numbers"),
        (["--fpr", "1"], "--fpr must lie in (0, 1), got 1"),
        (["--number", "2"], "--number"),
        (["--number", "5000"], "--number must not exceed that, got 5000"),
        (["--scheme", "none"], "leaves no mark"),
        (["--texts", "TEXTS"], "no key given"),
        (["--texts", "missing.jsonl"], "cannot read missing.jsonl"),
    ],
)
def test_bad_options(power, tmp_path, arguments, said):
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": "the old bridge"}\n')
    assert said in power(*[path if argument == "TEXTS" else argument for argument in arguments]).error


def test_too_few_texts(power, key_file, tmp_path):
    path: Path = tmp_path / "t.jsonl"
    rows = [{"text": "the old bridge over the river " * 10}, *({"text": f"the old {w}"} for w in "abc")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (
        "needs 4 marked texts of at least 25 tokens, got 1" in power("--texts", path, "--key", key_file).error
    )
