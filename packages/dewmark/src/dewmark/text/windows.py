"""Windows of token ids: the k ids before a position, and their text.

`ABSENT` stands for positions before the text and for special tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dewmark.arrays import I64
from dewmark.workspace import HostInfo, Tokenizer

__all__ = ["ABSENT", "windows_of"]

ABSENT = -1


def windows_of(ids: Sequence[int], *, k: int, host: HostInfo) -> I64:
    """The window before each position of ``ids``: (len(ids), k), oldest first, padded with `ABSENT`."""
    special, size = host.tokenizer.special_ids, host.vocab_size
    plain = np.array([ABSENT if i in special or i >= size else i for i in ids], dtype=np.int64)
    padded = np.concatenate((np.full(k, ABSENT, dtype=np.int64), plain))
    return np.lib.stride_tricks.sliding_window_view(padded, k)[: len(ids)]


def window_texts(tokenizer: Tokenizer, windows: Sequence[Sequence[int]]) -> list[str]:
    """The text of each window."""
    return tokenizer.decode([[token for token in window if token >= 0] for window in windows])
