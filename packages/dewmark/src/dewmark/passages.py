"""Finding the marked passages of a text that is partly human and partly marked, under one key or several.

Works for every scheme that gives `Evidence` (the covariance of its scores over keys), bound to a key or
loaded from a saved detector. The statistics are in `dewmark.stats.scan`; this module maps units to
characters and makes one verdict of everything a text was examined for.

**One verdict.** `locate` tests the whole text and searches its passages, under every key. The level is
divided once: keys by Šidák, then 4 : 1 between the whole text and the search (`Looks`). If the whole text is
significant under a key, its share passes to the search, whose passages are then reported at the full level.
So the probability over keys of any false statement about an unmarked text is at most ``fpr``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dewmark.errors import ConfigError
from dewmark.scheme import DEFAULT_FPR, BoundScheme, check_texts
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic, key_test
from dewmark.stats.multiple_testing import Looks
from dewmark.stats.scan import MIN_EFFECTIVE_LENGTH, NOTHING_FOUND, Found, Segment, Test, search
from dewmark.types import Coverage, Detection, Extent, Passage, Verdict
from dewmark.workspace import Tokenized

__all__ = ["Located", "Passage", "explain", "judge", "locate"]


@dataclass(frozen=True, slots=True)
class Located:
    """One verdict on a text, its marked passages in order, and the result for the text as a whole.

    ``p_value`` and ``verdict`` account for everything in ``looks``: all keys, all passages and the whole
    text; ``p_values`` are the same for each key. ``detection`` is the result for the whole text alone under
    the best key, the one at ``index``; it is not corrected. If nothing in the text is marked, the probability
    over keys of a verdict "marked" or of any passage is at most ``fpr``; in a mixed text, so is that of a
    passage without a marked token.
    """

    verdict: Verdict
    p_value: float
    coverage: Coverage | None
    detection: Detection
    index: int
    p_values: tuple[float, ...]
    looks: Looks
    fpr: float

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The marked passages; they may belong to several keys."""
        return self.coverage.passages if self.coverage else ()

    @property
    def share(self) -> float:
        """The expected share of marked tokens in the text, counting those outside passages as unmarked."""
        return self.coverage.share if self.coverage else 0.0

    @property
    def is_marked(self) -> bool:
        """Whether the verdict is `Verdict.MARKED`."""
        return self.verdict is Verdict.MARKED

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
        found = "; ".join(
            f"characters {passage.start} to {passage.end} (p = {passage.p_value:.2g})"
            for passage in self.passages
        )
        return f"marked passages: {found or 'none'}; whole text: {self.detection}"


def locate(
    text: str,
    bound: BoundScheme | Iterable[BoundScheme],
    *,
    prompt: str | None = None,
    fpr: float = DEFAULT_FPR,
    attempts: int = 1,
) -> Located:
    """Find the marked passages of a text under one key or several; a prompt, if known, is only context.

    ``attempts`` counts the versions of this text (translations, other readings) that you look at.
    """
    bounds = [bound] if isinstance(bound, BoundScheme) else list(bound)
    if not bounds:
        raise ConfigError("no key to look for: give at least one")
    detections = [each.detect(text, prompt=prompt, fpr=fpr) for each in bounds]
    found = judge(text, bounds, detections, prompt=prompt, fpr=fpr, attempts=attempts)
    if not found.looks.passages and found.verdict is not Verdict.UNSUPPORTED_LANGUAGE:
        bounds[0].evidence(bounds[0].tokenize([text]), bounds[0].tokenize([prompt or ""]))  # says why not
    return found


def judge(
    text: str,
    bounds: Sequence[BoundScheme],
    detections: Sequence[Detection],
    *,
    prompt: str | None = None,
    fpr: float = DEFAULT_FPR,
    attempts: int = 1,
    keys: int | None = None,
) -> Located:
    """One verdict from the whole-text ``detections`` of a text under each key and a search of its passages.

    The search covers ``text``, which may be a prefix of the text that was detected. Keys whose scheme gives
    no evidence are judged by the whole text alone. ``keys`` counts the keys that could have been asked for,
    if they are more than ``bounds``.
    """
    (before,) = check_texts([text], [prompt], fpr)
    judged = [each.verdict is not Verdict.UNSUPPORTED_LANGUAGE for each in detections]
    readings = [
        _read(bound, text, before) if wanted else None for bound, wanted in zip(bounds, judged, strict=True)
    ]
    tried = [each.tried for each in bounds]  # a detection's p-value pays for them, a search must, too
    looks = Looks(max(len(bounds), keys or 1), attempts, passages=any(each is not None for each in readings))
    level = looks.level(fpr)
    whole = [looks.of_whole(each.p_value) if each.verdict.conclusive else 1.0 for each in detections]
    levels = [level if p <= level else level * (1.0 - Looks.WHOLE_SHARE) for p in whole]
    founds = _search_keys(bounds, readings, [each / n for each, n in zip(levels, tried, strict=True)])
    combined = [
        min(p, looks.of_passages(min(n * found.p_value, 1.0)))
        for p, n, found in zip(whole, tried, founds, strict=True)
    ]
    index = min(range(len(bounds)), key=lambda k: (combined[k], -detections[k].z))
    p_values = tuple(map(looks.correct, combined))
    best = detections[index]
    verdict = Verdict.MARKED if p_values[index] <= fpr else Verdict.NOT_MARKED
    if not best.verdict.conclusive and not founds[index].segments:
        verdict = best.verdict
    coverage = None
    if verdict is Verdict.MARKED:
        passages: list[Passage] = []
        for k, found in enumerate(founds):
            if p_values[k] <= fpr:
                share = (1.0 if whole[k] <= level else 1.0 - Looks.WHOLE_SHARE) / tried[k]
                passages += _passages(readings[k], bounds[k], found, looks, share=share, fpr=fpr)
        coverage = _coverage(_disjoint(passages), founds[index], readings[index], fpr=fpr)
    return Located(verdict, p_values[index], coverage, best, index, p_values, looks, fpr)


def explain(
    detection: Detection, text: str, bound: BoundScheme, *, prompt: str | None = None, keys: int = 1
) -> Detection:
    """Say where in a text that was found to be marked the mark is: the same detection with its coverage.

    Only passages of a marked text are searched, at the level that the verdict had for one of ``keys`` keys,
    so the search adds no false alarm: it never runs on a text that is not called marked.
    """
    reading = _read(bound, text, prompt or "") if detection.is_marked else None
    if reading is None:
        return detection
    looks, fpr = Looks(keys), detection.fpr
    (found,) = _search_keys([bound], [reading], [looks.level(fpr) / bound.tried])
    passages = _passages(reading, bound, found, looks, share=1.0 / bound.tried, fpr=fpr)
    return dataclasses.replace(detection, coverage=_coverage(passages, found, reading, fpr=fpr))


@dataclass(frozen=True, slots=True)
class _Reading:
    """A text split into units, and its evidence under one key."""

    tokenized: Tokenized
    evidence: Evidence


def _read(bound: BoundScheme, text: str, prompt: str) -> _Reading | None:
    """The evidence of a text, or None if the scheme has no known covariance of scores."""
    tokenized = bound.tokenize([text])
    try:
        (evidence,) = bound.evidence(tokenized, bound.tokenize([prompt]))
    except ConfigError:
        return None
    return _Reading(tokenized[0], evidence)


def _search_keys(
    bounds: Sequence[BoundScheme], readings: Sequence[_Reading | None], levels: Sequence[float]
) -> list[Found]:
    """Search the text under every key; keys with the same covariance share the work."""
    found = [NOTHING_FOUND] * len(bounds)
    groups: list[dict[int, Evidence]] = []  # evidence by the index of its key
    for k, reading in enumerate(readings):
        if reading is not None:
            same = (each for each in groups if _same_text(next(iter(each.values())), reading.evidence))
            group = next(same, None)
            if group is None:
                groups.append(group := {})
            group[k] = reading.evidence
    for group in groups:
        tests = [_own_test(bounds[k], evidence) for k, evidence in group.items()]
        results = search(list(group.values()), levels=[levels[k] for k in group], tests=tests)
        for k, result in zip(group, results, strict=True):
            found[k] = result
    return found


def _same_text(a: Evidence, b: Evidence) -> bool:
    """Whether two evidences differ in their scores only."""
    names = ("positions", "weights", "T", "C")
    return a.kernel == b.kernel and all(np.array_equal(getattr(a, n), getattr(b, n)) for n in names)


def _passages(
    reading: _Reading | None, bound: BoundScheme, found: Found, looks: Looks, *, share: float, fpr: float
) -> list[Passage]:
    """The passages of one key, whose search had this share of the key's level for each of its members."""
    return [
        _passage(reading.tokenized, segment, p_value, bound.fingerprint)
        for segment in found.segments
        if reading and (p_value := looks.correct(min(segment.corrected / share, 1.0))) <= fpr
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
        p_alone=segment.p_value,
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


def _coverage(
    passages: Sequence[Passage], found: Found, reading: _Reading | None, *, fpr: float
) -> Coverage | None:
    """Where the mark is, by the passages and the rest under the best key."""
    if not passages or reading is None:
        return None
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
    """The first of the scheme's own tests that applies to this evidence, else the key test."""
    if isinstance(bound, _HasLaw):
        for name in bound.tests:
            if bound.statistic(evidence, test=name).effective_length > 0.0:
                return functools.partial(bound.statistic, test=name)
    return key_test
