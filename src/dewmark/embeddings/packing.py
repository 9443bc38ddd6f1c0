"""Rows of ids as bytes, and batches of them.

Between two steps of a language model each object that Python touches costs its time. The ids of a word are
kept as the bytes of an int32 array: those of a text are joined in one call, and a batch in another.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["WIDTH", "ids_and_mask", "packed", "padded"]

_INT = "i"
WIDTH = array(_INT).itemsize  # bytes of an id
_NO_ID = b"\xff"  # each byte of -1


def packed(ids: Iterable[int]) -> bytes:
    """Ids as bytes."""
    return array(_INT, ids).tobytes()


def padded(rows: Sequence[bytes], *, multiple: int = 1) -> torch.Tensor:
    """Rows of ids as one batch (N, T), int32, -1 where no id is; T is a multiple of ``multiple``."""
    import torch

    longest, step = max(map(len, rows)) or WIDTH, WIDTH * multiple
    width = -(-longest // step) * step
    joined = bytearray().join([row.ljust(width, _NO_ID) for row in rows])
    return torch.frombuffer(joined, dtype=torch.int32).view(len(rows), -1)


def ids_and_mask(batch: torch.Tensor, *, fill: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, (N, T) each, int64, of a batch (N, T); the id ``fill`` stands where none is."""
    present = batch >= 0
    return batch.long().masked_fill_(~present, fill), present.long()
