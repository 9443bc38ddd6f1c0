"""Where a marked text comes from: the member, payload and epoch that fit it, and whether the holder wrote it.

Joins what `dewmark.dew.ring` finds to the evidence and the result of the key test, and to
`dewmark.dew.attribution`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from dewmark.arrays import Mask
from dewmark.dew.attribution import forgery_test, level_share
from dewmark.dew.matrix import TextMatrix, testable
from dewmark.dew.ring import CONFIDENCE, Found, KeyMatrices
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic, effective_length
from dewmark.types import Detection, ForgeryTest
from dewmark.verdict import names_origin

OpenHead = Callable[[], Mask]


@dataclass(frozen=True, slots=True)
class OriginStatistic(Statistic):
    """The result of the key test with the use of the key that fits, and the test for forgery."""

    found: Found | None = None
    forgery: ForgeryTest | None = None


def find_uses(
    texts: Iterable[TextMatrix], uses: KeyMatrices, *, fpr: float, head: OpenHead | None
) -> Iterator[tuple[Evidence, OriginStatistic]]:
    """For each text the evidence under the use that fits, and the result.

    ``head`` gives the coordinates that a forger learns first; without it, nothing is attributed. Nor are
    texts of an epoch whose key was no ring.
    """
    for text in texts:
        F, square = text.F.astype(np.float32), float(np.sum(np.square(uses.visible(text.F))))
        found = uses.find(text.F)
        W = uses.matrix(found.use)
        evidence = text.under(W)
        if text.square == 0.0 or not testable(square, text.square):
            yield evidence, OriginStatistic(**dataclasses.asdict(NOTHING))
            continue
        forgery = None
        if head is not None and names_origin(found.p_value, fpr) and uses.epoch(found.use.epoch).members > 1:
            share = level_share(F, W, head(), uses)
            forgery = forgery_test(F, W, head(), level=fpr, share=share)
        length = effective_length(text.blank, square)
        yield evidence, OriginStatistic(found.z, found.p_value, length, found, forgery)


def with_origin(detection: Detection, result: OriginStatistic, uses: KeyMatrices | None) -> Detection:
    """The detection with what is known of the text's origin, if it is marked beyond doubt."""
    found = result.found
    if found is not None:
        detection = dataclasses.replace(detection, n_hypotheses=found.n_hypotheses)
    if not (detection.is_marked and names_origin(detection.p_value, detection.fpr)):
        return detection
    detection = dataclasses.replace(detection, forgery=result.forgery)
    if found is None or uses is None:
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
