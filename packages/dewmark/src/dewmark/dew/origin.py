"""Where a marked text comes from: the member, payload and epoch that fit it, and whether the holder wrote it.

`tested_use` and `with_origin` join what `dewmark.dew.ring` finds to the result of the key test. Attribution
asks whether the key's holder marked a text, or perhaps somebody who learned the mark from marked texts.

Whoever has solved for W, from two texts or two thousand, can write texts with any z. They know nothing of h,
the number of each word in its context (`dewmark.dew.form`), but where they copy: h of every other word is
independent of all that they have seen. So a marked text is *attributable* if the form sum z_F of the use that
fits it (`dewmark.dew.ring`) is significant at that use's share of the level:

    p_form = (1 − Φ(z_F))/share ≤ level

The shares of all uses sum to 1 and depend on the meaning alone: use j has ∝ exp(z_best z_j), its posterior
probability. z_F is independent of that, so this is a weighted Bonferroni correction, whatever a forger knows
of W and however many uses there are. A plain key has one use, with share 1.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from scipy.special import ndtr

from dewmark.dew.matrix import KeyedEvidence, TextMatrix, TwoSums
from dewmark.dew.ring import CONFIDENCE, FoundUse, KeyMatrices
from dewmark.stats.key_test import NOTHING, Statistic
from dewmark.types import Detection, ForgeryTest, Verdict
from dewmark.verdict import LEAST_P, names_origin


def forgery_test(z_form: float, *, level: float, share: float = 1.0) -> ForgeryTest | None:
    """Test a marked text by the form sum of the use that fits it; None where there is no such sum.

    ``share`` is that use's share of the level.
    """
    if math.isnan(z_form):
        return None
    p = max(min(float(ndtr(-z_form)) / share, 1.0), LEAST_P) if share > 0.0 else 1.0
    return ForgeryTest(p <= level, z_form=z_form, p_form=p)


# The use that fits


@dataclass(frozen=True, slots=True)
class OriginStatistic(TwoSums):
    """The result of the key test with the use of the key that fits."""

    found: FoundUse | None = None


@dataclass(frozen=True)
class UseEvidence(KeyedEvidence):
    """The evidence of a text under the use of the key that fits it best."""

    found: FoundUse | None = None


def tested_use(text: TextMatrix, found: FoundUse) -> Statistic:
    """The result of a whole text under the use that fits it."""
    if text.square == 0.0:
        return NOTHING
    length = text.effective_length
    return OriginStatistic(found.z, found.p_value, length, found.z_meaning, found.z_form, found)


def with_origin(detection: Detection, result: Statistic, uses: KeyMatrices | None = None) -> Detection:
    """The detection with both scores and, if it is marked beyond doubt, what is known of the text's origin.

    ``uses`` are those of a key that has more than one.
    """
    if not isinstance(result, TwoSums):
        return detection
    z_form = None if math.isnan(result.z_form) else result.z_form
    detection = dataclasses.replace(detection, z_meaning=result.z_meaning, z_form=z_form)
    found = result.found if isinstance(result, OriginStatistic) else None
    if found is not None:
        detection = dataclasses.replace(detection, n_hypotheses=found.n_hypotheses)
    if detection.verdict is not Verdict.MARKED or not names_origin(detection.p_value, detection.fpr):
        return detection
    share = 1.0 if found is None else found.share
    forgery = forgery_test(result.z_form, level=detection.fpr, share=share)
    detection = dataclasses.replace(detection, forgery=forgery)
    if uses is None or found is None:
        return detection
    epoch = uses.epoch(found.use.epoch)
    sure = {
        "epoch": len(uses.epochs) > 1 and found.epoch_confidence,
        "member": epoch.members > 1 and found.member_confidence,
        "payload": epoch.payload_bits > 0 and found.payload_confidence,
    }
    named = {name: getattr(found.use, name) for name, share in sure.items() if share >= CONFIDENCE}
    confidence = found.payload_confidence if epoch.payload_bits else None
    return dataclasses.replace(detection, **named, payload_confidence=confidence)
