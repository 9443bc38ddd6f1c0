"""Seconds per text to generate and to detect, and peak memory, for several schemes in turn.

Every round times all schemes, in an order that rotates, so that a busy machine affects them alike. A first
short round is not counted: it builds tables, fills caches and compiles kernels. Texts are generated and
detected one by one; each round has its own prompts, and a scheme detects its own texts. Boundary: a loaded
host and bound schemes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dewmark.decoding import Decoding
from dewmark.detect import detect_texts
from dewmark.hosts.base import Host
from dewmark.scheme import BoundScheme

if TYPE_CHECKING:
    import torch

GENERATE, DETECT = "generate", "detect"
NO_MARK = "none"
_WARM_TOKENS = 24
_MIB = 1 << 20

T = TypeVar("T")


def device_name(host: Host) -> str:
    """The name of the host's device."""
    import torch

    device = host.device
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{device.type} ({platform.machine()}, {torch.get_num_threads()} threads)"


def warm_up(host: Host, schemes: Mapping[str, BoundScheme], prompt: str, *, decoding: Decoding) -> None:
    """Generate and detect one short text with every scheme."""
    tokens = min(_WARM_TOKENS, decoding.max_new_tokens)
    short = dataclasses.replace(decoding, max_new_tokens=tokens, min_new_tokens=tokens)
    for bound in (None, *schemes.values()):
        text = _generate(host, bound, prompt, 0, short)
        if bound is not None and text.strip():
            detect_texts([text], bound)


def time_round(
    host: Host, schemes: Mapping[str, BoundScheme], prompts: Sequence[str], *, decoding: Decoding, number: int
) -> list[dict[str, Any]]:
    """Time round ``number``: every scheme, and unmarked text, on these prompts.

    A row per scheme and phase; ``peak_mib`` is None if the system does not report it.
    """
    labels = [NO_MARK, *schemes]
    start = number % len(labels)
    device = device_name(host)
    costs: dict[tuple[str, str], list[float | None]] = {}
    for label in labels[start:] + labels[:start]:
        bound = schemes.get(label)
        writing = [partial(_generate, host, bound, prompt, i, decoding) for i, prompt in enumerate(prompts)]
        texts, *costs[label, GENERATE] = _measured(host, writing)
        if bound is not None:
            reading = [partial(detect_texts, [text], bound) for text in texts if text.strip()]
            _, *costs[label, DETECT] = _measured(host, reading or [partial(detect_texts, ["."], bound)])
    return [
        {
            "scheme": label,
            "phase": phase,
            "round": number,
            "seconds_per_text": costs[label, phase][0],
            "peak_mib": costs[label, phase][1],
            "device": device,
        }
        for phase in (GENERATE, DETECT)
        for label in labels
        if (label, phase) in costs
    ]


def _generate(host: Host, bound: BoundScheme | None, prompt: str, seed: int, decoding: Decoding) -> str:
    made = host.generate([prompt], scheme=bound, seeds=[seed], batch_size=1, decoding=decoding)
    return made[0].text


def now_on(device: torch.device) -> float:
    """The time when a device has finished its work."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    return time.perf_counter()


def _measured(host: Host, work: Sequence[Callable[[], T]]) -> tuple[list[T], float, float | None]:
    """Results, seconds per piece of work and the peak memory (MiB): the GPU's, or the process's on a CPU."""
    import torch

    cuda = host.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    else:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the high-water mark
    began = now_on(host.device)
    done = [each() for each in work]
    seconds = (now_on(host.device) - began) / len(work)
    return done, seconds, round(torch.cuda.max_memory_allocated() / _MIB, 1) if cuda else _resident_peak()


def _resident_peak() -> float | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) / 1024, 1)
    return None
