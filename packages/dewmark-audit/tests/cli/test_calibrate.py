"""``dewmark calibrate``, and detection by rank among unmarked texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.command_line import SECRET, Result, assert_no_secret, json_lines, write_rows

from dewmark.core.keys import Key
from dewmark_audit.calibration import Calibration

pytestmark = pytest.mark.usefixtures("host", "numbers")

Z = np.linspace(-2.0, 2.0, 99)


def row(z: float) -> dict:
    return {"text": f"a secret text z={z} of somebody"}


@pytest.fixture
def negatives(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "neg.jsonl", [*map(row, Z), {"text": " "}, {"text": "brief z=9"}])


@pytest.fixture
def calibrate(run, key_file, negatives, tmp_path):
    def invoke(*arguments: object) -> Result:
        given = ("--key", key_file, "--negatives", negatives, "--out", tmp_path / "cal.json", *arguments)
        return run("calibrate", *given)

    return invoke


@pytest.fixture
def calibration(calibrate, tmp_path) -> Path:
    assert calibrate().code == 0
    return tmp_path / "cal.json"


@pytest.fixture
def detect(run, key_file, calibration):
    def invoke(*arguments: object) -> Result:
        return run("detect", "--key", key_file, "--calibration", calibration, *arguments)

    return invoke


class TestCalibrate:
    def test_the_file(self, calibration, key_file):
        made = Calibration.load(calibration)
        assert (made.scheme, made.test, made.too_short) == ("dew", "key", 2)
        assert made.key_fingerprint == Key(SECRET).fingerprint
        assert made.z == pytest.approx(Z)
        content = calibration.read_text(encoding="utf-8")
        assert_no_secret(content)
        assert "secret text" not in content

    def test_json_and_lines_have_the_thresholds(self, calibrate):
        (summary,) = json_lines(calibrate("--json"))
        assert (summary["negatives"], summary["too_short"]) == (99, 2)
        assert summary["thresholds"] == {"0.05": Z[-5], "0.01": Z[-1], "0.001": None}
        lines = calibrate().out.splitlines()
        assert lines[0].endswith("z of the key test of 99 texts, left out as too short: 2")
        assert lines[1:] == [
            "level 0.05: z above 1.84",
            "level 0.01: z above 2.00",
            "level 0.001: needs 999 texts",
        ]

    @pytest.mark.parametrize(
        ("last", "said"),
        [('{"language": "en"}', 'neg.jsonl, line 102 has no "text"'), ("{", "line 102: not a line of JSON")],
    )
    def test_a_bad_line_is_reported_before_models_load(self, calibrate, negatives, tmp_path, last, said):
        with negatives.open("a") as stream:
            stream.write(last + "\n")
        error = calibrate("--host", "nowhere").error
        assert said in error
        assert not (tmp_path / "cal.json").exists()

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [(["--out", "."], "is a folder"), (["--out", "NEG"], "--out is the file of negatives")],
    )
    def test_bad_options(self, calibrate, negatives, arguments, said):
        before = negatives.read_bytes()
        assert said in calibrate(*(negatives if word == "NEG" else word for word in arguments)).error
        assert negatives.read_bytes() == before

    def test_no_text_long_enough(self, calibrate, negatives):
        write_rows(negatives, [{"text": "brief z=1"}, {"text": ""}])
        assert "all 2 texts are too short" in calibrate("-q").error


class TestDetect:
    def test_ranks(self, detect, tmp_path):
        path = write_rows(tmp_path / "in.jsonl", [row(2.5), row(1.99), row(0.0)])
        found = json_lines(detect("--jsonl", path, "--json", "--test", "empirical"))
        assert [r["p_value"] for r in found] == [1 / 100, 2 / 100, (1 + int(np.sum(Z >= 0.0))) / 100]
        assert [r["verdict"] for r in found] == ["marked", "not_marked", "not_marked"]
        assert {r["test"] for r in found} == {"empirical"}
        out = detect("--jsonl", path).out
        assert "p = 0.01 (1 in 100 unmarked texts scores this high), z = 2.50" in out

    def test_too_short_stays_too_short(self, detect, tmp_path):
        path = write_rows(tmp_path / "in.jsonl", [{"text": "brief z=9"}, {"text": ""}])
        assert {(r["verdict"], r["p_value"]) for r in json_lines(detect("--jsonl", path, "--json"))} == {
            ("too_short", 1.0)
        }

    def test_too_few_negatives_for_the_level_give_a_warning(self, detect, tmp_path):
        path = write_rows(tmp_path / "in.jsonl", [row(9)])
        result = detect("--jsonl", path, "--fpr", "0.001", "--json", "-q")
        assert {r["verdict"] for r in json_lines(result)} == {"not_marked"}
        assert result.err == (
            "dewmark: warning: 99 negatives cannot reach the level 0.001: "
            "the smallest p-value is 1/100; calibrate on at least 999\n"
        )

    def test_detection_uses_the_calibrated_test(self, run, calibrate, key_file, tmp_path):
        assert calibrate("--test", "gaussian").code == 0
        text = tmp_path / "a.txt"
        text.write_text("z=1 and more")
        found = run("detect", "--key", key_file, "--calibration", tmp_path / "cal.json", text, "--json")
        assert json_lines(found)[0]["test"] == "empirical"

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--test", "key"], "a calibration is for the empirical test, not key"),
            (["--set", "k=4"], "made with config"),
        ],
    )
    def test_bad_options(self, detect, tmp_path, arguments, said):
        text = tmp_path / "a.txt"
        text.write_text("z=1 words")
        assert said in detect(text, *arguments).error
