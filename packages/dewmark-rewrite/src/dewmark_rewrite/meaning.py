"""Whether a sentence still says what it said: the same numbers, names and negations, and a similar vector."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dewmark_rewrite.protection import is_name
from dewmark_rewrite.sentences import Span, tokens

if TYPE_CHECKING:
    from dewmark.encoders.base import Encoder

_NEGATION = re.compile(
    r"\b(?:not|no|never|none|nobody|nothing|neither|nor|without|cannot|hardly|barely|scarcely|rarely|seldom)\b"
    r"|n['’]t\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+(?:[.,:/]\d+)*")


def same_facts(old: str, new: str) -> bool:
    """Whether two sentences have the same numbers, names and negations."""
    return (
        _NUMBER.findall(old) == _NUMBER.findall(new)
        and _names(old) == _names(new)
        and len(_NEGATION.findall(old)) == len(_NEGATION.findall(new))
    )


def _names(sentence: str) -> Counter[str]:
    found = [sentence[span.start : span.end] for span in tokens(sentence, Span(0, len(sentence)))]
    return Counter(token for i, token in enumerate(found) if is_name(token, first=i == 0))


@dataclass(frozen=True)
class MeaningCheck:
    """Holds sentences to at least this cosine ``similarity`` of their vectors by every encoder."""

    encoders: Sequence[Encoder]
    similarity: float

    def keeps(self, old: str, new: str) -> bool:
        """Whether ``new`` may replace the sentence ``old``."""
        return same_facts(old, new) and all(found >= self.similarity for found in self.similarities(old, new))

    def similarities(self, old: str, new: str) -> list[float]:
        """The cosine of the two by each encoder."""
        found = []
        for encoder in self.encoders:
            a, b = np.asarray(encoder.encode([old, new]), dtype=np.float64)
            found.append(float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12)))
        return found
