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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dewmark.decoding import Decoding
from dewmark.hosts.base import Host
from dewmark.scheme import BoundScheme

GENERATE, DETECT = "generate", "detect"
NO_MARK = "none"
_WARM_TOKENS = 24
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Timing:
    """A scheme's cost in one round; ``peak_mib`` is None if the system does not report it."""

    scheme: str
    phase: str
    round: int
    seconds_per_text: float
    peak_mib: float | None
    device: str


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
            bound.detect(text)


def time_round(
    host: Host,
    schemes: Mapping[str, BoundScheme],
    prompts: Sequence[str],
    *,
    decoding: Decoding,
    number: int,
) -> list[Timing]:
    """Time round ``number``: every scheme, and unmarked text, on these prompts."""
    rows: dict[str, BoundScheme | None] = {NO_MARK: None, **schemes}
    labels = list(rows)
    start = number % len(labels)
    device = device_name(host)
    timings: dict[tuple[str, str], Timing] = {}
    for label in labels[start:] + labels[:start]:
        bound = rows[label]
        with _peak(host) as peak:
            began = now_on(host)
            texts = [_generate(host, bound, prompt, i, decoding) for i, prompt in enumerate(prompts)]
            seconds = (now_on(host) - began) / len(prompts)
        timings[label, GENERATE] = Timing(label, GENERATE, number, seconds, peak.mib, device)
        if bound is None:
            continue
        written = [text for text in texts if text.strip()] or ["."]
        with _peak(host) as peak:
            began = now_on(host)
            for text in written:
                bound.detect(text)
            seconds = (now_on(host) - began) / len(written)
        timings[label, DETECT] = Timing(label, DETECT, number, seconds, peak.mib, device)
    return [
        timings[label, phase] for phase in (GENERATE, DETECT) for label in labels if (label, phase) in timings
    ]


def _generate(host: Host, bound: BoundScheme | None, prompt: str, seed: int, decoding: Decoding) -> str:
    made = host.generate([prompt], scheme=bound, seeds=[seed], batch_size=1, decoding=decoding)
    return made[0].text


def now_on(host: Host) -> float:
    """The time when the host's device has finished its work."""
    if host.device.type == "cuda":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()


@dataclass
class _Peak:
    mib: float | None = None


@contextlib.contextmanager
def _peak(host: Host) -> Iterator[_Peak]:
    """Peak memory within the block: GPU memory, or the resident memory of the process on a CPU."""
    peak = _Peak()
    if host.device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
        yield peak
        peak.mib = round(torch.cuda.max_memory_allocated() / _MIB, 1)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the high-water mark (Linux)
    yield peak
    peak.mib = _resident_peak()


def _resident_peak() -> float | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) / 1024, 1)
    return None
