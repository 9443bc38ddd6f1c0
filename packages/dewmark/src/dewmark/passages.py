"""The examination of a text: `judge` makes one verdict of all that was found, and says where the mark is.

A document may be marked in part. So a text that is long enough to hold a marked part and an unmarked one
(`dewmark.verdict.MIN_SEARCHED` scored units) is tested as a whole and searched for marked passages, and both
share the level (`dewmark.verdict`). A shorter one is tested as a whole, at the full level; if it is marked,
its passages explain the verdict, which adds no false alarm. Only the text decides which of the two it is, so
a text has one verdict and one p-value, whoever asks and however.

Passages are found for every scheme that gives `Evidence` (the covariance of its scores over keys), bound to a
key or loaded from a saved detector; other schemes test all texts as a whole. So does a calibration, which
ranks whole texts. The statistics are in `dewmark.stats.scan`; this module maps units to characters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from dewmark.arguments import checked
from dewmark.capabilities import GivesEvidence, SharesReading, capability, n_hypotheses
from dewmark.errors import ConfigError
from dewmark.scheme import BoundScheme, check_texts
from dewmark.types import EMPIRICAL, Coverage, Detection, Extent, Looks, Passage, Verdict
from dewmark.verdict import (
    DEFAULT_FPR,
    LEAST_P,
    MIN_EFFECTIVE_LENGTH,
    MIN_SEARCHED,
    WHOLE_SHARE,
    Decision,
    corrected,
    decide,
    level_of_key,
)
from dewmark.workspace import Tokenized

if TYPE_CHECKING:
    from dewmark.stats.evidence import Evidence
    from dewmark.stats.key_test import Statistic
    from dewmark.stats.scan import Found, Segment, Test

__all__ = ["Located", "Version", "judge", "judge_texts", "locate"]

_KNOWN_P = 0.05
"""The highest level of a search. Up to here it gives its p-value whatever the level is; a larger one counts
as 1, so that a text has one p-value at all levels."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a text, the first being the text itself, and its results as a whole, one per key."""

    text: str
    prompt: str | None
    detections: Sequence[Detection]


@dataclass(frozen=True, slots=True)
class Located(Decision):
    """The verdict on a text, its marked passages in order, and the result for the text as a whole.

    ``verdict`` and ``p_value`` account for all ``looks``: keys, versions and, in a long text, passages;
    ``p_values`` are the same for each key. ``detection`` is the result of the whole text alone
    under the best key, the one at ``index``, and not corrected; ``judged`` is the same after all corrections.
    ``version`` is the number of the version that decided.
    """

    detection: Detection
    coverage: Coverage | None
    version: int = 0

    @property
    def judged(self) -> Detection:
        """The best key's result with the verdict, the p-value and the passages of the whole examination."""
        return self.applied(self.detection, self.coverage)

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The marked passages; they may belong to several keys."""
        return self.coverage.passages if self.coverage else ()

    @property
    def share(self) -> float:
        """The expected share of marked tokens in the text, counting those outside passages as unmarked."""
        return self.coverage.share if self.coverage else 0.0

    def to_dict(self, *, tokens: bool = False) -> dict[str, Any]:
        """Plain JSON values."""
        nothing = Coverage(extent=None, share=0.0, p_rest=None, passages=())
        return {
            "verdict": self.verdict.value,
            "p_value": self.p_value,
            "fpr": self.fpr,
            "looks": self.looks.to_dict(),
            "key_fingerprint": self.detection.key_fingerprint,
            **(self.coverage or nothing).to_dict(),
            "detection": self.detection.to_dict(tokens=tokens),
        }

    def __str__(self) -> str:
        places = (f"{each.start} to {each.end} (p = {each.p_value:.2g})" for each in self.passages)
        found = "; ".join(f"characters {place}" for place in places)
        return f"marked passages: {found or 'none'}; whole text: {self.detection}"


@checked
def locate(
    text: str,
    bound: BoundScheme | Iterable[BoundScheme],
    *,
    prompt: str | None = None,
    fpr: float = DEFAULT_FPR,
    attempts: int = 1,
) -> Located:
    """Find the marked passages of a text under one key or several; a prompt, if known, is only context.

    ``attempts`` counts the versions of this text (translations, other readings) that you look at. Raises
    `ConfigError` if the scheme does not find passages.
    """
    given: list[object] = list(bound) if isinstance(bound, Iterable) else [bound]
    if not given:
        raise ConfigError("no key to look for: give at least one")
    if wrong := [type(each).__name__ for each in given if not isinstance(each, BoundScheme)]:
        raise ConfigError(
            f"bound must be a scheme with its key, or several (load_scheme(key)), got {wrong[0]}"
        )
    bounds = [each for each in given if isinstance(each, BoundScheme)]
    detections = [each.detect(text, prompt=prompt, fpr=fpr) for each in bounds]
    found = judge([Version(text, prompt, detections)], bounds.__getitem__, fpr=fpr, attempts=attempts)
    check_searched(found, bounds[0], text)
    return found


def check_searched(found: Located, bound: BoundScheme, text: str) -> None:
    """Raise `ConfigError`, which says why, if no passage could be searched."""
    if not found.looks.passages and found.verdict is not Verdict.UNSUPPORTED_LANGUAGE and text.strip():
        capability(bound, GivesEvidence).evidence(bound.tokenize([text]), bound.tokenize([""]))


def judge_texts(
    bound: BoundScheme,
    texts: Sequence[str],
    *,
    prompts: Sequence[str | None] | None = None,
    fpr: float = DEFAULT_FPR,
    test: str | None = None,
    explain: bool = True,
) -> list[Located]:
    """The verdicts on texts under one key; see `judge`."""
    found = bound.detect_batch(texts, prompts=prompts, fpr=fpr, test=test)
    starts = [None] * len(texts) if prompts is None else prompts
    return [
        judge([Version(text, prompt, [each])], lambda _: bound, fpr=fpr, explain=explain)
        for text, prompt, each in zip(texts, starts, found, strict=True)
    ]


def judge(
    versions: Sequence[Version],
    bound_of: Callable[[int], BoundScheme],
    *,
    fpr: float = DEFAULT_FPR,
    keys: int | None = None,
    attempts: int = 1,
    explain: bool = True,
) -> Located:
    """The verdict on a text from the results of its versions, and where the mark is.

    ``bound_of`` gives the scheme under the key with this number. A long text is searched under every key that
    gives evidence; of a short one that is marked the passages are only shown, if it shall be ``explain``ed.
    ``keys`` counts the keys that could have been asked for, if they are more than those of the results, and
    ``attempts`` the further versions that the caller tries.
    """
    own = versions[0]
    check_texts([own.text] if own.text.strip() else [], None, fpr)
    n = len(own.detections)
    readings: dict[int, _Reading] = {}
    for k, each in enumerate(own.detections):
        if _is_long(each) and (reading := _read(bound_of(k), own, readings.values())):
            readings[k] = reading
    # a text whose passages are searched is a look, even if the whole is too short for a verdict
    telling = sum(
        any(each.verdict.conclusive for each in version.detections) or (version is own and bool(readings))
        for version in versions
    )
    looks = Looks(max(n, keys or 1), attempts * max(telling, 1), passages=bool(readings))
    level = level_of_key(min(fpr, _KNOWN_P), looks)
    for k, reading in readings.items():
        each = own.detections[k]
        significant = each.verdict.conclusive and each.p_value <= level * WHOLE_SHARE
        # the share of a whole text that is significant passes to the search
        reading.share = (1.0 if significant else 1.0 - WHOLE_SHARE) / reading.hypotheses
    known = level_of_key(_KNOWN_P, looks) * (1.0 - WHOLE_SHARE)
    founds = _search(readings, level, known)
    searches = {k: min(found.p_value * readings[k].hypotheses, 1.0) for k, found in founds.items()}
    results = [each for version in versions for each in version.detections]
    decision = decide(results, fpr=fpr, looks=looks, searches=searches)
    version, index = divmod(decision.index, n)
    p_values = tuple(min(decision.p_values[k::n]) for k in range(n))
    coverage = None
    if decision.verdict is Verdict.MARKED and version == 0:
        if index not in readings and explain and (reading := _read(bound_of(index), own)):
            reading.share = 1.0 / reading.hypotheses
            readings[index] = reading
            founds |= _search({index: reading}, level)
        marked = [
            passage
            for k, found in founds.items()
            if p_values[k] <= fpr
            for passage in _passages(readings[k], found, looks, fpr=fpr)
        ]
        if marked and index in founds:
            coverage = _coverage(_disjoint(marked), founds[index], readings[index], fpr=fpr)
    return Located(
        decision.verdict,
        decision.p_value,
        index,
        p_values,
        looks,
        fpr,
        decision.whole_share,
        results[decision.index],
        coverage,
        version,
    )


def _is_long(detection: Detection) -> bool:
    """Whether a text may hold a marked part and an unmarked one."""
    unread = detection.verdict is Verdict.UNSUPPORTED_LANGUAGE or detection.test == EMPIRICAL
    return detection.tokens_scored >= MIN_SEARCHED and not unread


@dataclass(slots=True)
class _Reading:
    """A text split into units and its evidence under one key, whose search has this share of its level."""

    tokenized: Tokenized
    evidence: Evidence
    bound: BoundScheme
    hypotheses: int
    share: float = 1.0


def _read(bound: BoundScheme, version: Version, others: Iterable[_Reading] = ()) -> _Reading | None:
    """The evidence of a text, or None if the scheme has no known covariance of scores.

    Where another key's detector has read the text in the same way, it is not read again.
    """
    if not isinstance(bound, GivesEvidence) or not version.text.strip():
        return None
    try:
        if isinstance(bound, SharesReading):
            for other in others:
                if (evidence := bound.evidence_from(other.bound, other.evidence)) is not None:
                    return _Reading(other.tokenized, evidence, bound, n_hypotheses(bound))
        tokenized = bound.tokenize([version.text])
        (evidence,) = bound.evidence(tokenized, bound.tokenize([version.prompt or ""]))
    except ConfigError:
        return None
    return _Reading(tokenized[0], evidence, bound, n_hypotheses(bound))


def _search(readings: Mapping[int, _Reading], level: float, known: float = 0.0) -> dict[int, Found]:
    """Search the text under every key; keys with the same covariance share the work.

    ``level`` is that of one key, of which each reading has its share; p-values up to ``known`` are told.
    """
    from dewmark.stats.scan import search  # most texts are short and not marked, and need no search

    found: dict[int, Found] = {}
    groups: list[dict[int, _Reading]] = []
    for k, reading in readings.items():
        same = (each for each in groups if _same_text(next(iter(each.values())).evidence, reading.evidence))
        group = next(same, None)
        if group is None:
            groups.append(group := {})
        group[k] = reading
    for group in groups:
        some = list(group.values())
        results = search(
            [each.evidence for each in some],
            levels=[level * each.share for each in some],
            known=[known / each.hypotheses for each in some],
            tests=[_own_test(each.bound, each.evidence) for each in some],
        )
        found.update(zip(group, results, strict=True))
    return {k: found[k] for k in readings}


def _same_text(a: Evidence, b: Evidence) -> bool:
    """Whether two evidences differ in their scores only."""
    names = ("positions", "weights", "T", "C")
    pairs = ((getattr(a, name), getattr(b, name)) for name in names)
    return a.kernel == b.kernel and all(x is y or np.array_equal(x, y) for x, y in pairs)


def _passages(reading: _Reading, found: Found, looks: Looks, *, fpr: float) -> list[Passage]:
    """The passages of one key."""
    return [
        _passage(reading.tokenized, segment, p_value, reading.bound.fingerprint)
        for segment in found.segments
        if (p_value := corrected(segment.corrected, looks, share=reading.share)) <= fpr
    ]


def _passage(tokenized: Tokenized, segment: Segment, p_value: float, fingerprint: str) -> Passage:
    places = tokenized.offsets[segment.start : segment.end]
    start, end = min(first for first, _ in places), max(last for _, last in places)
    inside = tokenized.text[start:end]
    # tokens include the space before a word, which belongs to no passage
    start += len(inside) - len(inside.lstrip())
    end = max(start, end - (len(inside) - len(inside.rstrip())))
    return Passage(
        start=start,
        end=end,
        text=tokenized.text[start:end],
        z=segment.z,
        p_value=p_value,
        p_alone=max(segment.p_value, LEAST_P),
        effective_length=segment.effective_length,
        tokens=len(places),
        share=segment.share,
        key_fingerprint=fingerprint,
    )


def _disjoint(passages: Iterable[Passage]) -> list[Passage]:
    """In order; where passages of two keys overlap, the one with the smaller p-value."""
    kept: list[Passage] = []
    for passage in sorted(passages, key=lambda each: each.p_value):
        if all(passage.end <= other.start or passage.start >= other.end for other in kept):
            kept.append(passage)
    return sorted(kept, key=lambda each: each.start)


def _coverage(passages: Sequence[Passage], found: Found, reading: _Reading, *, fpr: float) -> Coverage:
    """Where the mark is, by the passages and the rest under the best key."""
    rest, extent = found.rest, None
    if rest is not None:
        if rest.effective_length < MIN_EFFECTIVE_LENGTH or rest.p_value < fpr:
            extent = Extent.WHOLE
        elif rest.p_like_segments < fpr:
            extent = Extent.PART
    return Coverage(
        extent=extent,
        share=sum(passage.share * passage.tokens for passage in passages) / len(reading.tokenized.offsets),
        p_rest=None if rest is None else rest.p_value,
        passages=tuple(passages),
    )


@runtime_checkable
class _HasLaw(Protocol):
    """A scheme that knows the distribution of its scores better than the normal approximation."""

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """The result of one of its tests on one text's evidence."""


def _own_test(bound: BoundScheme, evidence: Evidence) -> Test:
    """The first of the scheme's own tests that applies to this evidence, else the key test.

    It is chosen when a passage is first tested: the search tests none of most texts under most keys.
    """
    from dewmark.stats.key_test import key_test

    @functools.cache
    def chosen() -> Test:
        if isinstance(bound, _HasLaw):
            for name in bound.tests:
                if bound.statistic(evidence, test=name).effective_length > 0.0:
                    return functools.partial(bound.statistic, test=name)
        return key_test

    def own_test(passage: Evidence) -> Statistic:
        return chosen()(passage)

    return own_test
