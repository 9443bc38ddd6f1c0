"""An audit's report carried over to texts that are detected later."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from scipy import stats

from dewmark.batch.audit_report import AuditReport
from dewmark.errors import ArtifactError
from dewmark.stats.audit import length_band
from dewmark.types import Detection, Verdict


def group(kind: str, name: str, mean: float, *, spread: float = 1.0, sd: float = 0.0) -> dict:
    together = {"r": 0.1, "mean": mean, "sd": sd, "spread": spread}
    return {
        "kind": kind,
        "group": name,
        "texts": 40,
        "verdict": "?",
        "trusted_from": None,
        "together": together,
    }


@pytest.fixture
def report(tmp_path: Path) -> AuditReport:
    groups = [
        group("all", "all texts", 0.0),
        group("language", "en", 0.0),
        group("language", "cy", 1.7, spread=0.5, sd=0.1),
        group("length", length_band(150), 0.1),
        group("kind", "logs", 2.0),
        {**group("length", length_band(700), 0.0), "together": None},
    ]
    data = {"key_fingerprint": "ab", "config_hash": "cd", "common": {}, "groups": groups}
    (tmp_path / "audit.json").write_text(json.dumps(data), encoding="utf-8")
    return AuditReport.load(tmp_path)


def detection(z: float, language: str | None = "en", *, tokens: int = 150, fpr: float = 0.01) -> Detection:
    p = float(stats.norm.sf(z))
    found = Detection(Verdict.MARKED, p, z, 0.0, 100.0, tokens, "key", fpr, "dew", "ab")
    return dataclasses.replace(found, language=language)


def test_the_least_favourable_group_counts(report: AuditReport) -> None:
    english = report.level_of(detection(3.0))
    assert english is not None
    assert english.group.kind == "length"
    assert english.share == pytest.approx(stats.norm.sf(2.9))
    assert english.trusted
    welsh = report.level_of(detection(3.0, "cy"))
    assert welsh is not None
    assert welsh.share == pytest.approx(stats.norm.sf(1.3 / 0.5))
    assert welsh.high == pytest.approx(stats.norm.sf((1.3 - 0.1 * stats.norm.isf(0.05)) / 0.5))
    assert not welsh.trusted
    logs = report.level_of(detection(3.0), kind="logs")
    assert logs is not None
    assert logs.group.group == "logs"


def test_words(report: AuditReport) -> None:
    welsh = report.level_of(detection(3.0, "cy"))
    assert welsh is not None
    assert welsh.sentence == (
        "under this key, about 1 in 210 unmarked texts in Welsh scores so high, at most 1 in 86 "
        "(audit of 40 such texts); this key's alarms on such texts cannot be trusted"
    )


def test_nothing_is_said_of_other_languages(report: AuditReport) -> None:
    assert report.level_of(detection(3.0, "fi")) is None
    undetermined = report.level_of(detection(3.0, None))
    assert undetermined is not None
    assert undetermined.group.kind == "length"
    assert report.level_of(detection(3.0, None, tokens=700)) is None


def test_languages_that_are_trusted(report: AuditReport) -> None:
    assert report.languages(level=0.01) == {"en"}
    all_french = dataclasses.replace(report, common={"language": "fr"}, groups=report.groups[:1])
    assert all_french.languages(level=0.01) == {"fr"}
    level = all_french.level_of(detection(3.0, "fr"))
    assert level is not None
    assert "unmarked texts like those audited" in level.sentence
    assert all_french.level_of(detection(3.0, "en")) is None


@pytest.mark.parametrize("content", ["", "[]", '{"groups": []}', '{"groups": [1]}'])
def test_other_files_are_reported(tmp_path: Path, content: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(content)
    with pytest.raises(ArtifactError, match=r"report.json is not an audit's report; make one with: dewmark"):
        AuditReport.load(path)
    with pytest.raises(ArtifactError, match="cannot read the audit"):
        AuditReport.load(tmp_path / "missing.json")
