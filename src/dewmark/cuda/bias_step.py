"""The bias mark on a CUDA device: what a step costs beside the host is a few small kernels.

`Steps` is the marking step of ordinary sessions. From Python each kernel costs as much to launch as the
device needs for it, so the step is captured in a CUDA graph and replayed, one launch for all of it.

`GraphMark` and `WindowMark` are the same mark with buffers of fixed shape, for decoding loops that are
themselves captured in CUDA graphs. Contexts depend on the last tokens alone, so a loop has them computed
beside the host's forward pass, and only `mark_` waits for the logits.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from dewmark.errors import ConfigError
from dewmark.text.windows import ABSENT

if TYPE_CHECKING:
    from dewmark.cuda.window_contexts import WindowRows
    from dewmark.dew.alignment import DeviceTables
    from dewmark.dew.scheme import DEW, BoundDEW

__all__ = ["GraphMark", "Steps", "WindowMark", "can_fuse", "captured"]

_LARGEST = 64  # rows of a captured step: beyond, the device needs longer than the launches
_SEEN_BEFORE = 4  # steps of a size before it is captured, so that a short text pays for no capture


def can_fuse(scheme: DEW, device: torch.device) -> bool:
    """Whether the kernels do this scheme's step: a fixed number of candidates, on a GPU with Triton."""
    if device.type != "cuda" or scheme.sampler != "bias" or scheme.nucleus is not None:
        return False
    return scheme.candidates <= _most_candidates()


@functools.cache
def _most_candidates() -> int:
    """How many the kernels take; none without Triton."""
    try:
        from dewmark.cuda.bias_kernels import MOST
    except ImportError:
        return 0
    return MOST


def captured(work: Callable[[], object], *, device: torch.device, priority: int = 0) -> Callable[[], None]:
    """The work as a CUDA graph to replay, after it ran a few times on a stream with a workspace of its own.

    The graph's kernels keep the ``priority`` of the stream on which they were captured.
    """
    stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):  # what is compiled, allocated or chosen at a first call must not be captured
            work()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    torch.cuda.current_stream(device).wait_stream(stream)

    def replay(kept: Callable[[], object] = work) -> None:  # the graph uses its buffers
        graph.replay()

    return replay


class _Mark:
    """Buffers of a batch of fixed size: contexts e (batch, d_C) of any length, and their products with G."""

    def __init__(self, scheme: DEW, tables: DeviceTables, *, n: int, batch: int) -> None:
        from dewmark.cuda.bias_kernels import maxima_of

        device, (vocab, width) = tables.Q.device, tables.Q.shape
        self._scheme, self._tables, self._n = scheme, tables, n
        self._m = min(scheme.candidates, vocab)
        with torch.inference_mode(False):  # buffers that are written in any mode
            self.contexts = torch.zeros(batch, width, device=device)
            self.products = torch.zeros(batch, width, device=device)
            self._maxima = maxima_of(batch, vocab, device=device)

    def read(self) -> None:
        """Compute what the mark needs of the contexts."""
        torch.mm(self.contexts, self._tables.G, out=self.products)

    def mark_(self, scores: torch.Tensor) -> torch.Tensor:
        """Bias the candidates of logits (batch, vocab), in place; can be captured in a CUDA graph."""
        from dewmark.cuda.bias_kernels import bias_top_

        return bias_top_(
            scores,
            self._tables.Q,
            self.contexts,
            self.products,
            maxima=self._maxima,
            m=self._m,
            strength=self._scheme.lambda_,
            gamma=self._scheme.gamma,
            n=self._n,
        )


class GraphMark(_Mark):
    """Marks a batch of fixed size with composed contexts; every method can be captured in a CUDA graph.

    ``windows`` (batch, k) are the rows' last ids; write into it when a row begins another text. The id that
    stands for nothing (before a text's start) is ``absent``.
    """

    def __init__(self, scheme: DEW, tables: DeviceTables, *, n: int, batch: int) -> None:
        super().__init__(scheme, tables, n=n, batch=batch)
        if tables.context_rows is None:
            raise ConfigError("GraphMark is for context=composed: with context=window use WindowMark")
        self._rows = tables.context_rows
        self.absent = len(tables.Q)
        with torch.inference_mode(False):
            self.windows = torch.full((batch, scheme.k), self.absent, device=tables.Q.device)

    @classmethod
    def of(cls, bound: BoundDEW, *, batch: int, device: torch.device) -> GraphMark:
        """The mark of a bound scheme on a CUDA device."""
        return cls(bound.scheme, _tables(bound, device), n=bound.fold.n, batch=batch)

    def observe(self, ids: torch.Tensor) -> None:
        """Append each row's next id (batch,) to its window."""
        self.windows.copy_(torch.cat((self.windows[:, 1:], ids.unsqueeze(1)), dim=1))

    def read(self) -> None:
        """Compute the contexts of what follows the windows, and what the mark needs of them."""
        torch.sum(self._rows[self.windows], dim=1, dtype=torch.float32, out=self.contexts)
        super().read()


class WindowMark(_Mark):
    """Marks a batch of fixed size with window contexts; only `mark_` belongs into a CUDA graph.

    The encoder needs text, so the tokens come to the CPU. A loop queues the host's forward pass, takes the
    last ids, calls `start`, which encodes beside the host, then `wait`, and replays the rest of the step:
    `mark_` and the choice of the next ids.
    """

    def __init__(
        self,
        scheme: DEW,
        tables: DeviceTables,
        *,
        n: int,
        batch: int,
        encoded: WindowRows,
        special: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(scheme, tables, n=n, batch=batch)
        self._encoded, self._special, self._k = encoded, special, scheme.k
        self._windows = [(ABSENT,) * scheme.k] * batch

    @classmethod
    def of(cls, bound: BoundDEW, *, batch: int, device: torch.device) -> WindowMark:
        """The mark of a bound scheme on a CUDA device, which must be its encoder's too."""
        from dewmark.cuda.window_contexts import window_rows

        tables, contexts = _tables(bound, device), bound.hashed or getattr(bound.reader, "contexts", None)
        encoded = bound.shared(f"windows on {device}", lambda: window_rows(contexts, device))
        if encoded is None:
            raise ConfigError(
                f"WindowMark needs context=window and an encoder that runs on {device}; got "
                f"context={bound.scheme.context} encoder={bound.scheme.encoder}"
            )
        special = frozenset(bound.host.tokenizer.special_ids)
        return cls(bound.scheme, tables, n=bound.fold.n, batch=batch, encoded=encoded, special=special)

    def begin(self, row: int, ids: Sequence[int]) -> None:
        """A row begins another text with these ids."""
        self._windows[row] = (ABSENT,) * self._k
        for token in ids[-self._k :]:
            self._push(row, token)

    def start(self, ids: Sequence[int]) -> None:
        """Append each row's next id to its window, and have the contexts of what follows computed.

        What was marked before these ids were chosen is done with the contexts: nothing else is waited for.
        """
        for row, token in enumerate(ids):
            self._push(row, token)
        with torch.cuda.stream(self._encoded.stream):
            self._encoded.begin(self._windows, out=self.contexts)
            self.read()

    def wait(self) -> None:
        """Let what is queued from here on wait for the contexts."""
        torch.cuda.current_stream(self.contexts.device).wait_stream(self._encoded.stream)

    def _push(self, row: int, token: int) -> None:
        self._windows[row] = (*self._windows[row][1:], ABSENT if token in self._special else token)


def _tables(bound: BoundDEW, device: torch.device) -> DeviceTables:
    """Tables on a device where the scheme's step can be captured, or a refusal."""
    from dewmark.dew.alignment import DeviceTables

    scheme = bound.scheme
    if scheme.units != "token" or not can_fuse(scheme, device):
        raise ConfigError(
            "a mark inside a CUDA graph needs units=token, sampler=bias, no nucleus, at most 128 candidates, "
            f"CUDA, Triton; got units={scheme.units} sampler={scheme.sampler} nucleus={scheme.nucleus} "
            f"m={scheme.candidates} on {device}"
        )
    return DeviceTables.of(bound, device)


class _Step:
    """One size of step, captured: logits and windows, or contexts, are copied in; `replay` marks them."""

    def __init__(self, mark: _Mark, vocab: int, dtype: torch.dtype) -> None:
        device = mark.contexts.device
        self.into = mark.windows if isinstance(mark, GraphMark) else mark.contexts
        with torch.inference_mode(False), torch.no_grad():
            self.scores = torch.zeros(len(self.into), vocab, dtype=dtype, device=device)

            def work() -> None:
                mark.read()
                mark.mark_(self.scores)

            self.replay = captured(work, device=device)


class Steps:
    """The marking steps of a bound scheme's sessions on one device: logits in, marked logits out.

    A batch is padded to a power of two rows; a size that comes again and again is captured.
    """

    def __init__(self, scheme: DEW, tables: DeviceTables, *, n: int) -> None:
        self._scheme, self._tables, self._n = scheme, tables, n
        self._lock = threading.Lock()
        self._seen: Counter[tuple[int, torch.dtype]] = Counter()
        self._steps: dict[tuple[int, torch.dtype], _Step] = {}
        self._stream: torch.cuda.Stream | None = None  # of the last replay

    @torch.no_grad()
    def __call__(self, before: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Marked logits (batch, vocab), a new tensor; the logits given stay.

        ``before`` is what decides the contexts: windows of ids (batch, k) where contexts are composed, else
        contexts (batch, d_C) of any length, float32.
        """
        rows = len(scores)
        if rows > _LARGEST or torch.cuda.is_current_stream_capturing():
            return self._plain(before, scores)
        with self._lock:  # the buffers of a size are shared by all sessions
            step = self._step((1 << (rows - 1).bit_length(), scores.dtype))
            if step is None:
                return self._plain(before, scores)
            stream = torch.cuda.current_stream(scores.device)
            if self._stream is not None and self._stream != stream:
                stream.wait_stream(self._stream)
            self._stream = stream
            into, held = step.into, step.scores
            if rows < len(held):
                into, held = into[:rows], held[:rows]
            into.copy_(before)
            held.copy_(scores)
            step.replay()
            return held.clone()

    def _step(self, size: tuple[int, torch.dtype]) -> _Step | None:
        """The captured step of a size, or None as long as it is rare."""
        found = self._steps.get(size)
        if found is None:
            self._seen[size] += 1
            if self._seen[size] > _SEEN_BEFORE:
                found = self._steps[size] = _Step(self._mark(size[0]), len(self._tables.Q), size[1])
        return found

    def _plain(self, before: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        mark = self._mark(len(scores))
        (mark.windows if isinstance(mark, GraphMark) else mark.contexts).copy_(before)
        mark.read()
        return mark.mark_(scores.clone(memory_format=torch.contiguous_format))

    def _mark(self, batch: int) -> _Mark:
        kind = _Mark if self._tables.context_rows is None else GraphMark
        return kind(self._scheme, self._tables, n=self._n, batch=batch)
