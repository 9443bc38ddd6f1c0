"""The marked passages of a text: evidence, search, and from units to characters.

Passages are found for every scheme that gives `Evidence` whose parts can be tested by themselves. A scheme
may have several views of a text (`BoundScheme.views`), each of which is searched at its part of the level.
Keys under which a text's scores vary together in the same way share the search. The statistics are in
`dewmark.stats.scan`, `dewmark.detect` decides with them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dewmark.scheme import BoundScheme, Reading
from dewmark.stats.key_test import key_test
from dewmark.types import Coverage, Extent, Looks, Passage
from dewmark.verdict import LEAST_P, MIN_EFFECTIVE_LENGTH, corrected
from dewmark.workspace import Tokenized

if TYPE_CHECKING:
    from dewmark.stats.evidence import Evidence
    from dewmark.stats.key_test import Statistic
    from dewmark.stats.scan import Found, Segment, Test


@dataclass(slots=True)
class KeyEvidence:
    """A text and the views of its evidence under one key; each has this ``share`` of the key's level."""

    tokenized: Tokenized
    views: Sequence[Evidence]
    bound: BoundScheme
    share: float = 1.0

    @classmethod
    def of(cls, bound: BoundScheme, reading: Reading) -> KeyEvidence | None:
        """The evidence of a reading, or None if its parts cannot be tested by themselves."""
        found = bound.evidence([reading]) if bound.finds_passages else None
        return None if found is None else cls(reading.text, bound.views(next(iter(found))), bound)

    @property
    def hypotheses(self) -> int:
        """The uses of the key (members, payloads, epochs) among which detection chooses, in each view."""
        return self.bound.n_hypotheses * len(self.views)

    def own_test(self) -> Test:
        """The first of the scheme's tests that applies to a passage.

        It is chosen when a passage is first tested: a search tests none of most texts under most keys.
        """
        bound, whole = self.bound, self.views[0]

        @functools.cache
        def chosen() -> str | None:
            tested = ((name, bound.test(whole, test=name)) for name in bound.tests)
            return next((name for name, found in tested if found.effective_length > 0.0), None)

        def own_test(passage: Evidence) -> Statistic:
            name = chosen()
            return key_test(passage) if name is None else bound.test(passage, test=name)

        return own_test


def search_passages(
    evidence: Mapping[int, KeyEvidence], level: float, known: float = 0.0
) -> dict[int, list[Found]]:
    """Search every view of a text under every key; those with the same covariance share the work.

    ``level`` is that of one key, of which each view has its share; p-values up to ``known`` are reported
    whatever the level is.
    """
    from dewmark.stats.scan import search  # most texts are short and not marked, and need no search

    found: dict[int, list[Found]] = {k: [] for k in evidence}
    groups: list[list[tuple[int, Evidence]]] = []
    for k, mine in evidence.items():
        for view in mine.views:
            group = next((each for each in groups if _same_text(each[0][1], view)), None)
            if group is None:
                groups.append(group := [])
            group.append((k, view))
    tests = {k: mine.own_test() for k, mine in evidence.items()}
    for group in groups:
        results = search(
            [view for _, view in group],
            levels=[level * evidence[k].share for k, _ in group],
            known=[known / evidence[k].hypotheses for k, _ in group],
            tests=[tests[k] for k, _ in group],
        )
        for (k, _), result in zip(group, results, strict=True):
            found[k].append(result)
    return found


def _same_text(a: Evidence, b: Evidence) -> bool:
    """Whether two evidences differ in their scores only."""
    names = ("positions", "weights", "T", "C", "own")
    pairs = ((getattr(a, name), getattr(b, name)) for name in names)
    return a.kernel == b.kernel and all(x is y or np.array_equal(x, y) for x, y in pairs)


def coverage_of(
    best: int,
    evidence: Mapping[int, KeyEvidence],
    found: Mapping[int, Sequence[Found]],
    looks: Looks,
    *,
    fpr: float,
) -> Coverage | None:
    """Where the mark is, by the passages found under each key and by the rest under the ``best`` one.

    The rest is that of the view that found most.
    """
    marked = [
        _passage(evidence[k], segment, p_value)
        for k, views in found.items()
        for each in views
        for segment in each.segments
        if (p_value := corrected(segment.corrected, looks, share=evidence[k].share)) <= fpr
    ]
    if not marked or best not in found:
        return None
    passages, extent = _disjoint(marked), None
    rest = min(found[best], key=lambda each: each.p_value).rest
    if rest is not None:
        if rest.effective_length < MIN_EFFECTIVE_LENGTH or rest.p_value < fpr:
            extent = Extent.WHOLE
        elif rest.p_like_segments * len(found[best]) < fpr:
            extent = Extent.PART
    units = len(evidence[best].tokenized.offsets)
    return Coverage(
        extent=extent,
        share=sum(passage.share * passage.tokens for passage in passages) / units,
        p_rest=None if rest is None else rest.p_value,
        passages=tuple(passages),
    )


def _passage(mine: KeyEvidence, segment: Segment, p_value: float) -> Passage:
    tokenized = mine.tokenized
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
        key_fingerprint=mine.bound.fingerprint,
    )


def _disjoint(passages: Iterable[Passage]) -> list[Passage]:
    """In order; where passages of two keys or views overlap, the one with the smaller p-value."""
    kept: list[Passage] = []
    for passage in sorted(passages, key=lambda each: each.p_value):
        if all(passage.end <= other.start or passage.start >= other.end for other in kept):
            kept.append(passage)
    return sorted(kept, key=lambda each: each.start)
