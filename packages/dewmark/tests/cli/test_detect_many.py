"""``dewmark detect`` with many texts and many keys: corrected p-values, streaming, the best key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.command_line import MARK, SECRET, StubBound, json_lines

from dewmark.core.keys import Key
from dewmark.stats.multiple_testing import benjamini_hochberg

Z = [3.5, 0.2, 2.6, -1.0, 2.4]


def write_rows(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "in.jsonl", [f"words z={z} words" for z in Z] + ["brief z=9 words", " "])


class TestManyTexts:
    @pytest.fixture(autouse=True)
    def _numbers(self, numbers):
        """Texts say their own z."""

    def test_json_has_the_adjusted_value(self, detect, rows):
        found = json_lines(detect("--jsonl", rows, "--json"))
        assert [row["id"] for row in found] == [str(i) for i in range(7)]
        p = [row["p_value"] for row in found[:5]]
        assert [row["p_adjusted"] for row in found[:5]] == pytest.approx(benjamini_hochberg(p).tolist())
        # texts that are too short are not tested, so they do not count among the tests
        assert [row["verdict"] for row in found[5:]] == ["too_short", "too_short"]
        assert [row["p_adjusted"] for row in found[5:]] == [None, None]

    def test_lines_have_q_and_a_summary(self, detect, rows):
        *lines, summary = detect("--jsonl", rows).out.splitlines()
        q = benjamini_hochberg([row["p_value"] for row in json_lines(detect("--jsonl", rows, "--json"))[:5]])
        assert [line.rpartition("q = ")[2] for line in lines[:5]] == [f"{value:.2g}" for value in q]
        assert not any("q =" in line for line in lines[5:])
        assert summary == (
            "3 of 7 texts marked at level 0.01; 1 with q ≤ 0.01 (Benjamini-Hochberg over 5 texts)"
        )

    def test_streamed_rows_are_printed_while_scoring(self, detect, rows, monkeypatch, capsys):
        monkeypatch.setattr("dewmark.batch.scorers._BATCH_SIZE", 1)
        printed: list[str] = []
        original = StubBound.whole

        def spy(self, readings, **rest):
            printed.append(capsys.readouterr().out)
            return original(self, readings, **rest)

        monkeypatch.setattr(StubBound, "whole", spy)
        assert detect("--jsonl", rows, "--json").out.count("\n") == 7
        assert "".join(printed) == ""
        printed.clear()
        monkeypatch.setattr("dewmark.cli.detect._HELD", 6)  # the file has 7 rows
        detect("--jsonl", rows, "--json")
        assert [text.count("\n") for text in printed[1:]] == [1] * 5
        assert "p_adjusted" not in "".join(printed)

    @pytest.mark.parametrize("arguments", [["--tokens"], []])
    def test_the_summary_of_streamed_json_goes_to_stderr(self, detect, rows, monkeypatch, arguments):
        monkeypatch.setattr("dewmark.cli.detect._HELD", 10 if arguments else 6)
        result = detect("--jsonl", rows, "--json", *arguments)
        assert all("verdict" in row and "p_adjusted" not in row for row in json_lines(result))
        assert result.err.endswith("1 with q ≤ 0.01 (Benjamini-Hochberg over 5 texts)\n")
        assert detect("--jsonl", rows, "--json", "-q", *arguments).err == ""


KEYS = {"a": bytes(32), "b": SECRET, "c": bytes([7] * 32)}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    for name, secret in KEYS.items():
        Key(secret).save(folder / f"{name}.key")
    (folder / "readme.txt").write_text("not a key")
    return folder


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    marks = [f"{MARK}{Key(KEYS[name]).fingerprint[:4]}" for name in ("b", "c")]
    return write_rows(
        tmp_path / "in.jsonl",
        [*(f"a text that says {mark} in some place" for mark in marks), "an ordinary text of a person", ""],
    )


class TestManyKeys:
    def test_the_key_is_named_and_the_p_value_corrected(self, run, host, keys, texts):
        found = json_lines(run("detect", "--keys", keys, "--jsonl", texts, "--json"))
        assert [row["verdict"] for row in found] == ["marked", "marked", "not_marked", "too_short"]
        assert [Path(row["key_file"]).name for row in found[:2]] == ["b.key", "c.key"]
        assert [row["key_fingerprint"] for row in found[:2]] == [Key(KEYS[k]).fingerprint for k in "bc"]
        assert found[0]["p_value"] == pytest.approx(1 - (1 - 1e-6) ** 3, rel=1e-6)
        assert found[0]["p_value_of_key"] == 1e-6
        assert found[2]["p_value"] == pytest.approx(1 - 0.6**3)
        assert {row["keys"] for row in found} == {3}
        assert (found[3]["p_value"], found[3]["p_adjusted"]) == (1.0, None)

    def test_plain_output(self, run, host, keys, texts):
        first, _, third, fourth, _ = run("detect", "--keys", keys, "--jsonl", texts).out.splitlines()
        assert "marked: p = 3e-06 (1 in 330,000 keys would score this text so high), z = 4.75" in first
        assert f", key {keys}/b.key ({Key(SECRET).fingerprint}), corrected for 3 keys, q = " in first
        assert f", best of 3 keys: {keys}/a.key" in third
        assert ".key" not in fourth

    def test_several_key_options(self, run, host, keys, texts):
        arguments = [word for name in "ab" for word in ("--key", keys / f"{name}.key")]
        found = json_lines(run("detect", *arguments, "--jsonl", texts, "--json"))
        assert [row["verdict"] for row in found[:2]] == ["marked", "not_marked"]
        assert found[0]["keys"] == 2
        both = json_lines(run("detect", "--key", keys / "a.key", "--jsonl", texts, "--json"))
        assert "keys" not in both[0]

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--keys", "EMPTY"], "has no key: expected files named *.key"),
            (["--keys", "KEYS", "--key", "KEYS/a.key"], "are the same key"),
            (["--key", "KEYS/a.key", "--key", "KEYS/a.key"], "are the same key"),
            (["--key", "KEYS/a.key", "--key", "KEYS/d.key"], "no key file"),
            (["--keys", "KEYS", "--calibration", "cal.json"], "a calibration belongs to one key"),
        ],
    )
    def test_bad_options(self, run, host, keys, texts, tmp_path, arguments, said):
        (tmp_path / "empty").mkdir()
        given = [
            word.replace("KEYS", str(keys)).replace("EMPTY", str(tmp_path / "empty")) for word in arguments
        ]
        assert said in run("detect", "--jsonl", texts, *given).error


@pytest.mark.filterwarnings("default")
def test_rows_of_another_scheme_are_a_warning(detect, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"text": "some words", "scheme": name}) + "\n" for name in ("none", "dew", "kgw"))
    )
    said = detect("--jsonl", rows, "--json", "-q").err
    assert (
        said.count("warning: row 2 was marked by kgw, and dew will not find that mark: add --scheme kgw") == 1
    )
