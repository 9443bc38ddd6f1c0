"""How DEW reads a batch of texts, before any key: distinct units, distinct contexts, and their pairs.

Every distinct context and unit of the batch is looked up once. One key's alignments are then a small
product, so scoring the same texts under many keys repeats no encoder work. Units are the host's tokens
(`TokenReader`, the paper) or words (`dewmark.dew.words.WordReader`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F16, F32, I64
from dewmark.embeddings.contexts import ABSENT, Contexts, windows_of
from dewmark.embeddings.mapped import rows_of
from dewmark.embeddings.parts import Parts
from dewmark.workspace import HostInfo, Tokenized

__all__ = ["Pairs", "Reader", "Reading", "TokenReader", "chunks", "pairs_of", "units_per_chunk"]


_UNITS_PER_CHUNK = 100_000
_BYTES_PER_CHUNK = 32 << 20


@dataclass(frozen=True)
class Pairs:
    """The N distinct (context, unit) pairs of one text of L units.

    ``tokens`` and ``windows`` (N,) index the batch's distinct units and windows, ``weights`` (N,) count the
    occurrences, ``positions`` (L,) give each unit's pair, or -1 if it is not scored.
    """

    tokens: I64
    windows: I64
    weights: NDArray[np.float64]
    positions: I64


@dataclass(frozen=True)
class Reading:
    """A batch: V distinct units with ê_T (V, d_T), W distinct windows with ê_C (W, d_C), pairs per text.

    ``contexts`` are the ê_C, whole or as sums of a few vectors each; None where the key makes them itself.
    Host tokens also come with their ``ids`` (V,) and ``windows`` (W, k), for modes in which a key does
    without meaning.
    """

    token_rows: F32
    contexts: F32 | Parts | None
    texts: tuple[Pairs, ...]
    ids: I64
    windows: I64

    @property
    def parts(self) -> Parts | None:
        """The contexts as sums, where they are such."""
        return self.contexts if isinstance(self.contexts, Parts) else None

    @property
    def context_rows(self) -> F32 | None:
        """ê_C (W, d_C), or None where the key makes them itself."""
        return self.contexts.vectors if isinstance(self.contexts, Parts) else self.contexts


class Reader(ABC):
    """Cuts texts into units and looks up what they and their contexts mean."""

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Cut texts into units."""

    @abstractmethod
    def read(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> Reading:
        """Read texts, each after its prompt."""


class TokenReader(Reader):
    """Reads the host's tokens; ``token_rows`` (vocab, d_T) is Ê_T, ``contexts`` None if a key makes them."""

    def __init__(self, host: HostInfo, token_rows: F16, contexts: Contexts | None, *, k: int) -> None:
        self.host = host
        self.token_rows = token_rows
        self.contexts = contexts
        self.k = k

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Cut texts into the host's tokens."""
        return self.host.tokenizer.encode(list(texts))

    def read(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> Reading:
        """Read texts, each after its prompt."""
        k = self.k
        windows, scored = [np.zeros((0, k), dtype=np.int64)], [np.zeros(0, dtype=bool)]
        for text, prompt in zip(texts, prompts, strict=True):
            before = prompt.ids[-k:]
            mine = windows_of(before + text.ids, k=k, host=self.host)[len(before) :]
            usable = (mine != ABSENT).any(axis=1)
            if not before:
                usable[:k] = (
                    False  # without the prompt the first k contexts are not the ones that were marked
                )
            windows.append(mine)
            scored.append(usable)
        tokens = np.array([i for text in texts for i in text.ids], dtype=np.int64)
        known = tokens < self.host.vocab_size
        ids, token_index = np.unique(np.where(known, tokens, 0), return_inverse=True)
        rows = rows_of(self.token_rows, ids)
        usable = np.concatenate(scored) & known & np.any(rows != 0, axis=1)[token_index]
        distinct, found = _distinct(np.concatenate(windows)[usable], self.host.vocab_size)
        window_index = np.full(len(tokens), -1, dtype=np.int64)
        window_index[usable] = found
        contexts: F32 | Parts | None = None
        if self.contexts is not None:
            parts = self.contexts.parts(distinct)
            contexts = self.contexts.vectors(distinct) if parts is None else parts
        return Reading(
            token_rows=rows,
            contexts=contexts,
            texts=pairs_of(token_index, window_index, [len(text.ids) for text in texts]),
            ids=ids,
            windows=distinct,
        )


def _distinct(windows: I64, size: int) -> tuple[I64, I64]:
    """The distinct rows of windows (N, k), ids under ``size`` or `ABSENT`, and each row's place in them."""
    k = windows.shape[1]
    if (size + 1) ** k >= 1 << 63:
        return np.unique(windows, axis=0, return_inverse=True)
    powers = (size + 1) ** np.arange(
        k - 1, -1, -1, dtype=np.int64
    )  # one integer per window sorts ten times faster
    codes, found = np.unique((windows - ABSENT) @ powers, return_inverse=True)
    return (codes[:, None] // powers) % (size + 1) + ABSENT, found


def pairs_of(units: I64, windows: I64, lengths: Sequence[int]) -> tuple[Pairs, ...]:
    """Indices of units and windows (all units of all texts,), -1 where none is scored, to pairs per text."""
    width = int(units.max(initial=0)) + 1
    codes = np.where(windows >= 0, windows * width + units, -1)  # one integer per (context, unit) pair
    ends = np.cumsum(lengths)
    return tuple(_pairs(codes[end - length : end], width) for end, length in zip(ends, lengths, strict=True))


def _pairs(mine: I64, width: int) -> Pairs:
    distinct, inverse, counts = np.unique(mine[mine >= 0], return_inverse=True, return_counts=True)
    windows, units = np.divmod(distinct, width)
    positions = np.full(len(mine), -1, dtype=np.int64)
    positions[mine >= 0] = inverse
    return Pairs(tokens=units, windows=windows, weights=counts.astype(np.float64), positions=positions)


def units_per_chunk(d_T: int, d_C: int) -> int:
    """How many units to read at once: their vectors, and contexts before and after scaling, take 32 MB."""
    return max(_BYTES_PER_CHUNK // (4 * (d_T + 2 * d_C)), 1)


def chunks(texts: Sequence[Tokenized], *, units: int = _UNITS_PER_CHUNK) -> Iterator[list[int]]:
    """Indices in runs of about ``units`` units, so that memory does not grow with the batch."""
    chunk: list[int] = []
    size = 0
    for i, text in enumerate(texts):
        if chunk and size + len(text.ids) > units:
            yield chunk
            chunk, size = [], 0
        chunk.append(i)
        size += len(text.ids)
    if chunk:
        yield chunk
