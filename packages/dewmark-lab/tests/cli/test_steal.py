"""``dewmark steal`` on the tiny model."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def files(tmp_path, run, tiny, key_file):
    """Marked, base and human texts of the tiny model."""
    prompts = tmp_path / "in.jsonl"
    words = ["sea", "hill", "town", "river"] * 10
    prompts.write_text("".join(json.dumps({"prompt": f"the {word}"}) + "\n" for word in words))
    common = ["--prompts", prompts, "--max-new-tokens", 60, "--min-new-tokens", 60, "--batch-size", 40, "-q"]
    for name, options in {
        "marked": ["--scheme", "unigram", "--key", key_file, "--seed", 0],
        "base": ["--scheme", "none", "--seed", 100],
        "humans": ["--scheme", "none", "--seed", 200],
    }.items():
        done = run("generate", *options, *common, "--out", tmp_path / f"{name}.jsonl")
        assert done.code == 0, done.err
    names = ("marked", "base", "humans")
    return [option for name in names for option in (f"--{name}", tmp_path / f"{name}.jsonl")]


@pytest.fixture
def steal(run, files, key_file):
    def invoke(*arguments: object):
        return run("steal", *files, "--key", key_file, "--scheme", "unigram", "-q", *arguments)

    return invoke


SMALL = ["--texts", 8, "--tokens", 60, "--strength", 6]


def test_spoof_writes_texts_and_a_summary(steal, tmp_path):
    out = tmp_path / "out"
    done = steal(*SMALL, "--json", "--out", out, "--with", "h=1")
    assert done.code == 0, done.err
    row = json.loads(done.out)
    assert row.pop("version")
    assert row == json.loads((out / "steal.json").read_text(encoding="utf-8"))
    assert row["settings"]["h"] == 1
    assert (row["scheme"], row["mode"], row["written"], row["observed"]) == ("unigram", "spoof", 8, 40)
    assert row["found"] > row["control_found"]
    written = [json.loads(line) for line in (out / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(written) == 8
    assert sum(line["p_value"] < 0.01 for line in written) / 8 == row["found"]
    assert steal(*SMALL, "--json", "--out", out, "--with", "h=1").out == done.out  # from what was kept


def test_scrub_takes_the_last_texts_and_shows_a_table(steal):
    done = steal(*SMALL, "--mode", "scrub", "--with", "fidelity=8")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "learned from 32 marked and 40 base texts by counts; strength 6"
    assert [line.split()[0] for line in lines[1:]] == ["texts", "scrubbed", "strength", "genuine", "human"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--method", "guess"], "method must be one of counts, embedding, got 'guess'"),
        (["--method", "embedding"], "attacks dew, not unigram"),
        (["--with", "height=3"], "unknown parameter 'height'"),
        (["--mode", "scrub", "--texts", "40"], "leaves none to learn from"),
        (["--mode", "scrub", "--prompts", "x.jsonl"], "--prompts is for a spoof"),
        (["--strength", "-1"], "strength must be at least 0"),
        (["--method", "embedding", "--with", "grouping=told"], 'needs JSONL rows with the "member"'),
        (["--humans", "missing.jsonl"], "cannot read missing.jsonl"),
    ],
)
def test_bad_options(run, tiny, key_file, tmp_path, arguments, said):
    lines = [json.dumps({"prompt": "the sea", "text": f" a hill {i} and the river " * 4}) for i in range(40)]
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(lines))
    given = ["--marked", file, "--base", file, "--humans", file, "--key", key_file, "-q"]
    assert said in run("steal", *given, "--scheme", "unigram", *arguments).error
