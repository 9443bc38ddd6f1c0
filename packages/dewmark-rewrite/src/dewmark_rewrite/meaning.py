"""Whether a sentence still says what it said: the same numbers, names and negations, and a similar vector."""

from __future__ import annotations

import re
from collections import Counter
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
    """Holds sentences to their facts, and to this cosine ``similarity`` of their vectors by an encoder."""

    encoder: Encoder | None
    similarity: float

    def keeps(self, old: str, new: str) -> bool:
        """Whether ``new`` may replace the sentence ``old``."""
        if not same_facts(old, new) or self.encoder is None:
            return same_facts(old, new)
        a, b = np.asarray(self.encoder.encode([old, new]), dtype=np.float64)
        lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
        return float(a @ b) >= self.similarity * max(lengths, 1e-12)
