"""Reads texts as words of any kind, which an encoder gives their vectors.

Any host may write the text, and scoring needs nothing from it. A translation keeps neither tokens nor
spelling, but much of the meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dewmark.dew.reading import Reading, WordReader, pairs_of
from dewmark.encoders.word_vectors import (
    STATISTICS,
    Centre,
    WordContexts,
    WordStatistics,
    WordTokens,
    WordVectors,
    times_counted,
    windows_before,
)
from dewmark.text.words import VERSION
from dewmark.workspace import Tokenized


class OpenReader(WordReader):
    """Reads all words."""

    def __init__(self, vectors: WordVectors, statistics: WordStatistics, *, k: int, centre: Centre) -> None:
        self.vectors = vectors
        self.statistics = statistics
        self.tokens = WordTokens(vectors, statistics, centre=centre)
        self.contexts = self._around = WordContexts(vectors, statistics)
        self.k = k

    def read(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> Reading:
        """Read texts, each after its prompt."""
        forms: dict[str, int] = {}
        contexts: dict[tuple[str, ...], int] = {}
        units: list[int] = []
        windows: list[int] = []
        for text, prompt in zip(texts, prompts, strict=True):
            mine, before = text.forms, prompt.forms[-self.k :]
            units += [forms.setdefault(form, len(forms)) for form in mine]
            # without the prompt, the first k contexts are not those at marking time
            skipped = 0 if before else min(self.k, len(mine))
            windows += [-1] * skipped
            around = windows_before(mine, k=self.k, before=before)[skipped:]
            counted = _carrying(mine)[skipped:]
            windows += [
                contexts.setdefault(window, len(contexts)) if counts else -1
                for window, counts in zip(around, counted, strict=True)
            ]
        return Reading(
            token_rows=self.tokens.vectors(list(forms)),
            contexts=self._around.summed(list(contexts)),
            texts=pairs_of(
                np.array(units, dtype=np.int64),
                np.array(windows, dtype=np.int64),
                [len(text.ids) for text in texts],
            ),
        )

    def meta(self) -> dict[str, Any]:
        """What must match when a stored detector is loaded."""
        return {"encoder": self.vectors.encoder.identity, "words": VERSION}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The public statistics, for a stored detector."""
        return {name: getattr(self.statistics, name) for name in STATISTICS}


def _carrying(forms: Sequence[str]) -> list[bool]:
    """Whether each word of a text carries the mark: where it is new, a frequent one up to four times."""
    occurred, found = Counter[str](), []
    for form in forms:
        found.append(occurred[form] < times_counted(form))
        occurred[form] += 1
    return found
