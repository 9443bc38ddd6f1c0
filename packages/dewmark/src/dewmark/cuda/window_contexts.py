"""Window contexts on a CUDA device, encoded as soon as a window's last token is known.

The encoder needs the last k tokens, but no logits. So a session passes on the tokens before the host's
forward pass (`Session.ahead`): new windows are encoded on a stream of their own, whitened and cached, and
their contexts are ready when the logits are. Known windows are looked up, but a batch in which at least half
are new is encoded as a whole, which costs less CPU time than assembling it. All work on the cached rows runs
on that stream, so it never waits for the host's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dewmark.cuda.encoder import GraphedEncoder, Tokenize

Window = tuple[int, ...]

_MOST = 200_000  # cached windows
_FIRST = 4096  # rows allocated at first


class WindowCache:
    """e_C by window, of any norm; row 0 is zero, for the empty window, whose ids are all ``absent``.

    ``tokenize`` turns windows into the encoder's ids. ``whitening`` is (mean (dim,), matrix (dim, dim)).
    """

    def __init__(
        self,
        encoder: GraphedEncoder,
        tokenize: Tokenize,
        *,
        dim: int,
        absent: int,
        whitening: tuple[torch.Tensor, torch.Tensor] | None,
        device: torch.device,
    ) -> None:
        self._encoder = encoder
        self._tokenize = tokenize
        self._absent = absent
        self.stream = encoder.stream
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # marks the end of all work begun
        self._index: dict[Window, int] = {}
        self._used = 1
        with torch.inference_mode(False):  # rows that can be written in any mode
            self._rows = torch.zeros(_FIRST, dim, device=device)
            self._whitening = None
            if whitening is not None:
                mean, matrix = (part.to(device) for part in whitening)
                self._whitening = (-mean @ matrix, matrix)
        self.stream.wait_stream(torch.cuda.current_stream(device))

    def begin(self, windows: Sequence[Window], *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Start computing e_C of windows, (batch, d_C) float32, on `stream`.

        Nothing waits: use the result through `ready`, or wait for the stream.
        """
        with self._encoder.lock, torch.cuda.stream(self.stream):
            found = self._rows_of(windows, out)
            self._done.record(self.stream)
        return found

    def ready(self, begun: torch.Tensor) -> torch.Tensor:
        """The result of `begin`, ready for use on the current stream, which waits for it."""
        stream = torch.cuda.current_stream(begun.device)
        stream.wait_event(self._done)
        begun.record_stream(stream)
        return begun

    def _rows_of(self, windows: Sequence[Window], out: torch.Tensor | None) -> torch.Tensor:
        if not windows:
            return self._rows[:0]
        if self._used + len(windows) > _MOST:
            self._index, self._used = {}, 1
            self._grow(_FIRST)  # the old rows may still be in use
        self._index[(self._absent,) * len(windows[0])] = 0
        ahead = range(self._used, self._used + len(windows))
        places = list(map(self._index.setdefault, windows, ahead))
        new = [
            window
            for window, place, next_one in zip(windows, places, ahead, strict=True)
            if place == next_one
        ]
        try:
            if 2 * len(new) >= len(windows) and 0 not in places:  # cheaper than looking up the others
                fresh = self._add(windows)
                return fresh if out is None else out.copy_(fresh)
            if new:
                self._index.update(zip(new, ahead, strict=False))
                self._add(new)
                places = [self._index[window] for window in windows]
        except BaseException:
            for window in new:  # they have no rows yet
                del self._index[window]
            raise
        index = torch.tensor(places, dtype=torch.long).to(self._rows.device, non_blocking=True)
        return torch.index_select(self._rows, 0, index, out=out)

    def _add(self, windows: Sequence[Window]) -> torch.Tensor:
        """Encode windows into the next free rows."""
        start, end = self._used, self._used + len(windows)
        fresh = self._encoder.encode(windows, self._tokenize)
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
        """Replace the rows with zeros of another size."""
        self._rows = torch.zeros(size, self._rows.shape[1], device=self._rows.device)
