"""``dewmark rewrite``: output, files, exit codes and mistakes, without models."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.rewrite.test_rewriting import FEW, TEXT

from dewmark import Key
from dewmark.cli.app import main

PLAIN = ("--judge", "none", "--similarity", "-1", "--synonyms", str(FEW), "-q")
FIELDS = next(
    line
    for line in (Path(__file__).parents[4] / "docs" / "json.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| `rewrite` |")
)


@pytest.fixture
def files(tmp_path):
    Key(bytes(range(32))).save(tmp_path / "k.key")
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


def run(files, *arguments: object) -> int:
    return main(["rewrite", "--key", f"{files}/k.key", *map(str, arguments)])


def test_the_text_alone_goes_to_stdout(files, capfd):
    assert run(files, files / "a.txt", *PLAIN) == 0
    printed = capfd.readouterr().out
    assert printed != TEXT
    assert len(printed.split()) == pytest.approx(len(TEXT.split()), abs=12)


def test_json_has_the_documented_fields_and_no_key(files, capfd):
    assert run(files, files / "a.txt", "--json", *PLAIN) == 0
    row = json.loads(capfd.readouterr().out)
    assert row.keys() == set(re.findall(r"`([a-z_]+)`", FIELDS.split("|")[2]))
    assert bytes(range(32)).hex() not in json.dumps(row)
    assert row["changed"] <= 0.1 * row["words"]


def test_the_policy_log_names_key_and_member_but_neither_text_nor_secret(files, capfd):
    Key(bytes(range(32)), members=16).save(files / "r.key")
    for _ in range(2):
        main(["rewrite", "--key", f"{files}/r.key", f"{files}/a.txt", "--policy-log", f"{files}/l", *PLAIN])
    lines = (files / "l").read_text(encoding="utf-8").splitlines()
    row = json.loads(lines[0])
    assert len(lines) == 2
    assert (files / "l").stat().st_mode & 0o777 == 0o600
    assert row["key_fingerprint"] == Key.load(files / "r.key").fingerprint
    assert row["member"] in range(16)
    assert row["marked"] is True
    assert row["characters"] == len(capfd.readouterr().out) // 2
    assert "text" not in row
    assert bytes(range(32)).hex() not in lines[0]


def test_a_diff_shows_every_change(files, capfd):
    assert run(files, files / "a.txt", "--diff", "--budget", "5%", *PLAIN) == 0
    printed = capfd.readouterr().out
    assert re.sub(r"\[-(.*?)-\]\{\+.*?\+\}", r"\1", printed).strip() == TEXT.strip()
    assert "{+" in printed


def test_a_p_value_that_is_asked_for_and_not_reached_is_a_failure(files, capfd):
    assert run(files, files / "a.txt", "--target-p", "1e-9", "--out", files / "b.txt", *PLAIN) == 1
    assert (files / "b.txt").read_text(encoding="utf-8") != TEXT


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.txt"], "cannot read none.txt"),
        (["a.docx"], "is a Word document: add --out"),
        (["a.txt", "--budget", "much"], "--budget takes a share"),
        (["a.txt", "--payload", "x"], "--payload takes a whole number"),
        (["a.txt", "--engine", "magic"], "engine must be"),
        (["a.txt", "--json", "--diff"], "choose one"),
        (["a.txt", "--review"], "--review asks on a terminal"),
        (["a.txt", "--endpoint", "http://x/v1"], "name of its model"),
    ],
)
def test_mistakes_are_one_line(files, capfd, arguments, said):
    assert run(files, *arguments, *PLAIN) == 2
    assert said in capfd.readouterr().err
