"""What the bias mark adds to a token on a GPU, over an eager host and over one in a CUDA graph.

    python benchmarks/gpu_overhead.py --out overhead.json

Random weights in the shapes of Llama-3.2-3B (host) and MPNet-base (encoder), bfloat16; tables 128,256 x 768.
Rows: no mark; ``composed`` contexts; ``window`` contexts, whose encoder runs in a CUDA graph of its own while
the host computes the next logits. Host, marks and sampling in the graph are captured with a higher priority
than the encoder's (``--priority 0``: with the same). All rows take turns, round after round; printed are
milliseconds per token, of the ratios to no mark in the same round the median with its 95% interval and the
quartiles, and the ratio of the two tenth percentiles (``quiet``): an eager host is bound by the CPU, and
other work on the machine disturbs most rounds. Its rounds are short, so that both sides of a ratio are
disturbed alike. ``--parts`` also times what a step is made of, each part alone.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_models import DEVICE, LLAMA_3B, SCHEME, Decoder, N, Setting, llama

from dewmark.cuda.bias_step import GraphMark, Steps, WindowMark, captured
from dewmark.dew.marking import BiasSession
from dewmark.hosts.transformers.decoding_loop import CachedForward
from dewmark.sampling import race

Loop = Callable[[], Callable[[int], None]]  # makes ready what then writes so many tokens

ROOM, PROMPT = 256, 64


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--steps", type=int, default=60, help="tokens a round in the graph, at most 190")
    parser.add_argument("--rounds", type=int, default=12, help="rounds in the graph")
    parser.add_argument("--eager-steps", type=int, default=3)
    parser.add_argument("--eager-rounds", type=int, default=150)
    parser.add_argument("--hosts", nargs="+", default=["graph", "eager"], choices=["graph", "eager"])
    parser.add_argument("--priority", type=int, default=-1, help="of the captured host; the encoder's is 0")
    parser.add_argument("--cores", type=int, nargs="+", help="bind this process to these cores")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.cores:
        os.sched_setaffinity(0, args.cores)
    report: dict[str, dict[str, Any]] = {}
    gc.disable()  # a graph that is collected while another is captured spoils the capture
    with torch.inference_mode():
        setting = Setting()
        for kind in args.hosts:
            host = Decoder(LLAMA_3B, batch=1, length=ROOM, device=DEVICE) if kind == "graph" else llama()
            for batch in args.batches:
                if kind == "graph":
                    loops, steps, rounds = (
                        graph_loops(host, setting, batch, args.priority),
                        args.steps,
                        args.rounds,
                    )
                else:
                    steps, rounds = args.eager_steps, args.eager_rounds
                    loops = eager_loops(host, setting, batch, room=steps + 1)
                rows = timed(loops, steps, rounds)
                del loops
                if args.parts and kind == "graph":
                    rows["parts"] = parts(host, setting, batch)
                for name, row in rows.items():
                    report[f"{kind} {batch} {name}"] = row
                    print(f"{kind}, batch {batch}, {name}: {row}", flush=True)
                if args.out:
                    args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
                gc.collect()
                torch.cuda.empty_cache()
            del host
            gc.collect()
            torch.cuda.empty_cache()


def timed(loops: dict[str, Loop], steps: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Milliseconds per token (median), and ratio to the first row: median, quartiles, undisturbed.

    The interval of the median is between the ratios 0.98 √rounds places before and after the middle: how many
    of the ratios lie below the true median is binomial, with standard deviation √rounds / 2.
    """
    times: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(rounds + 1):
        names = list(loops)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            loop = loops[name]()
            torch.cuda.synchronize()
            started = time.perf_counter()
            loop(steps)
            torch.cuda.synchronize()
            times[name].append(1000.0 * (time.perf_counter() - started) / steps)
    plain = times[next(iter(loops))][1:]  # the first round compiles and captures
    rows = {}
    for name, mine in times.items():
        ratios = sorted(a / b for a, b in zip(mine[1:], plain, strict=True))
        quartiles, reach = statistics.quantiles(ratios, n=4), 0.98 * len(ratios) ** 0.5
        low, high = math.floor(len(ratios) / 2 - reach), math.ceil(len(ratios) / 2 + reach)
        rows[name] = {
            "ms": round(statistics.median(mine[1:]), 4),
            "ratio": round(quartiles[1], 4),
            "interval": [round(ratios[max(low, 0)], 4), round(ratios[min(high, len(ratios) - 1)], 4)],
            "quartiles": [round(quartiles[0], 4), round(quartiles[2], 4)],
            "quiet": round(_tenth(mine[1:]) / _tenth(plain), 4),
        }
    return rows


def _tenth(times: list[float]) -> float:
    """The tenth percentile."""
    return statistics.quantiles(times, n=10)[0]


def sampled(logits: torch.Tensor) -> torch.Tensor:
    """One id per row, from the softmax of logits (batch, vocab)."""
    scores = logits.float()
    return race(scores, torch.empty_like(scores).exponential_())[0]


def graph_loops(host: Decoder, setting: Setting, batch: int, priority: int) -> dict[str, Loop]:
    """Loops whose host, mark and sampling are captured."""
    host.resize(batch, ROOM)
    ids = torch.randint(1000, (batch,), device=DEVICE)
    mark = GraphMark(SCHEME, setting.composed, n=N, batch=batch)

    def plain() -> None:
        ids.copy_(sampled(host(ids)))

    def composed() -> None:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            mark.observe(ids)
            mark.read()
        logits = host(ids)
        torch.cuda.current_stream().wait_stream(aside)
        ids.copy_(sampled(mark.mark_(logits)))

    def replayed(replay: Callable[[], None], steps: int) -> None:
        for _ in range(steps):
            replay()

    writers = {
        "none": functools.partial(replayed, captured(plain, device=DEVICE, priority=priority)),
        "composed": functools.partial(replayed, captured(composed, device=DEVICE, priority=priority)),
        "window": WindowLoop(host, setting.window_mark(batch), ids, priority).run,
    }

    def ready(name: str) -> Callable[[int], None]:
        host.position.fill_(PROMPT)
        return writers[name]

    return {name: functools.partial(ready, name) for name in writers}


class WindowLoop:
    """The graphed host with window contexts: two graphs for host and mark, and the encoder's beside them."""

    def __init__(self, host: Decoder, mark: WindowMark, ids: torch.Tensor, priority: int) -> None:
        self._mark, self._ids = mark, ids
        self._stream = torch.cuda.Stream(priority=priority)
        self._seen = torch.zeros(len(ids), dtype=torch.long).pin_memory()
        self._known = torch.cuda.Event()
        self._logits = torch.empty(0)

        def forward() -> None:
            self._logits = host(ids)  # the captured ones stay where they are

        host.position.fill_(PROMPT)
        self._forward = captured(forward, device=DEVICE, priority=priority)
        self._choose = captured(
            lambda: ids.copy_(sampled(mark.mark_(self._logits))), device=DEVICE, priority=priority
        )

    def run(self, steps: int) -> None:
        """Write so many tokens."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(steps):
                self._seen.copy_(self._ids, non_blocking=True)
                self._known.record()
                self._forward()  # queued before the CPU knows the last token
                self._known.synchronize()
                self._mark.start(self._seen.tolist())
                self._mark.wait()
                self._choose()
        torch.cuda.current_stream().wait_stream(self._stream)


def eager_loops(model: torch.nn.Module, setting: Setting, batch: int, *, room: int) -> dict[str, Loop]:
    """Loops over transformers' own forward pass, token by token, as the library's host runs it.

    Each begins anew after the prompt: a cache that grows from round to round asks the driver for memory in
    the middle of a step, which costs several times what is measured.
    """
    prompt = torch.randint(1000, (batch, PROMPT), device=DEVICE)
    sessions = {kind: setting.session(kind, prompt) for kind in ("composed", "window")}
    return {
        kind: EagerLoop(model, prompt, sessions.get(kind), room=room).begin
        for kind in ("none", "composed", "window")
    }


class EagerLoop:
    """A batch of texts being written by a model of transformers."""

    def __init__(
        self, model: torch.nn.Module, prompt: torch.Tensor, mark: BiasSession | None, *, room: int
    ) -> None:
        self._model, self._mark, self._start = model, mark, prompt.shape[1]
        self._ids = torch.nn.functional.pad(prompt, (0, room))

    def begin(self) -> Callable[[int], None]:
        """Read the prompt, and one token after it."""
        self._forward = CachedForward(self._model, None)
        self._length = self._start
        self.write(1)
        return self.write

    def write(self, steps: int) -> None:
        """Write so many tokens."""
        for length in range(self._length, self._length + steps):
            ids = self._ids[:, :length]
            if self._mark is not None:
                self._mark.ahead(ids)
            scores = self._forward(ids).to(torch.float32, copy=True)
            if self._mark is not None:
                scores = self._mark(ids, scores)
            self._ids[:, length] = sampled(scores)
        self._length += steps


def parts(host: Decoder, setting: Setting, batch: int, *, times: int = 100) -> dict[str, float]:
    """Microseconds of each part of a step, one after the other, nothing beside it."""
    ids = torch.randint(1000, (batch,), device=DEVICE)
    logits = host(ids)
    mark, encoded = GraphMark(SCHEME, setting.composed, n=N, batch=batch), setting.window_mark(batch)
    steps, scores = Steps(SCHEME, setting.composed, n=N), logits.float()
    windows = torch.randint(1000, (batch, SCHEME.k), device=DEVICE)
    fresh = iter(torch.randint(LLAMA_3B.vocab, (times + 10, batch)).tolist())

    def contexts() -> None:
        mark.observe(ids)
        mark.read()

    works: dict[str, Callable[[], object]] = {
        "contexts, captured": captured(contexts, device=DEVICE),
        "kernels, captured": captured(lambda: mark.mark_(logits), device=DEVICE),
        "sampling, captured": captured(lambda: sampled(logits), device=DEVICE),
        "top 32 of torch, captured": captured(lambda: logits.topk(32), device=DEVICE),
        "step of a session": lambda: steps(windows, scores),
        "windows encoded": lambda: encoded.start(next(fresh)),
    }
    found = {}
    for name, work in works.items():
        for _ in range(10):
            work()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(times):
            work()
        queued = time.perf_counter() - started
        torch.cuda.synchronize()
        found[name] = round(1e6 * (time.perf_counter() - started) / times, 1)
        if "captured" not in name:
            found[f"{name}, on the CPU"] = round(1e6 * queued / times, 1)
    return found


if __name__ == "__main__":
    main()
