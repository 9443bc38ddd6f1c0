"""``dewmark calibrate``, and detection by rank among unmarked texts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.command_line import SECRET, Result, assert_no_secret

from dewmark.core.keys import Key
from dewmark.stats.calibration import Calibration

pytestmark = pytest.mark.usefixtures("host", "numbers")

ENGLISH = np.linspace(-2.0, 2.0, 99)
GERMAN = ENGLISH + 1.0


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def row(z: float, language: str) -> dict:
    return {"text": f"a secret text z={z} of somebody", "language": language}


@pytest.fixture
def negatives(tmp_path: Path) -> Path:
    rows = [row(z, "en") for z in ENGLISH] + [row(z, "de") for z in GERMAN]
    return write_rows(
        tmp_path / "neg.jsonl",
        [*rows, {"text": " ", "language": "en"}, {"text": "brief z=9", "language": "xx"}],
    )


@pytest.fixture
def calibrate(run, key_file, negatives, tmp_path):
    def invoke(*arguments: object) -> Result:
        given = ("--key", key_file, "--negatives", negatives, "--out", tmp_path / "cal.json", *arguments)
        return run("calibrate", *given)

    return invoke


@pytest.fixture
def calibration(calibrate, tmp_path) -> Path:
    assert calibrate("--by", "language").code == 0
    return tmp_path / "cal.json"


@pytest.fixture
def detect(run, key_file, calibration):
    def invoke(*arguments: object) -> Result:
        return run("detect", "--key", key_file, "--calibration", calibration, *arguments)

    return invoke


def json_lines(result: Result) -> list[dict]:
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.out.split("\n")[:-1]]


class TestCalibrate:
    def test_the_file(self, calibration, key_file):
        made = Calibration.load(calibration)
        assert (made.scheme, made.test, made.by) == ("dew", "key", "language")
        assert made.key_fingerprint == Key(SECRET).fingerprint
        assert made.groups["en"] == pytest.approx(ENGLISH)
        assert made.groups["de"] == pytest.approx(GERMAN)
        assert list(made.groups) == ["de", "en"]
        assert made.too_short == 2

    def test_the_file_contains_no_key_and_no_text(self, calibration):
        content = calibration.read_text(encoding="utf-8")
        assert_no_secret(content)
        assert "secret text" not in content

    def test_json_has_the_thresholds(self, calibrate):
        (summary,) = json_lines(calibrate("--by", "language", "--json"))
        assert summary["groups"]["en"]["negatives"] == 99
        assert summary["groups"]["en"]["thresholds"] == {
            "0.05": ENGLISH[-5],
            "0.01": ENGLISH[-1],
            "0.001": None,
        }
        assert summary["pooled"]["negatives"] == 198
        assert summary["too_short"] == 2

    def test_plain_table(self, calibrate):
        lines = calibrate("--by", "language").out.splitlines()
        assert "texts left out as too short: 2" in lines[0]
        assert lines[1].split()[:2] == ["language", "negatives"]
        assert lines[2].split() == ["de", "99", "2.84", "3.00", "needs", "999"]
        assert lines[4].split()[:2] == ["all", "198"]
        assert [line.split()[0] for line in calibrate().out.splitlines()[1:]] == ["texts", "all"]

    def test_another_test_s_statistic(self, calibrate, tmp_path):
        assert calibrate("--test", "gaussian").code == 0
        assert Calibration.load(tmp_path / "cal.json").test == "gaussian"

    @pytest.mark.parametrize(
        ("last", "said"),
        [
            ('{"text": "z=1"}', 'neg.jsonl, line 201 has no "language"'),
            (
                '{"text": "z=1", "language": ["en"]}',
                "line 201: language must be text or a whole number, got list",
            ),
            ('{"language": "en"}', 'line 201 has no "text"'),
            ("{", "line 201: not a line of JSON"),
        ],
    )
    def test_a_bad_line_is_reported_before_models_are_loaded(
        self, calibrate, negatives, tmp_path, last, said
    ):
        with negatives.open("a") as stream:
            stream.write(last + "\n")
        error = calibrate("--by", "language", "--host", "nowhere").error
        assert said in error
        assert not (tmp_path / "cal.json").exists()

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--test", "magic"], "unknown test 'magic'; known: gaussian, key"),
            (["--test", "empirical"], "unknown test 'empirical'"),
            (["--scheme", "none"], "no mark to detect"),
            (["--host", "nowhere"], "no model 'nowhere'"),
            (["--detector", "somewhere"], "leave out key"),
            (["--negatives", "missing.jsonl"], "cannot read missing.jsonl"),
            (["--out", "."], "is a folder"),
            (["--out", "NEG"], "--out is the file of negatives"),
            (["--set", "gama=1"], "unknown parameter 'gama'"),
        ],
    )
    def test_bad_options(self, calibrate, negatives, arguments, said):
        before = negatives.read_bytes()
        assert said in calibrate(*(negatives if word == "NEG" else word for word in arguments)).error
        assert negatives.read_bytes() == before

    def test_no_text_long_enough(self, calibrate, negatives):
        write_rows(negatives, [{"text": "brief z=1"}, {"text": ""}])
        assert "all 2 texts are too short" in calibrate("-q").error


class TestDetect:
    def test_ranks_by_group_and_pooled(self, detect, tmp_path):
        path = write_rows(tmp_path / "in.jsonl", [row(2.5, "en"), row(2.5, "de"), row(9, "de")])
        grouped = json_lines(detect("--jsonl", path, "--by", "language", "--json", "--test", "empirical"))
        higher = int(np.sum(GERMAN >= 2.5))
        assert [r["p_value"] for r in grouped] == [1 / 100, (1 + higher) / 100, 1 / 100]
        assert [r["verdict"] for r in grouped] == ["marked", "not_marked", "marked"]
        assert {r["test"] for r in grouped} == {"empirical"}
        pooled = json_lines(detect("--jsonl", path, "--json"))
        assert [r["p_value"] for r in pooled] == pytest.approx([(1 + higher) / 199] * 2 + [1 / 199])

    def test_a_text_file_and_a_group(self, detect, tmp_path):
        text = tmp_path / "a.txt"
        text.write_text("ordinary words z=2.5 and more")
        (found,) = json_lines(detect(text, "--group", "en", "--json"))
        assert (found["p_value"], found["z"]) == (0.01, 2.5)
        assert (
            "p = 0.01 (1 in 100 unmarked texts scores this high), z = 2.50"
            in detect(text, "--group", "en").out
        )

    def test_too_short_stays_too_short(self, detect, tmp_path):
        path = write_rows(tmp_path / "in.jsonl", [{"text": "brief z=9"}, {"text": ""}])
        assert {(r["verdict"], r["p_value"]) for r in json_lines(detect("--jsonl", path, "--json"))} == {
            ("too_short", 1.0)
        }

    def test_too_few_negatives_for_the_level_give_a_warning(self, detect, tmp_path):
        path = write_rows(tmp_path / "in.jsonl", [row(9, "en"), row(9, "de")])
        result = detect("--jsonl", path, "--by", "language", "--fpr", "0.001", "--json", "-q")
        assert {r["verdict"] for r in json_lines(result)} == {"not_marked"}
        assert result.err.splitlines() == [
            f"dewmark: warning: 99 negatives of language {name} cannot reach the level 0.001: "
            "the smallest p-value is 1/100; calibrate on at least 999"
            for name in ("de", "en")
        ]

    def test_detection_uses_the_calibrated_test(self, run, calibrate, key_file, tmp_path):
        assert calibrate("--test", "gaussian").code == 0
        text = tmp_path / "a.txt"
        text.write_text("z=1 and more")
        found = run("detect", "--key", key_file, "--calibration", tmp_path / "cal.json", text, "--json")
        assert json_lines(found)[0]["test"] == "empirical"

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--jsonl", "ROWS", "--by", "genre"], 'line 1 has no "genre"'),
            (["--jsonl", "ROWS", "--group", "nl"], "unknown language 'nl'; known: de, en"),
            (["--jsonl", "ROWS", "--by", "language", "--group", "en"], "give only one"),
            (["TEXT", "--by", "language"], "use --group NAME"),
            (["TEXT", "--test", "key"], "a calibration is for the empirical test, not key"),
            (["TEXT", "--set", "k=4"], "made with other settings or another host"),
        ],
    )
    def test_bad_options(self, detect, tmp_path, arguments, said):
        rows, text = write_rows(tmp_path / "in.jsonl", [row(1, "en")]), tmp_path / "a.txt"
        text.write_text("z=1 words")
        names = {"ROWS": rows, "TEXT": text}
        assert said in detect(*(names.get(word, word) for word in arguments)).error

    def test_a_group_without_negatives_is_reported_before_scoring(self, detect, tmp_path):
        path = write_rows(tmp_path / "in.jsonl", [row(1, "en")] * 50 + [row(1, "fr")])
        error = detect("--jsonl", path, "--by", "language", "--host", "nowhere").error
        assert "unknown language 'fr'" in error
