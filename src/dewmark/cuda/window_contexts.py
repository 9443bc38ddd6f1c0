"""Contexts of windows on a CUDA device, begun as soon as a window's last token is known.

The encoder needs the text of the last k tokens and no logits. So a session is told of the tokens before the
host computes with them (`Session.ahead`): new windows are encoded on a stream of their own, whitened and
kept, and when the logits are there the contexts are too. A batch of known windows is looked up; one in which
at least half are new is encoded as it is, which costs the CPU less than to put it together. All that touches
the kept rows runs on that stream, so it never waits for the host's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from dewmark.encoders.contexts import WindowContexts
from dewmark.text.windows import ABSENT

if TYPE_CHECKING:
    from dewmark.cuda.encoder import GraphedEncoder

__all__ = ["Window", "WindowRows", "window_rows"]

Window = tuple[int, ...]

_MOST = 200_000
_FIRST = 4096


def window_rows(contexts: object, device: torch.device) -> WindowRows | None:
    """Rows of windows on a device, where the contexts are windows and their encoder runs on it."""
    if device.type != "cuda" or not isinstance(contexts, WindowContexts):
        return None
    encoder = contexts.encoder.graphed(device)
    if encoder is None:
        return None
    return WindowRows(contexts, encoder, device)


class WindowRows:
    """e_C by window, of any length; row 0 is zero, for a window in which nothing stands."""

    def __init__(self, contexts: WindowContexts, encoder: GraphedEncoder, device: torch.device) -> None:
        self._encoder = encoder
        self._cut = encoder.of_windows(contexts.tokenizer)
        self.stream = encoder.stream
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # of all that was begun
        self._index: dict[Window, int] = {}
        self._used = 1
        with torch.inference_mode(False):  # rows that can be written in any mode
            self._rows = torch.zeros(_FIRST, contexts.dim, device=device)
            self._whitening = None
            if contexts.whitening is not None:
                mean, matrix = (
                    torch.from_numpy(np.array(array, dtype=np.float32)).to(device)
                    for array in (contexts.whitening.mean, contexts.whitening.matrix)
                )
                self._whitening = (-mean @ matrix, matrix)
        self.stream.wait_stream(torch.cuda.current_stream(device))

    def begin(self, windows: Sequence[Window], *, out: torch.Tensor | None = None) -> torch.Tensor:
        """e_C of windows of ids or `ABSENT`, (batch, d_C) float32, being computed on `stream`.

        Nothing is waited for: use them through `ready`, or wait for the stream.
        """
        with self._encoder.lock, torch.cuda.stream(self.stream):
            found = self._rows_of(windows, out)
            self._done.record(self.stream)
        return found

    def ready(self, begun: torch.Tensor) -> torch.Tensor:
        """What `begin` gave, for the current stream, which waits for it."""
        stream = torch.cuda.current_stream(begun.device)
        stream.wait_event(self._done)
        begun.record_stream(stream)
        return begun

    def _rows_of(self, windows: Sequence[Window], out: torch.Tensor | None) -> torch.Tensor:
        if not windows:
            return self._rows[:0]
        if self._used + len(windows) > _MOST:
            self._index, self._used = {}, 1
            self._grow(_FIRST)  # others may still read the former rows
        self._index[(ABSENT,) * len(windows[0])] = 0
        ahead = range(self._used, self._used + len(windows))
        places = list(map(self._index.setdefault, windows, ahead))
        new = [
            window
            for window, place, next_one in zip(windows, places, ahead, strict=True)
            if place == next_one
        ]
        try:
            if 2 * len(new) >= len(windows) and 0 not in places:  # the few others are cheaper than to look up
                fresh = self._add(windows)
                return fresh if out is None else out.copy_(fresh)
            if new:
                self._index.update(zip(new, ahead, strict=False))
                self._add(new)
                places = [self._index[window] for window in windows]
        except BaseException:
            for window in new:  # they have places without rows
                del self._index[window]
            raise
        index = torch.tensor(places, dtype=torch.long).to(self._rows.device, non_blocking=True)
        return torch.index_select(self._rows, 0, index, out=out)

    def _add(self, windows: Sequence[Window]) -> torch.Tensor:
        """Encode windows; their rows, the next ones."""
        start, end = self._used, self._used + len(windows)
        fresh = self._encoder.encode(windows, self._cut)
        if end > len(self._rows):
            former = self._rows
            self._grow(max(end, 2 * len(former)))
            self._rows[:start] = former[:start]
        rows = self._rows[start:end]
        if self._whitening is None:
            rows.copy_(fresh)
        else:  # (fresh - mean) @ matrix
            shift, matrix = self._whitening
            torch.addmm(shift, fresh, matrix, out=rows)
        self._used = end
        return rows

    @torch.inference_mode(False)
    def _grow(self, size: int) -> None:
        """Other rows, all of them zero."""
        self._rows = torch.zeros(size, self._rows.shape[1], device=self._rows.device)
