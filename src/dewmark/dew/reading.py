"""How DEW reads a batch of texts, before any key: distinct tokens, distinct contexts, and their pairs.

Every distinct context and token of the batch is looked up once. One key's alignments are then a small
product, so scoring the same texts under many keys repeats no encoder work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dewmark.embeddings.contexts import ABSENT, windows_of
from dewmark.workspace import HostInfo, Tokenized

__all__ = ["Pairs", "Reading", "chunks", "read"]

F16 = NDArray[np.float16]
F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

_TOKENS_PER_CHUNK = 100_000


@dataclass(frozen=True)
class Pairs:
    """The N distinct (context, token) pairs of one text of L tokens.

    ``tokens`` and ``windows`` (N,) index the batch's distinct tokens and windows, ``weights`` (N,) count the
    occurrences, ``positions`` (L,) give each token's pair, or -1 if it is not scored.
    """

    tokens: I64
    windows: I64
    weights: NDArray[np.float64]
    positions: I64


@dataclass(frozen=True)
class Reading:
    """A batch: distinct token ids (V,) with unit rows (V, d_T), distinct windows (W, k), pairs per text."""

    ids: I64
    token_rows: F32
    windows: I64
    texts: tuple[Pairs, ...]


def read(
    texts: Sequence[Tokenized], prompts: Sequence[Tokenized], *, k: int, host: HostInfo, token_rows: F16
) -> Reading:
    """Read texts, each after its prompt; ``token_rows`` (vocab, d_T) is Ê_T."""
    windows, scored = [np.zeros((0, k), dtype=np.int64)], [np.zeros(0, dtype=bool)]
    for text, prompt in zip(texts, prompts, strict=True):
        before = prompt.ids[-k:]
        mine = windows_of(before + text.ids, k=k, host=host)[len(before) :]
        usable = (mine != ABSENT).any(axis=1)
        if not before:
            usable[:k] = False  # without the prompt the first k contexts are not the ones that were marked
        windows.append(mine)
        scored.append(usable)
    tokens = np.array([i for text in texts for i in text.ids], dtype=np.int64)
    known = tokens < host.vocab_size
    ids, token_index = np.unique(np.where(known, tokens, 0), return_inverse=True)
    rows = np.asarray(token_rows[ids], dtype=np.float32)
    usable = np.concatenate(scored) & known & np.any(rows != 0, axis=1)[token_index]
    distinct, window_index = np.unique(np.concatenate(windows)[usable], axis=0, return_inverse=True)

    # one integer per (context, token) pair, -1 where nothing is scored, cut back into texts
    pairs = np.full(len(tokens), -1, dtype=np.int64)
    pairs[usable] = window_index * len(ids) + token_index[usable]
    ends = np.cumsum([len(text.ids) for text in texts])[:-1]
    found = tuple(_pairs(mine, len(ids)) for mine in np.split(pairs, ends)) if len(texts) else ()
    return Reading(ids=ids, token_rows=rows, windows=distinct, texts=found)


def chunks(texts: Sequence[Tokenized]) -> Iterator[list[int]]:
    """Indices in runs of about `_TOKENS_PER_CHUNK` tokens, so that memory does not grow with the batch."""
    chunk: list[int] = []
    size = 0
    for i, text in enumerate(texts):
        if chunk and size + len(text.ids) > _TOKENS_PER_CHUNK:
            yield chunk
            chunk, size = [], 0
        chunk.append(i)
        size += len(text.ids)
    if chunk:
        yield chunk


def _pairs(mine: I64, tokens: int) -> Pairs:
    distinct, inverse, counts = np.unique(mine[mine >= 0], return_inverse=True, return_counts=True)
    windows, ids = np.divmod(distinct, max(tokens, 1))
    positions = np.full(len(mine), -1, dtype=np.int64)
    positions[mine >= 0] = inverse
    return Pairs(tokens=ids, windows=windows, weights=counts.astype(np.float64), positions=positions)
