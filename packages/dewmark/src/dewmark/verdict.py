"""The one verdict on a text: what was found, corrected for everything that was looked at.

Every entry point decides here: the library, the commands, files of texts, the service and its reports.
`decide` takes what was found in the whole text (and in its passages, if it is long) under each key and in
each version of the text, and corrects the best of it for all `Looks`:

- Unmarked text does not depend on any key, so its results under several keys are independent, and Šidák's
  correction 1 − (1 − p)^keys is exact.
- Versions of a text (translations back, edits) depend on each other, so that Bonferroni's bound holds. Only
  versions that allow a verdict or are searched count; whether they do never depends on a key.
- A text of `MIN_SEARCHED` scored units or more may hold a marked part and an unmarked one. Its passages are
  searched as well: the whole text has `WHOLE_SHARE` of the level and the search the rest. Nothing but the
  text decides whether it is searched, so every door gives the same p-value.

So the probability over keys that an unmarked text is called marked is at most the level. What a marked text
says of its origin (member, payload, epoch, forgery) is kept only if the whole text alone, after all
corrections, is significant at `ORIGIN_SHARE` of the level: a false alarm fits one use of the key by chance,
so most would otherwise come with a name.

A key is one of 2²⁵⁶, so no p-value is smaller than `LEAST_P`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from dewmark.stats.multiple_testing import sidak_min
from dewmark.types import Coverage, Detection, Looks, Verdict

__all__ = [
    "DEFAULT_FPR",
    "MIN_EFFECTIVE_LENGTH",
    "MIN_SEARCHED",
    "WHOLE_SHARE",
    "corrected",
    "decide",
    "least_length",
    "verdict_of",
]

DEFAULT_FPR = 0.01
MIN_EFFECTIVE_LENGTH = 16.0
MIN_SEARCHED = 300
"""Scored units from which a text's passages are searched: some 420 words, more than a chat answer has."""
WHOLE_SHARE = 0.8
"""The whole text's share of the level if its passages are searched, too."""
ORIGIN_SHARE = 0.01
"""The share of the level at which a text must be marked for its origin to be named."""
LEAST_P = 2.0**-256
"""One in as many keys as there are."""

_MIN_READ_LENGTH = 6.0  # with a reader a unit counts for as much as its place left open


def least_length(reader: object) -> float:
    """The effective length that a verdict needs, with a language model as reader (or its name) or without."""
    return MIN_EFFECTIVE_LENGTH if getattr(reader, "name", reader) in (None, "none") else _MIN_READ_LENGTH


def verdict_of(
    p_value: float, effective_length: float, fpr: float, *, least: float = MIN_EFFECTIVE_LENGTH
) -> Verdict:
    """The verdict at level ``fpr``; a text with too few independent tokens is too short for one."""
    if effective_length < least:
        return Verdict.TOO_SHORT
    return Verdict.MARKED if p_value <= fpr else Verdict.NOT_MARKED


def corrected(p_value: float, looks: Looks, *, share: float = 1.0) -> float:
    """The p-value of one look, which had this share of its key's level, after all looks."""
    found = min(p_value / share, 1.0)
    if looks.keys > 1:
        found = sidak_min(found, tests=looks.keys)
    found *= looks.attempts
    return max(min(found, 1.0), LEAST_P)


def names_origin(p_value: float, fpr: float) -> bool:
    """Whether a whole text with this p-value, after all corrections, may say who marked it."""
    return p_value <= ORIGIN_SHARE * fpr


def level_of_key(fpr: float, looks: Looks) -> float:
    """The level for one key and one version that `corrected` turns into ``fpr``."""
    return -math.expm1(math.log1p(-fpr / looks.attempts) / looks.keys)


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict on a text and its p-value, corrected for all ``looks``.

    The result at ``index`` decided. ``p_values`` are those of all results, each corrected like the verdict.
    ``whole_share`` is the share of the level that the deciding result had for the whole text.
    """

    verdict: Verdict
    p_value: float
    index: int
    p_values: tuple[float, ...]
    looks: Looks
    fpr: float
    whole_share: float

    @property
    def level_of_whole(self) -> float:
        """The level at which the whole text was tested under the deciding key."""
        return level_of_key(self.fpr, self.looks) * self.whole_share

    @property
    def is_marked(self) -> bool:
        """Whether the verdict is `Verdict.MARKED`."""
        return self.verdict is Verdict.MARKED

    def applied(self, detection: Detection, coverage: Coverage | None = None) -> Detection:
        """The detection that decided, with this verdict and what remains of its origin."""
        whole = corrected(detection.p_value, self.looks, share=self.whole_share)
        kept = self.verdict is Verdict.MARKED and names_origin(whole, self.fpr)
        forgery = detection.forgery
        if forgery is not None:
            p_form = corrected(forgery.p_form, self.looks, share=self.whole_share)
            forgery = dataclasses.replace(forgery, p_form=p_form, attributable=p_form <= self.fpr)
        return dataclasses.replace(
            detection,
            verdict=self.verdict,
            p_value=self.p_value,
            fpr=self.fpr,
            looks=self.looks,
            coverage=coverage,
            member=detection.member if kept else None,
            payload=detection.payload if kept else None,
            payload_confidence=detection.payload_confidence if kept else None,
            epoch=detection.epoch if kept else None,
            forgery=forgery if kept else None,
        )


def decide(
    detections: Sequence[Detection],
    *,
    fpr: float,
    looks: Looks,
    searches: Mapping[int, float] = MappingProxyType({}),
) -> Decision:
    """The verdict on a text from all results for it, of each key and each version.

    ``detections`` are the results of the whole text, each for itself. ``searches`` are the p-values of the
    search for passages by the number of the result, where there was one; from 1 on they say nothing. A result
    without a verdict counts only if no other has one.
    """
    tells = [each.verdict.conclusive or searches.get(i, 1.0) < 1.0 for i, each in enumerate(detections)]
    p_values = []
    for i, each in enumerate(detections):
        counts = each.verdict.conclusive or not any(tells)
        whole = corrected(each.p_value, looks, share=whole_share(i in searches)) if counts else 1.0
        p_values.append(min(whole, corrected(searches.get(i, 1.0), looks, share=1.0 - WHOLE_SHARE)))
    places = range(len(detections))
    index = min(places, key=lambda i: (tells[i] is not any(tells), p_values[i], -detections[i].z))
    verdict = detections[index].verdict
    if tells[index]:
        verdict = Verdict.MARKED if p_values[index] <= fpr else Verdict.NOT_MARKED
    share = whole_share(index in searches)
    return Decision(verdict, p_values[index], index, tuple(p_values), looks, fpr, share)


def whole_share(searched: bool) -> float:
    """The whole text's share of its key's level."""
    return WHOLE_SHARE if searched else 1.0
