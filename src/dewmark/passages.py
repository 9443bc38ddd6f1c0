"""Finding the marked passages of a text that is partly human and partly marked.

Works for every scheme that gives `Evidence` (the covariance of its scores over keys), bound to a key or
loaded from a saved detector. The statistics are in `dewmark.stats.scan`; this module maps units to
characters.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from dewmark.scheme import BoundScheme, check_texts
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic, key_test
from dewmark.stats.scan import Segment, Test
from dewmark.stats.scan import locate as find_segments
from dewmark.types import Detection, TokenScore, Verdict

__all__ = ["Located", "Passage", "locate"]

DEFAULT_FPR = 0.05


@dataclass(frozen=True, slots=True)
class Passage:
    """A marked passage: characters [start, end) of the text.

    ``p_value`` is corrected for the search over all passages: the share of keys under which any passage of an
    unmarked text like this one looks as striking. ``p_alone`` is the p-value of this passage without that
    correction. ``share`` is the expected share of marked tokens among its ``tokens``.
    """

    start: int
    end: int
    text: str
    z: float
    p_value: float
    p_alone: float
    effective_length: float
    tokens: int
    share: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "start": self.start,
            "end": self.end,
            "text": self.text,
            "z": self.z,
            "p_value": self.p_value,
            "p_alone": self.p_alone,
            "effective_length": self.effective_length,
            "tokens": self.tokens,
            "share": self.share,
        }


@dataclass(frozen=True, slots=True)
class Located:
    """The marked passages of a text, in order, and the verdict on the whole text.

    If nothing in the text is marked, the probability over keys of finding any passage is at most ``fpr``; in
    a mixed text, so is the probability of finding a passage without a marked token.
    """

    passages: tuple[Passage, ...]
    detection: Detection
    fpr: float

    @property
    def share(self) -> float:
        """The expected share of marked tokens in the text, counting those outside passages as unmarked."""
        total = len(self.detection.tokens)
        return sum(passage.share * passage.tokens for passage in self.passages) / total if total else 0.0

    def to_dict(self, *, tokens: bool = False) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "passages": [passage.to_dict() for passage in self.passages],
            "share": self.share,
            "fpr": self.fpr,
            "detection": self.detection.to_dict(tokens=tokens),
        }

    def __str__(self) -> str:
        found = "; ".join(
            f"characters {passage.start} to {passage.end} (p = {passage.p_value:.2g})"
            for passage in self.passages
        )
        return f"marked passages: {found or 'none'}; whole text: {self.detection}"


def locate(text: str, bound: BoundScheme, *, prompt: str | None = None, fpr: float = DEFAULT_FPR) -> Located:
    """Find the marked passages of a text; a prompt, if known, is only context."""
    (before,) = check_texts([text], [prompt], fpr)
    detection = bound.detect(text, prompt=prompt, fpr=fpr)
    if detection.verdict is Verdict.UNSUPPORTED_LANGUAGE:
        return Located(passages=(), detection=detection, fpr=fpr)
    (evidence,) = bound.evidence(bound.tokenize([text]), bound.tokenize([before]))
    segments = find_segments(evidence, fpr=fpr, test=_own_test(bound, evidence))
    passages = (_passage(text, detection.tokens[s.start : s.end], s) for s in segments)
    return Located(passages=tuple(passages), detection=detection, fpr=fpr)


def _passage(text: str, tokens: tuple[TokenScore, ...], segment: Segment) -> Passage:
    start, end = min(token.start for token in tokens), max(token.end for token in tokens)
    inside = text[start:end]
    # tokens include the space before a word, which belongs to no passage
    start += len(inside) - len(inside.lstrip())
    end -= len(inside) - len(inside.rstrip())
    return Passage(
        start=start,
        end=max(start, end),
        text=text[start:end],
        z=segment.z,
        p_value=segment.corrected,
        p_alone=segment.p_value,
        effective_length=segment.effective_length,
        tokens=len(tokens),
        share=segment.share,
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
