"""Rows of ids as bytes, and batches of them.

Between two steps of a language model each object that Python touches costs its time. The ids of a word are
kept as the bytes of an int32 array: those of a text are joined in one call, and a batch in another.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["WIDTH", "ids_and_mask", "packed", "padded"]

_INT = "i"
WIDTH = array(_INT).itemsize  # bytes of an id


def packed(ids: Iterable[int]) -> bytes:
    """Ids as bytes."""
    return array(_INT, ids).tobytes()


def padded(rows: Sequence[bytes], *, multiple: int = 1, fill: int = 0) -> torch.Tensor:
    """Rows of ids as ids and mask (N, 2, T), int32, ``fill`` where no id is; T is a multiple of ``multiple``.

    One row of the batch after the other, so that some of them are one piece of memory.
    """
    import torch

    longest = max(map(len, rows)) or WIDTH
    tokens = -(-longest // (WIDTH * multiple)) * multiple
    joined = bytearray().join([part for row in rows for part in (row, _rest(len(row), tokens, fill))])
    return torch.frombuffer(joined, dtype=torch.int32).view(len(rows), 2, tokens)


def ids_and_mask(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, (N, T) each, int64 and contiguous, of a batch (N, 2, T)."""
    ids, mask = batch.unbind(1)
    return ids.long().contiguous(), mask.long().contiguous()


@functools.lru_cache(maxsize=4096)
def _rest(length: int, tokens: int, fill: int) -> bytes:
    """What follows a row of so many bytes: ``fill`` up to ``tokens``, and the mask."""
    empty, present, absent = (packed([value]) * tokens for value in (fill, 1, 0))
    return empty[length:] + present[:length] + absent[length:]
