"""The report of an audit, carried over to a detector."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dewmark import Key, load_scheme
from dewmark.batch.negatives import with_audit
from dewmark.errors import ArtifactError, ConfigError

BOUND = load_scheme(Key(bytes(32)))


def group(kind: str, name: str, mean: float, *, spread: float = 1.0) -> dict:
    return {"kind": kind, "group": name, "together": {"mean": mean, "sd": 0.1, "spread": spread}}


@pytest.fixture
def report(tmp_path: Path):
    def written(*groups: dict, **changed: object) -> Path:
        data = {"key_fingerprint": BOUND.fingerprint, "config_hash": BOUND.config_hash, "common": {}}
        (tmp_path / "audit.json").write_text(json.dumps({**data, "groups": groups, **changed}))
        return tmp_path / "audit.json"

    return written


def test_languages_that_are_trusted(report) -> None:
    every = group("all", "all texts", 0.0)
    groups = (every, group("language", "sw", 0.0), group("language", "cy", 1.7, spread=0.5))
    audited = with_audit(BOUND, report(*groups)).languages.audited
    assert audited - BOUND.languages.audited == {"sw"}
    alone = with_audit(BOUND, report(every, common={"language": "cy"})).languages.audited
    assert alone - BOUND.languages.audited == {"cy"}


def test_reports_that_do_not_fit(report) -> None:
    good = group("all", "all texts", 0.0)
    for changed, said in (
        ({"key_fingerprint": "ab"}, "is the audit of key ab"),
        ({"config_hash": "x"}, "another scheme"),
    ):
        with pytest.raises(ConfigError, match=said):
            with_audit(BOUND, report(good, **changed))
    with pytest.raises(ConfigError, match="use dewmark calibrate instead"):
        with_audit(BOUND, report({**good, "together": None}))


@pytest.mark.parametrize("content", ["", "[]", '{"groups": []}', '{"groups": [1]}'])
def test_other_files_are_reported(tmp_path: Path, content: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(content)
    with pytest.raises(ArtifactError, match=r"report.json is not an audit's report; make one with: dewmark"):
        with_audit(BOUND, path)
    with pytest.raises(ArtifactError, match="cannot read the audit"):
        with_audit(BOUND, tmp_path / "missing.json")
