"""Rings, payloads, epochs and streams on the command line, on a tiny host."""

from __future__ import annotations

import io
import json
import sys

import pytest
from tests.cli.test_locate import tiny  # noqa: F401 - fixture
from tests.command_line import said

from dewmark.core.keys import Key

pytest.importorskip("torch", reason="a model writes the text")

KEYED = ("--set", "alpha=0.7")


WRITTEN: list[str] = []  # once for all tests


@pytest.fixture
def text(run, tiny, tmp_path):  # noqa: F811
    """A key with a ring and payloads, and a text by member 3 with payload 2."""
    key, path = tmp_path / "ring.key", tmp_path / "text.txt"
    Key(bytes(range(32)), members=8, payload_bits=2).save(key)
    if not WRITTEN:
        asked = ("--prompt", "the old bridge", "--member", 3, "--payload", "0b10", "--seed", 1)
        length = ("--max-new-tokens", 150, "--min-new-tokens", 150)
        made = run("generate", "--key", key, *KEYED, *asked, *length, "-q")
        assert made.code == 0, made.err
        WRITTEN.append(made.out)
    path.write_text(WRITTEN[0], encoding="utf-8")
    return key, path


def test_a_ring_marks_and_names_member_and_payload(run, text) -> None:
    key, path = text
    found = run("detect", "--key", key, *KEYED, path, "-q")
    assert "marked, member 3, payload 0x2" in found.out
    row = json.loads(run("detect", "--key", key, *KEYED, path, "--json", "-q").out)
    assert (row["member"], row["payload"], row["n_hypotheses"]) == (3, 2, 32)


def test_locate_names_member_and_payload(run, text) -> None:
    key, path = text
    found = run("locate", "--key", key, *KEYED, path, "-q")
    assert "marked, member 3, payload 0x2" in found.out
    row = json.loads(run("locate", "--key", key, *KEYED, path, "--json", "-q").out)
    assert (row["detection"]["member"], row["detection"]["payload"], row["detection"]["n_hypotheses"]) == (
        3,
        2,
        32,
    )


def test_a_stream_is_watched_until_it_is_marked(run, text, monkeypatch) -> None:
    key, path = text
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    found = run("detect", "--follow", "--key", key, *KEYED, "--prompt", "the old bridge", "--json", "-q")
    row = json.loads(found.out.splitlines()[-1])
    assert row.keys() == said("`detect --follow`")
    assert (row["verdict"], row["member"]) == ("marked", 3)
    assert row["p_value"] <= 0.01
    wrong = run("detect", "--follow", "--key", key, path)
    assert wrong.code == 2
    assert "leave out TEXTFILE" in wrong.err


def test_a_key_is_rotated_in_place(run, tmp_path) -> None:
    path = tmp_path / "a.key"
    assert (
        "ring of 32, payloads of 3 bits"
        in run("key", "new", "--ring", 32, "--payload-bits", 3, "--out", path).out
    )
    assert "epoch 2027" in run("key", "rotate", path, "--epoch", "2027").out
    shown = run("key", "show", path).out.splitlines()
    assert len(shown) == 2
    assert shown[1].endswith("epoch first, ring of 32, payloads of 3 bits, detects only")
    again = run("key", "rotate", path, "--epoch", "2027")
    assert again.code == 2
    assert "already" in again.err
    assert json.loads(run("key", "rotate", path, "--epoch", "b", "--json").out).keys() == said("`key show`")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("key", "new", "--ring", 20, "--out", "a.key"), "a ring has 2 to 16 members"),
        (("generate", "--payload", "many", "--prompt", "a"), "whole number such as 47 or 0x2f, got 'many'"),
        (("generate", "--scheme", "none", "--member", 1, "--prompt", "a"), "leave out --member"),
    ],
)
def test_mistakes_are_named_before_anything_runs(run, arguments, message: str) -> None:
    found = run(*arguments)
    assert found.code == 2
    assert message in found.err
