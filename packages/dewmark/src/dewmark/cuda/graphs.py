"""Work on a CUDA device as one launch: captured once, replayed at every step.

Launched one by one from Python, a step's small kernels take longer than the device needs for them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def captured(work: Callable[[], object], *, device: torch.device) -> Callable[[], None]:
    """Capture ``work`` as a CUDA graph, after a few warm-up runs on its own stream; returns the replay."""
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    graph = torch.cuda.CUDAGraph()
    collects = gc.isenabled()
    gc.disable()  # a graph that is collected during the capture of another would break it
    try:
        with torch.cuda.stream(stream):
            for _ in range(3):  # first calls compile, allocate and choose algorithms: not to be captured
                work()
            stream.synchronize()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
    finally:
        if collects:
            gc.enable()
    torch.cuda.current_stream(device).wait_stream(stream)

    def replay(kept: Callable[[], object] = work) -> None:  # keeps the graph's buffers alive
        graph.replay()

    return replay


class Replayed:
    """A function of tensors, captured for inputs of one shape.

    ``changed`` are the tensors that it changes besides; capturing leaves them as they were.
    """

    def __init__(
        self, work: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor], *, changed: Sequence[Tensor]
    ) -> None:
        with torch.inference_mode():
            self._inputs = tuple(tensor.clone() for tensor in inputs)
            self._outputs: list[Tensor] = []
            before = [tensor.clone() for tensor in changed]
            outputs, own = self._outputs, self._inputs

            def run() -> None:
                outputs[:] = work(*own)

            try:
                self._replay = captured(run, device=inputs[0].device)
            finally:
                for tensor, value in zip(changed, before, strict=True):
                    tensor.copy_(value)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute with other values; the outputs are the caller's to keep."""
        with torch.inference_mode():
            for mine, given in zip(self._inputs, inputs, strict=True):
                mine.copy_(given)
            self._replay()
        return tuple(tensor.clone() for tensor in self._outputs)
