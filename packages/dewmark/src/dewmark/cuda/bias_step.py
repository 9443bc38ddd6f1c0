"""DEW's bias step on a CUDA device, captured in CUDA graphs.

Launched one by one from Python, the step's small kernels take as much CPU time as GPU time. So the step is
captured once per batch size, and every later step is a single launch.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from dataclasses import dataclass

import torch

from dewmark.cuda.graphs import captured

_LARGEST_BATCH = 64  # that is captured; with more rows the device takes longer than the launches
_EAGER_STEPS = 4  # before a batch size is captured, so that short texts do not pay for a capture


@functools.cache
def max_candidates() -> int:
    """How many candidates per row the kernels can score; 0 without Triton."""
    try:
        from dewmark.cuda.bias_kernels import MOST
    except ImportError:
        return 0
    return MOST


@dataclass(frozen=True, repr=False)
class BiasParameters:
    """λ, γ, m, n and the tables: Q (vocab, d_C), G (d_C, d_C), float32, on the device.

    ``context_rows`` (vocab + 1, d_C) holds the vectors that composed contexts are sums of; the last row is
    zero, for positions before a text begins. Without composed contexts it is None.
    """

    strength: float
    gamma: float
    m: int
    n: int
    Q: torch.Tensor
    G: torch.Tensor
    context_rows: torch.Tensor | None


class BiasStep:
    """One step for a batch of fixed size; `read` and `bias_` can be captured in a CUDA graph.

    ``inputs`` is the buffer to fill before each step: windows of ids (batch, k) where contexts are composed,
    otherwise contexts (batch, d_C) of any norm.
    """

    def __init__(self, parameters: BiasParameters, *, batch: int, k: int) -> None:
        from dewmark.cuda.bias_kernels import maxima_of

        self._parameters = parameters
        device, (vocab, width) = parameters.Q.device, parameters.Q.shape
        with torch.inference_mode(False):  # buffers that can be written in any mode
            self._contexts = torch.zeros(batch, width, device=device)
            self._products = torch.zeros(batch, width, device=device)
            self._maxima = maxima_of(batch, vocab, device=device)
            self.inputs = self._contexts
            if parameters.context_rows is not None:
                self.inputs = torch.full((batch, k), vocab, device=device)

    def read(self) -> None:
        """Compute the contexts and their products with G."""
        rows = self._parameters.context_rows
        if rows is not None:
            torch.sum(rows[self.inputs], dim=1, dtype=torch.float32, out=self._contexts)
        torch.mm(self._contexts, self._parameters.G, out=self._products)

    def bias_(self, scores: torch.Tensor) -> torch.Tensor:
        """Add the bias to the likeliest candidates of logits (batch, vocab), in place."""
        from dewmark.cuda.bias_kernels import bias_top_

        p = self._parameters
        return bias_top_(
            scores,
            p.Q,
            self._contexts,
            self._products,
            maxima=self._maxima,
            m=min(p.m, len(p.Q)),
            strength=p.strength,
            gamma=p.gamma,
            n=p.n,
        )


class _CapturedStep:
    """A captured `BiasStep` with a buffer for the logits."""

    def __init__(self, step: BiasStep, *, batch: int, vocab: int, dtype: torch.dtype) -> None:
        self.inputs = step.inputs
        with torch.inference_mode(False), torch.no_grad():
            self.scores = torch.zeros(batch, vocab, dtype=dtype, device=step.inputs.device)

            def work() -> None:
                step.read()
                step.bias_(self.scores)

            self.replay = captured(work, device=step.inputs.device)


class BiasSteps:
    """The bias step for batches of any size, shared by all sessions of one key on one device.

    Batches are padded to a power of two rows; sizes that recur are captured.
    """

    def __init__(self, parameters: BiasParameters, *, k: int) -> None:
        self._parameters, self._k = parameters, k
        self._lock = threading.Lock()
        self._seen: Counter[tuple[int, torch.dtype]] = Counter()
        self._captured: dict[tuple[int, torch.dtype], _CapturedStep] = {}
        self._stream: torch.cuda.Stream | None = None  # of the last replay

    @torch.no_grad()
    def __call__(self, inputs: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Marked logits (batch, vocab) in a new tensor; for ``inputs`` see `BiasStep`."""
        rows = len(scores)
        if rows > _LARGEST_BATCH or torch.cuda.is_current_stream_capturing():
            return self._eager(inputs, scores)
        with self._lock:  # sessions share the buffers of a size
            step = self._step(1 << (rows - 1).bit_length(), scores.dtype)
            if step is None:
                return self._eager(inputs, scores)
            stream = torch.cuda.current_stream(scores.device)
            if self._stream is not None and self._stream != stream:
                stream.wait_stream(self._stream)
            self._stream = stream
            given, held = step.inputs, step.scores
            if rows < len(held):
                given, held = given[:rows], held[:rows]
            given.copy_(inputs)
            held.copy_(scores)
            step.replay()
            return held.clone()

    def _step(self, batch: int, dtype: torch.dtype) -> _CapturedStep | None:
        """The captured step for a batch size, or None while the size is still rare."""
        size = batch, dtype
        found = self._captured.get(size)
        if found is None:
            self._seen[size] += 1
            if self._seen[size] > _EAGER_STEPS:
                step = BiasStep(self._parameters, batch=batch, k=self._k)
                found = _CapturedStep(step, batch=batch, vocab=len(self._parameters.Q), dtype=dtype)
                self._captured[size] = found
        return found

    def _eager(self, inputs: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        step = BiasStep(self._parameters, batch=len(scores), k=self._k)
        step.inputs.copy_(inputs)
        step.read()
        return step.bias_(scores.clone(memory_format=torch.contiguous_format))
