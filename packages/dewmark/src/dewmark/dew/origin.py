"""Where a marked text comes from: the member, payload and epoch that fit it, and whether the holder wrote it.

Joins what `dewmark.dew.ring` finds to the evidence and the result of the key test, and to
`dewmark.dew.attribution`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dewmark.arrays import F32, Mask
from dewmark.dew.attribution import forgery_test, level_share
from dewmark.dew.detection import TextEvidence
from dewmark.dew.reading import Reading
from dewmark.dew.ring import CONFIDENCE, Found, KeyMatrices
from dewmark.dew.settings import DewSettings
from dewmark.dew.text_matrix import testable, text_matrix
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic, effective_length
from dewmark.types import Detection, ForgeryTest

OpenHead = Callable[[], Mask]


@dataclass(frozen=True, slots=True)
class OriginStatistic(Statistic):
    """The result of the key test with the use of the key that fits, and the test for forgery."""

    found: Found | None = None
    forgery: ForgeryTest | None = None


def find_uses(
    reading: Reading,
    contexts: F32,
    uses: KeyMatrices,
    scheme: DewSettings,
    *,
    fpr: float,
    head: OpenHead | None,
) -> Iterator[tuple[Evidence, OriginStatistic]]:
    """For each text of a reading with contexts (W, d_C) the evidence under the use that fits, and the result.

    ``head`` gives the coordinates that a forger learns first; without it, nothing is attributed. Nor are
    texts of an epoch whose key was no ring.
    """
    for text in TextEvidence.each(reading.texts, reading, contexts, scheme, test="key"):
        M = text_matrix(text.blank)
        found = uses.find(M)
        W = uses.matrix(found.use)
        used = text.pairs.used_rows
        rows = np.zeros((len(reading.token_rows), W.shape[1]), dtype=np.float32)
        rows[used] = reading.token_rows[used] @ W
        evidence = text.under(rows, contexts)
        variance, whole = (float(np.sum(np.square(each), dtype=np.float64)) for each in (uses.visible(M), M))
        if text.variance == 0.0 or not testable(variance, whole):
            yield evidence, OriginStatistic(**dataclasses.asdict(NOTHING))
            continue
        forgery = None
        if head is not None and found.p_value <= fpr and uses.epoch(found.use.epoch).members > 1:
            share = level_share(M, W, head(), uses)
            forgery = forgery_test(M, W, head(), level=fpr, share=share)
        length = effective_length(text.blank, variance)
        yield evidence, OriginStatistic(found.z, found.p_value, length, found, forgery)


def with_origin(detection: Detection, result: OriginStatistic, uses: KeyMatrices | None) -> Detection:
    """The detection with what is known of the text's origin, if it is marked."""
    found = result.found
    if found is not None:
        detection = dataclasses.replace(detection, n_hypotheses=found.n_hypotheses)
    if not detection.is_marked:
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
