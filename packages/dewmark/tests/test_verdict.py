"""The one verdict: what it pays for, and what it still says of a text's origin."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dewmark.types import Detection, ForgeryTest, Looks, Verdict
from dewmark.verdict import (
    LEAST_P,
    ORIGIN_SHARE,
    WHOLE_SHARE,
    corrected,
    decide,
    level_of_key,
    names_origin,
    verdict_of,
)

FPR = 1e-4


def found(p: float, *, length: float = 100.0, fpr: float = FPR, p_form: float | None = None) -> Detection:
    verdict = verdict_of(p, length, fpr)
    made = Detection(verdict, p, 3.0, 0.0, length, 100, "key", fpr, "dew", "a1b2")
    if p_form is None or not names_origin(p, fpr):
        return made
    forgery = ForgeryTest(p_form <= fpr, 4.0, p_form)
    return dataclasses.replace(made, member=3, payload=7, payload_confidence=1.0, forgery=forgery)


def test_looks_pay_for_keys_attempts_and_passages():
    looks = Looks(keys=50, attempts=3, passages=True)
    level = level_of_key(0.01, looks)
    assert corrected(level, looks) == pytest.approx(0.01)
    # 4 : 1 between whole text and search: together they use up the level of one key
    assert corrected(WHOLE_SHARE * level, looks, share=WHOLE_SHARE) == pytest.approx(0.01)
    assert corrected(0.2 * level, looks, share=1.0 - WHOLE_SHARE) == pytest.approx(0.01)
    assert corrected(1e-6, looks) == pytest.approx(150e-6, rel=1e-3)
    assert corrected(0.03, Looks()) == 0.03
    assert str(looks) == "50 keys, 3 attempts and all passages"
    assert str(Looks(passages=True)) == "all passages"
    assert str(Looks()) == ""


def test_one_look_is_the_detection_itself():
    for p in (1e-9, FPR, 2 * FPR, 1.0):
        made = found(p, p_form=1e-9)
        assert decide([made], fpr=FPR, looks=Looks()).applied(made) == made


def test_the_best_of_several_pays_for_all():
    some = [found(0.3), found(4e-5), found(0.9)]
    decision = decide(some, fpr=FPR, looks=Looks(keys=3))
    assert (decision.index, decision.verdict) == (1, Verdict.NOT_MARKED)
    assert decision.p_value == pytest.approx(1.2e-4, rel=1e-3)
    assert decide(some, fpr=FPR, looks=Looks(keys=2)).verdict is Verdict.MARKED


def test_a_text_without_a_verdict_counts_only_if_there_is_no_other():
    short, long = found(1e-9, length=3.0), found(0.4)
    decision = decide([short, long], fpr=FPR, looks=Looks())
    assert (decision.index, decision.verdict, decision.p_value) == (1, Verdict.NOT_MARKED, 0.4)
    decision = decide([short], fpr=FPR, looks=Looks())
    assert (decision.verdict, decision.p_value) == (Verdict.TOO_SHORT, 1e-9)
    searched = decide([short], fpr=FPR, looks=Looks(passages=True), searches={0: 1e-6})
    assert (searched.verdict, searched.p_value) == (Verdict.MARKED, pytest.approx(5e-6))


@pytest.mark.parametrize("looks", [Looks(keys=20), Looks(attempts=2), Looks(passages=True)])
def test_attribution_is_corrected_for_all_looks(looks):
    """A text is attributable only if its form is significant at the level asked for, after all looks."""
    share = WHOLE_SHARE if looks.passages else 1.0
    for p_form in np.geomspace(1e-7, FPR, 30):
        made = found(1e-12, p_form=float(p_form))
        searches = {0: 1.0} if looks.passages else {}
        shown = decide([made], fpr=FPR, looks=looks, searches=searches).applied(made)
        assert made.forgery.attributable
        assert shown.forgery.p_form == corrected(float(p_form), looks, share=share) > p_form
        assert shown.forgery.attributable == (shown.forgery.p_form <= FPR)


def test_origin_needs_a_whole_text_that_is_significant_after_all_looks():
    made = found(0.9 * ORIGIN_SHARE * FPR, p_form=1e-12)  # beyond doubt alone; with passages only these are
    assert made.member == 3
    for looks, searches in ((Looks(keys=2), {}), (Looks(passages=True), {0: 1e-9})):
        decision = decide([made], fpr=FPR, looks=looks, searches=searches)
        shown = decision.applied(made)
        assert shown.is_marked
        assert (shown.member, shown.payload, shown.payload_confidence, shown.forgery) == (None,) * 4
        assert shown.looks == looks


def test_no_p_value_is_below_one_in_all_keys():
    assert corrected(0.0, Looks()) == LEAST_P
    assert decide([found(0.0)], fpr=FPR, looks=Looks(attempts=3)).p_value == LEAST_P > 0.0
