"""``dewmark locate`` on a tiny real model: input and output."""

from __future__ import annotations

import functools
import html
import json
import random
import re
import sys
from pathlib import Path

import pytest
from tests.command_line import SECRET, json_lines
from tests.fakes import BagEncoder

import dewmark
from dewmark.core.keys import Key
from dewmark.decoding import Decoding

STRONG = ("--set", "strength=6")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, bag_encoder: BagEncoder):
    """Every host name stands for one tiny model."""
    import dewmark.hosts
    import dewmark.watermark
    from dewmark_lab.testing.fake_host import FakeHost

    host = FakeHost()
    for module in (dewmark.hosts, dewmark.watermark):
        monkeypatch.setattr(module, "host_info", lambda name, **_: host.info, raising=False)
        monkeypatch.setattr(module, "load_host", lambda name, **_: host)
    return host


@functools.cache
def partly_marked() -> str:
    """100 unmarked words, 120 marked ones and 100 unmarked again."""
    from dewmark_lab.testing.fake_host import FakeHost

    tiny = FakeHost()
    scheme = dewmark.load_scheme(Key(SECRET), host=tiny.info, settings={"strength": 6.0})
    (marked,) = tiny.generate(
        ["the old bridge"],
        scheme=scheme,
        seeds=[5],
        decoding=Decoding(max_new_tokens=120, min_new_tokens=120),
    )
    draw = random.Random(1)
    plain = [
        tiny.info.tokenizer.decode([[draw.randrange(5, 500) for _ in range(100)]])[0].strip()
        for _ in range(2)
    ]
    return f"{plain[0]} {marked.text.strip()} {plain[1]}"


@pytest.fixture
def document(tiny, tmp_path) -> Path:
    path = tmp_path / "document.txt"
    path.write_text(partly_marked(), encoding="utf-8")
    return path


@pytest.fixture
def locate(run, key_file):
    return lambda *arguments: run("locate", "--key", key_file, *STRONG, *arguments)


def test_json(locate, document):
    (row,) = json_lines(locate(document, "--json", "-q"))
    text = document.read_text(encoding="utf-8")
    assert row["id"] == str(document)
    (passage,) = row["passages"]
    assert passage["text"] == text[passage["start"] : passage["end"]]
    assert passage["p_value"] < 0.01
    assert row["detection"]["tokens_scored"] > 200  # new words, and frequent ones four times


def test_plain_output(locate, document):
    first, second = locate(document, "-q").out.splitlines()
    assert re.search("document.txt: marked, (attributable, )?part of it: about", first)
    assert "1 marked passage at level 0.01, p = " in first
    assert "; the whole text alone: p = " in first
    assert second.startswith("  1. characters ")
    assert "over all passages tried" in second
    assert "…" in second


def test_a_terminal_shows_the_text_with_the_passage_in_brackets(locate, document, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    out = locate(document, "-q").out
    assert out.count("⟦1 ") == out.count(" ⟧") == 1


def test_page(locate, document, tmp_path):
    page = tmp_path / "page.html"
    result = locate(document, "--html", page)
    assert f"wrote {page}" in result.err
    source = html.unescape(re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8")))
    assert source.count("⟦1 ") == 1
    assert "over all passages tried" in source


def test_jsonl_detector_and_blank_texts(run, locate, document, key_file, tmp_path):
    rows = tmp_path / "in.jsonl"
    text = document.read_text(encoding="utf-8")
    rows.write_text("".join(json.dumps({"text": each}) + "\n" for each in (text, " ", text[:80])))
    folder = tmp_path / "detector"
    assert run("detector", "export", "--key", key_file, *STRONG, "--host", "tiny", "--out", folder).code == 0
    ours = json_lines(locate("--jsonl", rows, "--json", "-q"))
    theirs = json_lines(run("locate", "--detector", folder, "--jsonl", rows, "--json", "-q"))
    assert [len(row["passages"]) for row in ours] == [1, 0, 0]
    assert [row["passages"] for row in ours] == [
        [
            {**passage, "z": pytest.approx(passage["z"], rel=1e-4)} | _near(passage)
            for passage in row["passages"]
        ]
        for row in theirs
    ]
    assert ours[1]["detection"]["verdict"] == "too_short"


def test_several_keys(run, document, key_file, tmp_path):
    """Passages name their key, and every p-value pays for all keys."""
    others = tmp_path / "keys"
    others.mkdir()
    for number in range(4):
        Key(bytes([number]) * 32).save(others / f"{number}.key")
    (alone,) = json_lines(run("locate", "--key", key_file, *STRONG, document, "--json", "-q"))
    every = ("--key", key_file, "--keys", others, *STRONG, document)
    (row,) = json_lines(run("locate", *every, "--json", "-q"))
    assert (row["verdict"], row["key_file"], row["looks"]["keys"]) == ("marked", str(key_file), 5)
    (passage,) = row["passages"]
    assert passage["key_fingerprint"] == Key(SECRET).fingerprint
    assert passage["p_value"] == pytest.approx(5 * alone["passages"][0]["p_value"], rel=1e-3)
    assert row["p_value"] == pytest.approx(5 * alone["p_value"], rel=1e-3)
    (tried,) = json_lines(run("locate", *every, "--attempts", "3", "--json", "-q"))
    assert tried["p_value"] == pytest.approx(3 * row["p_value"])
    first, second = run("locate", *every, "-q").out.splitlines()
    assert "over 5 keys; the whole text alone" in first
    assert f"key {key_file} ({Key(SECRET).fingerprint})" in second


def test_detect_says_that_only_a_part_is_marked(run, document, key_file):
    command = ("detect", "--key", key_file, *STRONG, document, "-q")
    (row,) = json_lines(run(*command, "--json"))
    assert row["verdict"] == "marked"
    coverage = row["coverage"]
    assert coverage["extent"] == "part"
    assert 0.25 < coverage["share"] < 0.5  # 120 of 320 words
    assert coverage["p_rest"] > 0.01
    (passage,) = coverage["passages"]
    assert re.search("marked, (attributable, )?part of it: about", run(*command).out)
    assert f"characters {passage['start']} to {passage['end']}" in run(*command).out


def _near(passage: dict) -> dict:
    """Tables in an exported detector are rounded as the key's own are, but for the last digits."""
    names = ("p_value", "p_alone", "effective_length", "share")
    return {name: pytest.approx(passage[name], rel=1e-2) for name in names}


def test_there_must_be_a_text(run, key_file):
    assert "nothing to search" in run("locate", "--key", key_file).error


def test_a_scheme_without_evidence_is_an_error(run, host, key_file, tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("a text of ordinary words, long enough to be judged")
    assert "no known covariance" in run("locate", "--key", key_file, text).error
