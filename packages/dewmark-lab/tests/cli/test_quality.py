"""``dewmark quality`` on the tiny model: what it writes, resumes, refuses and exits with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dewmark.core.keys import Key
from dewmark.version import __version__
from dewmark_lab.quality.measuring import MEASURES

SMALL = ["--texts", 4, "--answers", 2, "--answered", 2, "--items", 2, "--tokens", 16, "-q"]
LOOSE = [each for name in (*MEASURES, "json", "reading") for each in ("--margin", f"{name}=1000")]


@pytest.fixture
def quality(run, tiny, tmp_path):
    def invoke(*arguments: object, out: Path = tmp_path / "q"):
        return run("quality", *SMALL, "--tasks", "json,reading", "--out", out, *arguments)

    return invoke


@pytest.fixture
def batches(monkeypatch):
    """The batches that hosts write: how many rows, and whether they are marked. Set `limit` to stop there."""
    from dewmark_lab.testing.fake_host import FakeHost

    class Batches(list):
        limit = 1000

    seen, original = Batches(), FakeHost.generate

    def watched(self, prompts, *, scheme, **options):
        if len(seen) == seen.limit:
            raise KeyboardInterrupt
        seen.append((len(prompts), scheme is not None))
        return original(self, prompts, scheme=scheme, **options)

    monkeypatch.setattr(FakeHost, "generate", watched)
    return seen


def test_all_measures_are_compared_on_one_page_and_in_json(quality, tmp_path, batches):
    result = quality("--keys", 2, "--json", "--judge", "smollm2-135m", *LOOSE)
    assert result.code == 0, result.err
    row = json.loads(result.out)
    assert (row.pop("version"), row.pop("out")) == (__version__, str(tmp_path / "q"))
    assert row == json.loads((tmp_path / "q" / "quality.json").read_text(encoding="utf-8"))
    assert (row["scheme"], row["outcome"], row["chat"]) == ("dew", "within", True)
    assert row["measures"].keys() == {*MEASURES, "json", "reading"}
    assert row["texts"] == 2 * 2 * (4 + 2 * 2 + 2 + 2) == sum(rows for rows, _ in batches)
    assert sum(rows for rows, marked in batches if marked) == row["texts"] // 2
    assert row["decoding"]["temperature"] == 0.9  # the host's own
    for name, measured in row["measures"].items():
        compared = measured["compared"]
        difference = compared["difference"]
        assert difference["low"] <= difference["value"] <= difference["high"]
        assert compared["worst"] in (0, 1)
        assert compared["margin"] == 1000
        if name not in ("top_share", "odds"):  # these have no texts without words
            assert measured["marked"] - measured["unmarked"] == pytest.approx(difference["value"], abs=1e-9)
    page = (tmp_path / "q" / "quality.md").read_text(encoding="utf-8")
    assert page.count("\n| ") == 2 + len(row["measures"])
    assert "Every measure is within its margin." in page
    assert all(fingerprint in page for fingerprint in row["key_fingerprints"])


def test_the_exit_code_says_within_exceeded_or_inconclusive(quality):
    strong = quality("--keys", 3, *LOOSE, "--margin", "nats=1e-9", "--set", "strength=30", "--texts", 12)
    assert strong.code == 1, strong.out
    assert "Outside the margin: nats." in strong.out
    few = quality("--keys", 2, *LOOSE, "--margin", "distinct=0.0001")
    assert few.code == 3
    assert "Inconclusive, the interval reaches across the margin: distinct." in few.out


def test_a_stopped_run_goes_on_and_ends_alike(quality, batches, tmp_path):
    whole = json.loads(quality("--keys", 2, "--json", *LOOSE, out=tmp_path / "whole").out)
    number = len(batches)
    batches.clear()
    batches.limit = 5
    assert quality("--keys", 2, *LOOSE).code == 130
    batches.limit = 1000
    again = json.loads(quality("--keys", 2, "--json", *LOOSE).out)
    assert len(batches) == number
    assert again["measures"] == whole["measures"]
    quality("--keys", 2, "--scheme", "kgw", *LOOSE)
    unmarked = [rows for rows, marked in batches[number:] if not marked]
    assert unmarked == []  # another scheme compares with the same unmarked texts


def test_own_keys_and_openings(quality, key_file, tmp_path):
    Key(bytes(32)).save(tmp_path / "b.key")
    result = quality(
        "--continue", "--key", key_file, "--key", tmp_path / "b.key", "--tasks", "none", "--json"
    )
    row = json.loads(result.out)
    assert row["key_fingerprints"] == [Key.load(each).fingerprint for each in (key_file, tmp_path / "b.key")]
    assert (row["prompts"], row["decoding"]["temperature"], row["chat"]) == ("openings", 1.0, False)
    assert "json" not in row["measures"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scheme", "none"], "leaves no mark"),
        (["--scheme", "kwg"], "did you mean 'kgw'?"),
        (["--set", "lamda=1"], "lamda"),
        (["--temperature", "0"], "use a temperature above 0"),
        (["--top-p", "2"], "top_p must lie in (0, 1], got 2"),
        (["--margin", "nats"], "must have the form name=value, got 'nats'"),
        (["--margin", "nats=-1"], "--margin nats must be a positive number, got '-1'"),
        (["--margin", "nat=1"], "unknown measure 'nat'; did you mean 'nats'?"),
        (["--margin", "code=1"], "unknown measure 'code'"),
        (["--tasks", "jason"], "unknown task 'jason'; did you mean 'json'?"),
        (["--tasks", "missing.jsonl"], "cannot read missing.jsonl"),
        (["--tasks", "ONE"], "needs two items at least"),
        (["--answers", "1"], "--answers must be 0 or at least 2"),
        (["--texts", "100000"], "--texts must not exceed that, got 100000"),
        (["--prompts", "missing.jsonl"], "there is no file missing.jsonl"),
        (["--key", "KEY", "--keys", "2"], "leave out --keys"),
        (["--key", "KEY", "--key", "KEY"], "names one key twice"),
        (["--key", "missing.key"], "missing.key"),
    ],
)
def test_bad_input_is_refused_before_models_load(quality, monkeypatch, tmp_path, key_file, arguments, said):
    one = tmp_path / "one.jsonl"
    one.write_text('{"prompt": "a", "answer": "b"}\n')
    monkeypatch.setattr("dewmark.hosts.load_host", None)
    names = {"KEY": key_file, "ONE": one}
    assert said in quality(*[names.get(argument, argument) for argument in arguments]).error
