"""The report of an audit, carried over to a detector."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dewmark import Key, load_scheme
from dewmark.batch.inputs import Document
from dewmark.core.whitening import normalize_rows
from dewmark.detect import Examined
from dewmark.errors import ArtifactError, ConfigError
from dewmark.scheme import make_detection
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.types import Looks
from dewmark_audit.negatives import Negatives, with_audit

BOUND = load_scheme(Key(bytes(32)))


def group(kind: str, name: str, mean: float, *, sd: float = 0.1, spread: float = 1.0) -> dict:
    return {"kind": kind, "group": name, "together": {"mean": mean, "sd": sd, "spread": spread}}


@pytest.fixture
def report(tmp_path: Path):
    def written(*groups: dict, **changed: object) -> Path:
        data = {"key_fingerprint": BOUND.fingerprint, "config_hash": BOUND.config_hash, "common": {}}
        (tmp_path / "audit.json").write_text(json.dumps({**data, "groups": groups, **changed}))
        return tmp_path / "audit.json"

    return written


def test_the_package_s_texts_do_not_depend_on_the_order_of_the_disk(monkeypatch) -> None:
    listed = Path.iterdir
    found = []
    for backwards in (False, True):
        monkeypatch.setattr(
            Path, "iterdir", lambda path, way=backwards: iter(sorted(listed(path), reverse=way))
        )
        found.append([document.id for document in Negatives.packaged().documents])
    assert found[0] == found[1]
    assert len({*found[0]}) == len(found[0]) > 100


def test_languages_that_are_trusted(report) -> None:
    every = group("all", "all texts", 0.0)
    groups = (every, group("language", "sw", 0.0), group("language", "cy", 1.7, spread=0.5))
    audited = with_audit(BOUND, report(*groups)).languages.audited
    assert audited - BOUND.languages.audited == {"sw"}
    alone = with_audit(BOUND, report(every, common={"language": "cy"})).languages.audited
    assert alone - BOUND.languages.audited == {"cy"}


@pytest.mark.parametrize(("sd", "trusted"), [(0.1, True), (0.3, False)])
def test_a_language_is_trusted_if_its_rate_is_bounded(report, sd: float, trusted: bool) -> None:
    """At 1% the estimate is 1.9% for both, and the limit 3%; the mean is below 0.25 + 1.645 sd with 95%."""
    found = group("language", "sw", 0.25, sd=sd)
    assert stats.norm.sf(stats.norm.isf(0.01) - 0.25) < 0.03
    assert bool(stats.norm.sf(stats.norm.isf(0.01) - 0.25 - 1.645 * sd) < 0.03) is trusted
    audited = with_audit(BOUND, report(group("all", "all texts", 0.0), found)).languages.audited
    assert ("sw" in audited) is trusted


def test_a_text_that_is_too_short_shifts_no_other_text() -> None:
    """An audit with such a text in front finds what it finds without it."""
    rng = np.random.default_rng(0)
    p = rng.uniform(size=60)
    directions = normalize_rows(rng.normal(size=(61, 40)) + 1.0 * (np.arange(61) % 3 == 0)[:, None])
    found = [
        make_detection(
            Evidence.independent(np.zeros(30), np.ones(30), np.arange(30)),
            Statistic(0.0, float(each), length),
            score=0.0,
            test="key",
            fpr=0.01,
            scheme="dew",
            fingerprint="ab",
        )
        for each, length in [(0.5, 3.0), *((each, 30.0) for each in p)]
    ]
    made = [
        Examined(each.verdict, each.p_value, 0, (each.p_value,), Looks(), 0.01, 1.0, (each,), each, None)
        for each in found
    ]
    documents = [Document("a text", number, language="en") for number in range(61)]
    (audited, texts), (without, _) = (
        Negatives(documents[first:]).audit(made[first:], directions[first:].astype(np.float32))
        for first in (0, 1)
    )
    assert len(texts) == 60
    assert audited.to_dict() == without.to_dict()
    assert audited.groups[0].together is not None


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
