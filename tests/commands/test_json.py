"""``docs/json.md``: the fields of every command's JSON, as the commands print them."""

from __future__ import annotations

import json
import re

import pytest
from tests.cli.test_locate import STRONG, document, tiny  # noqa: F401 - fixtures
from tests.command_line import JSON_PAGE, said
from tests.experiments.conftest import NO_REPORT, command, tiny_folder  # noqa: F401 - fixture

import dewmark
from dewmark.cli.app import main
from dewmark.core.keys import Key

FORBIDDEN = {"path", "fingerprint", "hash", "output", "p", "pvalue"}  # other words for the same things


def printed(run, *arguments: object) -> dict:
    result = run(*arguments)
    assert result.code == 0, result.err
    row = json.loads(result.out.splitlines()[0])
    assert row["version"] == dewmark.__version__
    assert not FORBIDDEN & row.keys()
    return row


def test_keys_and_detectors(run, host, key_file, tmp_path, monkeypatch):
    new = printed(run, "key", "new", "--out", tmp_path / "b.key", "--json")
    assert new.keys() == said("`key new`")
    assert printed(run, "key", "show", key_file, "--json").keys() == said("`key show`")
    monkeypatch.setattr(dewmark.Detector, "save", lambda self, folder: None)
    made = printed(run, "detector", "export", "--key", key_file, "--out", tmp_path / "d", "--json", "-q")
    assert made.keys() == said("`detector export`")
    assert made["key_fingerprint"] == printed(run, "key", "show", key_file, "--json")["key_fingerprint"]


def test_detect_and_locate(run, document, key_file, tmp_path):  # noqa: F811
    given = ("--key", key_file, *STRONG, document, "--json", "-q")
    one = printed(run, "detect", *given)
    assert one.keys() == said("`detect`")
    found = printed(run, "locate", *given)
    assert found.keys() == said("`locate`")
    assert found["config_hash"] == one["config_hash"]
    assert found["detection"].keys() < one.keys()
    passage = found["passages"][0].keys()
    assert {"start", "end", "text", "tokens", "key_fingerprint", "p_alone"} <= passage
    assert one["coverage"].keys() == {"extent", "share", "p_rest", "passages"} <= found.keys()
    Key(bytes(32)).save(tmp_path / "b.key")
    several = printed(run, "detect", *given, "--key", tmp_path / "b.key")
    assert several.keys() == said("`detect`, several keys")
    assert several["config_hash"] == one["config_hash"]  # of the key that fits
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": document.read_text(encoding="utf-8")}) + "\n")
    out = ("--key", key_file, *STRONG, "--jsonl", rows, "--out", tmp_path / "out.jsonl", "--json", "-q")
    assert printed(run, "detect", *out).keys() == said("`detect --out`")
    attacked = ("attack", "delete", "--in", rows, "--out", tmp_path / "b.jsonl", "--json", "-q")
    assert printed(run, *attacked).keys() == said("`attack --out`")


def test_quality(run, tiny, tmp_path):  # noqa: F811
    small = ("--texts", 2, "--answers", 0, "--tokens", 4, "--keys", 1)
    result = run("quality", "--continue", *small, "--out", tmp_path / "q", "--json", "-q")
    assert result.code in (1, 3), result.err  # two texts prove nothing
    assert json.loads(result.out).keys() == said("`quality`")


def test_reproduce(tiny_folder, tmp_path, capsys):  # noqa: F811
    assert main(command(tiny_folder, tmp_path / "out", "--json", *NO_REPORT)) == 0
    assert json.loads(capsys.readouterr().out).keys() == said("`reproduce`")


@pytest.mark.parametrize("name", sorted({"version", "out", "config_hash", "key_fingerprint", "looks"}))
def test_the_vocabulary_is_explained(name):
    assert re.search(rf"^\| [^|]*`{name}`", JSON_PAGE, re.M)
