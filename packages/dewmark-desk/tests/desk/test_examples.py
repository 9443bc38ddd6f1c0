"""The example: two paragraphs are worded so that a detector finds its mark in them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import pytest
from tests.desk.compose_example import composed
from tests.desk.conftest import bearer
from tests.desk.live import bound, plain_text

from dewmark.detect import score_text
from dewmark.detector import Detector
from dewmark.errors import ArtifactError
from dewmark.types import Detection, Verdict
from dewmark_audit.strength import Strength
from dewmark_desk.tenants import MeasuredPower, example_text, open_demonstration, read_power, unmarked_text

NOTHING = Detection(Verdict.NOT_MARKED, 1.0, 0.0, 0.0, 50.0, 50, "key", 0.01, "dew", "f0")
LIKED = {"stone", "harbour", "stands", "beneath", "rocky", "cliff", "boats", "sailors", "nets", "mayor"}


def likes(texts: Sequence[str]) -> list[Detection]:
    """A detector that counts the words that it likes."""
    words = ([word.strip(".,:").lower() for word in text.split()] for text in texts)
    return [dataclasses.replace(NOTHING, z=float(sum(word in LIKED for word in row))) for row in words]


def test_wording_is_the_one_that_scores_highest():
    paragraphs = composed(likes).split("\n\n")
    assert len(paragraphs) == 6
    assert paragraphs[1].startswith("The stone harbour stands beneath a rocky cliff, and its ")
    assert "sailors" in paragraphs[1]
    assert "nets" in paragraphs[1]
    assert "the mayor " in paragraphs[2]
    assert not set("{|}") & set("".join(paragraphs))
    assert all(each[0].isupper() and each.endswith(".") for each in paragraphs)
    assert composed(likes) == "\n\n".join(paragraphs)
    assert unmarked_text().startswith("Call me Ishmael.")


def test_example_carries_the_mark_of_the_demonstration_key_only(open_service):
    client = open_service(tenants=("acme", "beta"))
    given = client.get("/v1/example").json()
    assert given == {"tenant": "demonstration", "marked": example_text(), "unmarked": unmarked_text()}
    asked = {"text": given["marked"], "tenants": [given["tenant"]]}
    (found,) = client.post("/v1/detect", json=asked).json()["results"]
    assert (found["verdict"], found["tenant"], found["keys"]) == ("marked", "demonstration", 1)
    assert found["carrying"] == score_text(open_demonstration().bound, given["marked"]).carrying > 0.9
    (nothing,) = client.post("/v1/detect", json={"text": given["marked"]}).json()["results"]
    assert nothing["tenant"] in ("acme", "beta")
    for path, body in (("/v1/reports", asked), ("/v1/batches", {**asked, "texts": [{"text": "a"}]})):
        body.pop("text", None) if path == "/v1/batches" else None
        assert client.post(path, json=body).status_code == 404


def test_a_stranger_is_not_told_how_many_words_can_carry_the_mark(client):
    acme = client.service.tenants["acme"]
    client.service.tenants["acme"] = dataclasses.replace(acme, bound=open_demonstration().bound)
    for scope, told in (("detect", True), ("detect-public", False)):
        asked = client.post("/v1/detect", json={"text": example_text()}, headers=bearer(client, scope))
        assert (asked.json()["results"][0]["carrying"] is not None) == told


def test_example_needs_the_scope_detect(client):
    for scope, status in (("generate", 403), ("detect-public", 403), ("detect", 200)):
        assert client.get("/v1/example", headers=bearer(client, scope)).status_code == status
    public = {"text": example_text(), "tenants": ["demonstration"]}
    assert client.post("/v1/detect", json=public, headers=bearer(client, "detect-public")).status_code == 403


def test_unmarked_text_gets_the_measured_power(open_service):
    client = open_service(tenants=("acme", "beta"))
    strength = Strength(0.15, 0.0, 40)
    for id_, tenant in client.service.tenants.items():
        measured = MeasuredPower(strength, "host", own=True)
        client.service.tenants[id_] = dataclasses.replace(tenant, power=measured)
    (one,) = client.post("/v1/detect", json={"text": plain_text(), "tenants": ["acme"]}).json()["results"]
    assert one["level_of_whole"] == pytest.approx(1 - 0.99**0.5)  # either of two keys
    share = strength.found(one["effective_length"], fpr=one["level_of_whole"])
    assert share < 40 / 41
    known = {"host": "host", "texts": 40, "own": True, "language": None}
    assert one["power"] == {"found_in_100": int(100 * share), **known}
    sure = MeasuredPower(Strength(9.0, 0.0, 40), "host", own=True)
    assert sure.found_in_100(100.0, level=0.01)["found_in_100"] == 97  # 40 texts do not show more
    many = MeasuredPower(Strength(9.0, 0.0, 4000), "host", own=True)
    assert many.found_in_100(100.0, level=0.01)["found_in_100"] == 99  # nor do 4,000 show that none is missed
    (short,) = client.post("/v1/detect", json={"text": "the old bridge"}).json()["results"]
    assert (short["power"], short["leaves_no_room"]) == (None, False)
    (full,) = client.post("/v1/detect", json={"text": "the old bridge " * 40}).json()["results"]
    assert (full["verdict"], full["leaves_no_room"]) == ("too_short", True)


def test_packaged_example_fits_the_default_scheme():
    detector = Detector(open_demonstration().bound)
    found = [detector.detect(each).z for each in example_text().split("\n\n")]
    assert min(found[1:3]) > 4.0  # if this fails: python -m tests.desk.compose_example
    assert detector.detect(example_text()).is_marked


def test_power_is_read_from_the_detectors_folder(tmp_path):
    detector = bound("acme")
    assert read_power(detector) is None  # the package measured other settings
    measured = {"scheme": "dew-paper", "config": detector.scheme.to_dict(), "host": "ours"}
    strength = {"mean": 0.2, "spread": 0.1, "texts": 64}
    (tmp_path / "power.json").write_text(json.dumps({**measured, "strength": strength}))
    found = read_power(detector, tmp_path)
    assert found is not None
    assert (found.host, found.own, found.strength.texts) == ("ours", True, 64)
    for bad in ({**measured, "strength": {}}, {**measured, "strength": strength, "config": {}}):
        (tmp_path / "power.json").write_text(json.dumps(bad))
        with pytest.raises(ArtifactError, match=r"dewmark power --out"):
            read_power(detector, tmp_path)
