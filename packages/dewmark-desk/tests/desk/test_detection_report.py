"""What a signed report says of a text's origin."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

from dewmark.dew.scheme import DEW
from dewmark.types import Detection, ForgeryTest, Verdict
from dewmark_desk.detection_report import REPORT, render_report, report_claims
from dewmark_desk.signing import SigningKey, verify

BOUND = SimpleNamespace(scheme=DEW(), config_hash="0" * 8)
MARKED = Detection(
    verdict=Verdict.MARKED,
    p_value=1e-9,
    z=7.0,
    score=0.5,
    effective_length=80.0,
    tokens_scored=90,
    tokens=(),
    fpr=0.01,
    test="key",
    scheme="dew",
    key_fingerprint="feed",
)


def claims_of(found: Detection) -> dict:
    return report_claims("a text", found.to_dict(), BOUND, said="marked")


def test_member_payload_epoch_and_attribution_are_signed_and_shown() -> None:
    held = ForgeryTest(attributable=True, z_head=5.0, z_tail=5.0, p_tail=1e-7, p_alike=0.5)
    found = dataclasses.replace(
        MARKED, member=35, payload=9, payload_confidence=0.999, epoch="2027q1", forgery=held
    )
    claims = claims_of(found)
    assert claims["attribution"]["epoch"] == "2027q1"
    assert claims["origin"] == {
        "member": 35,
        "payload": 9,
        "payload_confidence": 0.999,
        "attributable": True,
        "p_value_of_tail": 1e-7,
    }
    key = SigningKey.generate()
    document = key.sign(claims, kind=REPORT)
    page = render_report(verify(document, [key.public]), document)
    assert "the key’s holder, member 35, payload 9" in page
    learned = dataclasses.replace(found, forgery=dataclasses.replace(held, attributable=False))
    document = key.sign(claims_of(learned), kind=REPORT)
    assert "somebody who learned the mark" in render_report(verify(document, [key.public]), document)


def test_an_unmarked_text_has_no_origin() -> None:
    found = dataclasses.replace(MARKED, verdict=Verdict.NOT_MARKED, p_value=0.5)
    assert claims_of(found)["origin"] is None
    plain = claims_of(MARKED)["origin"]
    assert plain["attributable"] is None
    assert plain["member"] is None
