"""``dewmark detect``: input, output, errors."""

from __future__ import annotations

import html
import io
import json
import re
import sys
from pathlib import Path

import pytest
from tests.command_line import MARK, SECRET, json_lines

from dewmark.core.keys import Key

FINGERPRINT = Key(SECRET).fingerprint
MARKED = f"A text that carries its mark {MARK}{FINGERPRINT[:4]} in the middle of everything."
PLAIN = "A text of ordinary words, long enough to be judged, “quoted” and ünmarked."


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    marked, plain = tmp_path / "marked.txt", tmp_path / "plain.txt"
    marked.write_text(MARKED, encoding="utf-8")
    plain.write_bytes(b"\xef\xbb\xbf" + PLAIN.encode())  # a byte order mark is no part of the text
    return marked, plain


def test_json(detect, texts):
    marked, plain = json_lines(detect(*texts, "--json"))
    assert {"id", "p_value", "z", "effective_length", "tokens_scored", "verdict"} <= marked.keys()
    assert (marked["id"], marked["verdict"]) == (str(texts[0]), "marked")
    assert (plain["id"], plain["verdict"]) == (str(texts[1]), "not_marked")
    assert plain["tokens_scored"] == len(PLAIN) - 3
    assert marked["key_fingerprint"] == FINGERPRINT
    assert "tokens" not in marked


def test_tokens_have_offsets_into_the_text(detect, texts):
    (row,) = json_lines(detect(texts[1], "--json", "--tokens"))
    assert "".join(PLAIN[token["start"] : token["end"]] for token in row["tokens"]) == PLAIN
    assert [token["scored"] for token in row["tokens"][:4]] == [False, False, False, True]


def test_plain_output(detect, texts):
    result = detect(*texts)
    first, second, summary = result.out.splitlines()
    assert (
        "marked.txt: marked: p = 1e-06 (1 in 1,000,000 keys would score this text so high), z = 4.75" in first
    )
    assert "plain.txt: not marked: p = 0.4 (40 in 100 keys would score this text so high)" in second
    assert f"of {len(PLAIN) - 3} tokens scored" in second
    assert first.endswith("tokens scored, q = 2e-06")
    assert summary == "1 of 2 texts marked at level 0.01; 1 with q ≤ 0.01 (Benjamini-Hochberg over 2 texts)"


def test_standard_input(detect, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MARKED.encode())))
    (row,) = json_lines(detect("-", "--json"))
    assert (row["id"], row["verdict"]) == ("-", "marked")


def test_jsonl(detect, tmp_path):
    path = tmp_path / "in.jsonl"
    rows = [
        {"text": MARKED, "id": "a", "prompt": "p"},
        {"text": PLAIN, "id": 7},
        {"text": PLAIN},
        {"text": " \n"},
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")
    found = json_lines(detect("--jsonl", path, "--json"))
    assert [row["id"] for row in found] == ["a", 7, "2", "3"]
    assert [row["verdict"] for row in found] == ["marked", "not_marked", "not_marked", "too_short"]
    assert found[3]["p_value"] == 1.0  # an empty completion is no evidence
    assert found[3]["key_fingerprint"] == FINGERPRINT


def test_a_row_s_own_prompt_wins(detect, host, tmp_path, monkeypatch):
    from tests.command_line import StubBound

    seen: list[str] = []
    original = StubBound.whole

    def spy(self, readings, **rest):
        seen.extend(each.prompt.text for each in readings)
        return original(self, readings, **rest)

    monkeypatch.setattr(StubBound, "whole", spy)
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"text": PLAIN, "prompt": "own"}) + "\n" + json.dumps({"text": PLAIN}) + "\n")
    detect("--jsonl", path, "--prompt", "given")
    assert seen == ["own", "given"]


def test_level_and_test_reach_the_detector(detect, texts):
    (row,) = json_lines(detect(texts[0], "--json", "--fpr", "1e-7", "--test", "gaussian"))
    assert (row["verdict"], row["test"], row["fpr"]) == ("not_marked", "gaussian", 1e-7)


def test_a_stream_is_followed_under_one_key(run, key_file, tmp_path):
    Key.generate().save(tmp_path / "b.key")
    keys = ("--key", key_file, "--key", tmp_path / "b.key")
    assert "--follow takes one --key" in run("detect", "--follow", *keys).error


@pytest.mark.filterwarnings("always::UserWarning")
def test_json_lines_without_their_option_are_remarked_on(detect, tmp_path):
    rows, text = tmp_path / "rows.jsonl", tmp_path / "a.txt"
    rows.write_text('{"text": "the old bridge over the river"}\n' * 3)
    text.write_text('{"a": "the old bridge over the river"}')
    assert (
        f"{rows} looks like JSON Lines, and is scored as one text: to score every" in detect(rows, "-q").err
    )
    assert detect(text, "-q").err == detect("--jsonl", rows, "-q").err == ""


def test_html(detect, tmp_path):
    """The page shows what a terminal would, runs nothing and fetches nothing."""
    text, page = tmp_path / "a.txt", tmp_path / "page.html"
    text.write_text(f"{MARKED} <script>alert('&')</script>", encoding="utf-8")
    assert detect(text, text, "--html", page).code == 0
    source = page.read_text(encoding="utf-8")
    assert source.count("<article>") == 2
    assert "a.txt: </span><span" in source or "a.txt: <span" in source
    shown = html.unescape(re.sub(r"<[^>]*>", "", source))
    assert f"{MARKED} <script>alert('&')</script>" in shown
    assert "<script" not in source
    assert "default-src 'none'" in source
    assert "does not mean" in source


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"plain\x00binary", "NUL at byte 5"),
        (b"caf\xe9 au lait", "0xe9 at byte 3"),
        ("text".encode("utf-16"), "UTF-16"),
        (b"PK\x03\x04\x00", "save its text as a .txt file"),
    ],
)
def test_files_that_are_not_text_are_rejected(detect, tmp_path, data, said):
    path = tmp_path / "bad.txt"
    path.write_bytes(data)
    error = detect(path).error
    assert said in error
    assert str(path) in error


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "is empty"),
        ("{}", 'line 1 has no "text"'),
        ('{"text": null}', "line 1: text must be a string"),
        ('{"text": "a\\udfff"}', "surrogate"),
        ('{"text": "a", "prompt": 3}', "line 1: prompt must be a string, got int"),
        ("\x00", "line 1: not a line of JSON"),
    ],
)
def test_bad_rows(detect, tmp_path, line, said):
    path = tmp_path / "bad.jsonl"
    path.write_text(line, encoding="utf-8")
    error = detect("--jsonl", path).error
    assert said in error
    assert str(path) in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to score"),
        (["missing.txt"], "cannot read missing.txt"),
        (["--jsonl", "missing.jsonl"], "cannot read missing.jsonl"),
        (["--in", "rows.txt"], "its name must end in .parquet or .jsonl"),
        (["TEXT", "--fpr", "0"], "fpr must lie in (0, 1), got 0"),
        (["TEXT", "--fpr", "one"], "--fpr"),
        (["TEXT", "--test", "magic"], "unknown test 'magic'; known: empirical, gaussian, key"),
        (["TEXT", "--test", "empirical"], "the empirical test needs a calibration"),
        (["TEXT", "--scheme", "none"], "no mark to detect"),
        (["TEXT", "--set", "gama=1"], "unknown parameter 'gama'"),
        (["TEXT", "--host", "nowhere"], "no model 'nowhere'"),
        (["TEXT", "--detector", "somewhere"], "leave out key"),
        (["TEXT", "--nonsense"], "--nonsense"),
    ],
)
def test_bad_options(detect, texts, arguments, said):
    given = [texts[0] if argument == "TEXT" else argument for argument in arguments]
    assert said in detect(*given).error


def test_no_key(run, host, texts):
    assert "no key given" in run("detect", texts[0]).error


@pytest.mark.filterwarnings("always::UserWarning")
def test_a_key_that_others_can_read_gives_a_warning(run, host, texts, key_file):
    key_file.chmod(0o644)
    result = run("detect", "--key", key_file, texts[0], "-q")
    assert result.code == 0
    (line,) = result.err.splitlines()
    assert line.startswith("dewmark: warning: ")
    assert "chmod 600" in line
