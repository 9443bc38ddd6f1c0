"""Rows of a table that may be larger than memory should be.

The tables of a stored detector are memory-mapped files, which all processes share. A row that is read makes
its page resident, and the kernel maps the pages around it too, so in time all of the table would count as
this process's. Rows are therefore copied out in blocks, and after each the mapping is given back: the pages
stay in the kernel's cache of files, where the next look finds them.
"""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F32, I64

__all__ = ["rows_of"]


_AT_ONCE = 16  # the kernel may map two megabytes around each row


def rows_of(table: NDArray[np.floating], ids: I64) -> F32:
    """Rows (N, d) of a table (V, d), memory-mapped or not, as float32."""
    mapped = getattr(table, "_mmap", None)
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return np.asarray(table[ids], dtype=np.float32)
    out = np.empty((len(ids), table.shape[1]), dtype=np.float32)
    plain = np.asarray(table)
    for i in range(0, len(ids), _AT_ONCE):
        out[i : i + _AT_ONCE] = plain[ids[i : i + _AT_ONCE]]
        mapped.madvise(mmap.MADV_DONTNEED)
    return out
