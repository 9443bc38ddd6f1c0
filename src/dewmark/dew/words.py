"""Words as DEW's units: any host may write the text, and nothing of it is needed to score it.

A unit is a word in its form, its ê_T comes from the multilingual encoder, its context is the k words before
it (`dewmark.embeddings.word_space`). A translation keeps neither tokens nor spelling, but much of that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dewmark.dew.reading import Reader, Reading, pairs_of
from dewmark.embeddings import encoders
from dewmark.embeddings.segmentation import MAX_FORM, VERSION, form_of, words
from dewmark.embeddings.word_space import (
    STATISTICS,
    Centre,
    WordContexts,
    WordStatistics,
    WordTokens,
    load_word_statistics,
    windows_before,
)
from dewmark.embeddings.words import WordVectors
from dewmark.errors import VocabularyError
from dewmark.scheme import State
from dewmark.workspace import Tokenized, Workspace

if TYPE_CHECKING:
    from dewmark.dew.scheme import DEW

__all__ = ["WordReader", "open_words", "restored_words"]

_FOLDER = "words"


class WordReader(Reader):
    """Reads words."""

    def __init__(
        self, vectors: WordVectors, statistics: WordStatistics, *, k: int, centre: Centre = "running"
    ) -> None:
        self.vectors = vectors
        self.statistics = statistics
        self.tokens = WordTokens(vectors, statistics, centre=centre)
        self.contexts = WordContexts(vectors, statistics)
        self.k = k

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Cut texts into words; equal ids are equal forms."""
        return [_tokenized(text) for text in texts]

    def read(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> Reading:
        """Read texts, each after its prompt."""
        forms: dict[str, int] = {}
        contexts: dict[tuple[str, ...], int] = {}
        units: list[int] = []
        windows: list[int] = []
        for text, prompt in zip(texts, prompts, strict=True):
            mine, before = _forms(text), _forms(prompt)[-self.k :]
            units += [forms.setdefault(form, len(forms)) for form in mine]
            # without the prompt the first k contexts are not the ones that were marked
            skipped = 0 if before else min(self.k, len(mine))
            windows += [-1] * skipped
            around = windows_before(mine, k=self.k, before=before)[skipped:]
            windows += [contexts.setdefault(window, len(contexts)) for window in around]
        return Reading(
            token_rows=self.tokens.vectors(list(forms)),
            contexts=self.contexts.parts(list(contexts)),
            texts=pairs_of(
                np.array(units, dtype=np.int64),
                np.array(windows, dtype=np.int64),
                [len(text.ids) for text in texts],
            ),
            ids=np.arange(len(forms)),
            windows=np.zeros((len(contexts), 0), dtype=np.int64),
        )

    def meta(self) -> dict[str, Any]:
        """What a stored detector must find again."""
        return {"encoder": self.vectors.encoder.identity, "words": VERSION}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The public statistics, for a detector that is stored."""
        return {name: getattr(self.statistics, name) for name in STATISTICS}


def open_words(scheme: DEW, workspace: Workspace) -> WordReader:
    """A reader with the encoder that the scheme names."""
    encoder = encoders.load_encoder(scheme.encoder, progress=workspace.progress)
    vectors = WordVectors(encoder, workspace.cache / _FOLDER)
    statistics = load_word_statistics(scheme.statistics, vectors=vectors, workspace=workspace)
    return WordReader(vectors, statistics, k=scheme.k, centre=scheme.centre)


def restored_words(scheme: DEW, state: State, workspace: Workspace) -> WordReader:
    """The reader of a detector that was stored."""
    encoder = encoders.load_encoder(scheme.encoder, progress=workspace.progress)
    here = {"encoder": encoder.identity, "words": VERSION}
    for name, value in here.items():
        if state.meta[name] != value:
            raise VocabularyError(
                f"the detector was made with {name} {state.meta[name]}, {value} is here; "
                "export the detector again"
            )
    arrays = (np.array(state.arrays[name], dtype=np.float32) for name in STATISTICS)
    vectors = WordVectors(encoder, workspace.cache / _FOLDER)
    return WordReader(vectors, WordStatistics(*arrays), k=scheme.k, centre=scheme.centre)


def _tokenized(text: str) -> Tokenized:
    found = words(text)
    ids = tuple(
        int.from_bytes(hashlib.blake2b(word.form.encode(), digest_size=7).digest(), "big") for word in found
    )
    return Tokenized(text, ids, tuple((word.start, word.end) for word in found))


def _forms(text: Tokenized) -> list[str]:
    return [form_of(text.text[start : min(end, start + 4 * MAX_FORM)]) for start, end in text.offsets]
