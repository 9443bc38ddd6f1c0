"""Empirical calibration: ranks that hold for every N, files that survive, calibrations that do not fit."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import dewmark
from dewmark.errors import ArtifactError, ConfigError, NumericalError
from dewmark.types import Detection, Verdict
from dewmark_audit.calibration import Calibration, negatives_needed

HASH, KEY = "0123456789abcdef", "feedfacecafebeef"


def detection(z: float, *, fpr: float = 0.01, **changes: object) -> Detection:
    made = Detection(Verdict.NOT_MARKED, 0.5, z, 0.1, 90.0, 120, "key", fpr, "dew", KEY)
    return dataclasses.replace(made, **changes)


def calibrate(values) -> Calibration:
    return Calibration.from_detections((detection(float(z)) for z in values), config_hash=HASH)


class TestRanks:
    def test_the_definition(self):
        calibration = calibrate([3.0, 1.0, 2.0, 2.0])
        p = [calibration.p_value(z) for z in (0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.1)]
        assert p == [5 / 5, 5 / 5, 4 / 5, 4 / 5, 2 / 5, 2 / 5, 1 / 5]

    @pytest.mark.parametrize("n", [1, 9, 19, 50])
    def test_every_order_of_exchangeable_scores_gives_each_p_value_once(self, n):
        """Exact, not simulated: of N + 1 distinct scores each may be the text, and p runs through k/(N+1)."""
        scores = np.random.default_rng(n).normal(size=n + 1)
        p = [calibrate(np.delete(scores, i)).p_value(scores[i]) for i in range(n + 1)]
        assert sorted(p) == pytest.approx([k / (n + 1) for k in range(1, n + 2)])
        for level in (0.05, 0.1, 0.3):  # valid at every level, and tight to less than 1/(N + 1)
            share = np.mean(np.array(p) <= level)
            assert level - 1 / (n + 1) < share <= level + 1e-12

    @pytest.mark.parametrize("values", [3, 10])
    def test_ties_are_conservative(self, values):
        scores = np.random.default_rng(values).integers(0, values, size=60).astype(float)
        p = np.array([calibrate(np.delete(scores, i)).p_value(scores[i]) for i in range(60)])
        for level in np.arange(1, 61) / 60:
            assert np.mean(p <= level) <= level + 1e-12

    def test_a_detection_has_its_rank_as_p_value_unless_its_text_is_too_short(self):
        calibration = calibrate(range(19))
        marked, unmarked = (calibration.apply(detection(z, fpr=0.05)) for z in (30.0, 17.5))
        assert (marked.verdict, marked.p_value) == (Verdict.MARKED, 1 / 20)
        assert (unmarked.verdict, unmarked.p_value) == (Verdict.NOT_MARKED, 2 / 20)
        short = calibration.apply(detection(30.0, fpr=0.05, verdict=Verdict.TOO_SHORT))
        assert (short.verdict, short.p_value) == (Verdict.TOO_SHORT, 1.0)
        assert {each.test for each in (marked, unmarked, short)} == {"empirical"}

    def test_nan_has_no_rank(self):
        with pytest.raises(NumericalError, match="NaN"):
            calibrate([1.0]).p_value(math.nan)


class TestThresholds:
    @pytest.mark.parametrize("n", [1, 99, 100])
    @pytest.mark.parametrize("fpr", [0.005, 0.01, 0.29])
    def test_threshold_and_p_value_agree(self, n, fpr):
        values = np.round(np.random.default_rng(n).normal(size=n), 1)
        calibration = calibrate(values)
        threshold = calibration.threshold(fpr)
        for z in (*values, *(values + 0.05), -9.0, 9.0):
            assert (calibration.p_value(z) <= fpr) == (z > threshold)
        assert math.isinf(threshold) == (n < negatives_needed(fpr))

    @pytest.mark.parametrize(
        ("fpr", "needed"),
        [(0.5, 1), (0.05, 19), (0.01, 99), (0.001, 999), (1e-6, 999_999), (0.07, 14), (0.9, 1)],
    )
    def test_how_many_negatives_a_level_needs(self, fpr, needed):
        assert negatives_needed(fpr) == needed
        assert 1 / (needed + 1) <= fpr
        assert needed == 1 or 1 / needed > fpr


class TestFiles:
    def test_a_file_gives_back_the_same_ranks(self, tmp_path: Path):
        made = calibrate(np.random.default_rng(0).normal(size=50))
        path = tmp_path / "new folder" / "cal.json"
        made.save(path)
        read = Calibration.load(path)
        assert (read.scheme, read.test, read.config_hash, read.key_fingerprint) == ("dew", "key", HASH, KEY)
        assert read.z.tolist() == made.z.tolist()

    def test_it_stores_no_key_and_no_text(self, tmp_path: Path):
        path = tmp_path / "cal.json"
        calibrate([1.0, 2.0]).save(path)
        assert json.loads(path.read_text()) == {
            "format": "dewmark-calibration-v2",
            "scheme": "dew",
            "test": "key",
            "config_hash": HASH,
            "key_fingerprint": KEY,
            "z": [1.0, 2.0],
            "too_short": 0,
            "version": dewmark.__version__,
        }

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"format": "dewmark-calibration-v0"}, "not a calibration that this version can read"),
            ({"z": [1, "x"]}, "is damaged"),
            ({"z": [2.0, 1.0]}, "z finite and ascending"),
            ({"z": [math.nan]}, "z finite and ascending"),
            ({"scheme": None}, "names must be text"),
            ({"config_hash": ...}, "config_hash"),
            ({"more": 1}, "more"),
        ],
    )
    def test_damaged_files(self, tmp_path: Path, change, said):
        path = tmp_path / "cal.json"
        calibrate([1.0, 2.0]).save(path)
        content = {**json.loads(path.read_text()), **change}
        path.write_text(json.dumps({name: value for name, value in content.items() if value is not ...}))
        with pytest.raises(ArtifactError, match=re.escape(said)) as raised:
            Calibration.load(path)
        assert "\n" not in str(raised.value)

    @pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"text": "x"}'])
    def test_other_files_are_rejected(self, tmp_path: Path, data):
        path = tmp_path / "cal.json"
        path.write_bytes(data)
        with pytest.raises(ArtifactError, match="dewmark calibrate"):
            Calibration.load(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key_fingerprint": "0" * 16}, f"made with key {KEY}, not {'0' * 16}"),
        ({"scheme": "kgw"}, "made with scheme dew, not kgw"),
        ({"config_hash": "f" * 16}, f"made with config {HASH}, not "),
    ],
)
def test_a_calibration_of_something_else_is_rejected(change, said):
    belongs = {"scheme": "dew", "config_hash": HASH, "key_fingerprint": KEY}
    calibrate([1.0]).check(**belongs)
    with pytest.raises(ConfigError, match=re.escape(said)):
        calibrate([1.0]).check(**{**belongs, **change})


def test_a_calibration_of_another_version_is_rejected():
    old = dataclasses.replace(calibrate([1.0]), version="0.0.1")
    with pytest.raises(ConfigError, match=r"made with dewmark 0\.0\.1, not "):
        old.check(scheme="dew", config_hash=HASH, key_fingerprint=KEY)
