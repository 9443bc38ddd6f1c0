"""Contexts of windows on a CUDA device, begun as soon as a window's last token is known.

The encoder needs the text of the last k tokens and no logits. So a session is told of the tokens before the
host computes with them (`Session.ahead`): new windows are encoded on a stream of their own, whitened and
kept, and when the logits are there the contexts are too. Every distinct window is encoded once.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import torch

from dewmark.embeddings.contexts import ABSENT, WindowContexts

if TYPE_CHECKING:
    from dewmark.embeddings.graphed import GraphedEncoder

__all__ = ["WindowRows", "window_rows"]

Window = tuple[int, ...]

_MOST = 200_000
_FIRST = 4096


def window_rows(contexts: object, device: torch.device) -> WindowRows | None:
    """Rows of windows on a device, where the contexts are windows and their encoder runs on it."""
    if device.type != "cuda" or not isinstance(contexts, WindowContexts):
        return None
    encoder = contexts.encoder.graphed(device)
    return None if encoder is None else WindowRows(contexts, encoder, device)


class WindowRows:
    """ê_C by window; row 0 is zero, for a window in which nothing stands."""

    def __init__(self, contexts: WindowContexts, encoder: GraphedEncoder, device: torch.device) -> None:
        self._tokenizer = contexts.tokenizer
        self._encoder = encoder
        self._whitening = None
        if contexts.whitening is not None:
            mean, matrix = contexts.whitening.mean, contexts.whitening.matrix
            self._whitening = tuple(
                torch.from_numpy(np.asarray(array, dtype=np.float32)).to(device) for array in (mean, matrix)
            )
        self._lock = threading.Lock()
        self._index: dict[Window, int] = {}
        self._rows = torch.zeros(_FIRST, contexts.dim, device=device)

    def index(self, windows: torch.Tensor, *, absent: int) -> torch.Tensor:
        """Where the contexts of windows (batch, k) are, (batch,); what is new is begun, not waited for.

        ``absent`` is the id that stands for no token.
        """
        keys = [tuple(ABSENT if i == absent else i for i in row) for row in windows.tolist()]
        wanted = [key for key in dict.fromkeys(keys) if any(i != ABSENT for i in key)]
        with self._lock:
            if len(self._index) + len(wanted) > _MOST:
                self._index = {}
            new = [key for key in wanted if key not in self._index]
            if new:
                self._add(new)
            found = [self._index.get(key, 0) for key in keys]
        return torch.tensor(found).pin_memory().to(self._rows.device, non_blocking=True)

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """ê_C (batch, d_C), float32, once they are computed."""
        torch.cuda.current_stream(self._rows.device).wait_stream(self._encoder.stream)
        return self._rows[index]

    def _add(self, new: list[Window]) -> None:
        start = len(self._index) + 1
        end = start + len(new)
        texts = self._tokenizer.decode([[i for i in key if i != ABSENT] for key in new])
        fresh = self._encoder.encode(texts)
        stream = self._encoder.stream
        stream.wait_stream(torch.cuda.current_stream(self._rows.device))  # its readers may still be at work
        with torch.cuda.stream(stream):
            if self._whitening is not None:
                mean, matrix = self._whitening
                fresh = (fresh - mean) @ matrix
            if end > len(self._rows):
                grown = self._rows.new_zeros(max(end, 2 * len(self._rows)), self._rows.shape[1])
                grown[:start] = self._rows[:start]
                self._rows = grown
            self._rows[start:end] = torch.nn.functional.normalize(fresh, dim=-1, eps=1e-12)
        self._index.update(zip(new, range(start, end), strict=True))
