"""The default's overhead, step by step, and the time and memory of its detection.

    python benchmarks/default_speed.py --device cuda --out speed.json

- ``smollm2-135m eager``: transformers' forward pass and the library's session, on text that it really writes.
- ``llama-3.2-3b eager`` and ``graphed``: random weights in that shape, 128,256 ids. A random host writes no
  words, so its logits are replaced by those of SmolLM2 on a real text, padded to its vocabulary, after it has
  computed its own; the tokenizer is SmolLM2's. Graphed: the forward pass is one CUDA graph, and marking and
  drawing follow it as Python calls, as in serving engines (CUDA only).
- ``draws``: marking and drawing alone, on recorded logits: µs of a step, of which the device's; kernels and
  waits a step, and where they are (torch's profiler; CUDA only).
- detection: ms per text of 200 tokens without a host, batched and single; on a CPU with one thread.
- memory: MB that a process holds after scoring 1 and 200 texts.

Marks take turns of ``--turn`` steps. Times are ms a step: quartiles over turns; ``ratio`` is the median over
rounds of the ratio to ``none`` in the same round, with its 95% interval. Every finished cell is printed, and
written to ``--out``. The run shares ``--seconds`` among its cells; a cell that fails is reported, and the
next one runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import json
import statistics
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from script_inputs import named_key, script_parser

import dewmark
from dewmark.config import cache_dir
from dewmark.cuda.graphs import captured
from dewmark.registry import SCHEMES
from dewmark.sampling import RandomStreams
from dewmark.workspace import HostInfo, Workspace
from dewmark_lab.bench.measures import CONFIGURATIONS, prompts, random_texts
from dewmark_lab.bench.random_models import SHAPES, random_host
from dewmark_lab.bench.timing import median_interval, seconds
from dewmark_lab.bench.writers import (
    Chooses,
    Forward,
    Recorded,
    Writer,
    drawn_by,
    eager,
    peer_marks,
    record,
    replayed,
)

PARTS = ("smollm2", "draws", "graphed", "eager", "detect", "memory")
MARKS = ("none", "dew", "kgw", "synthid", "exp")
_FEWEST = 3  # rounds that a mark must have time for
PROMPT = 32  # tokens; the same for all rows, so that none is padded


def main() -> None:
    """Run the benchmark."""
    parser = script_parser(__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--marks", nargs="+", default=list(MARKS), help=f"of {', '.join(CONFIGURATIONS)}")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="without transformers' own")
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--shape", default="llama-3.2-3b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--warm", type=int, default=5, help="steps before the measured ones")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--turn", type=int, default=5, help="steps of one mark before the next has its turn")
    parser.add_argument("--seconds", type=float, default=300.0, help="for all cells together")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    args = parser.parse_args()
    Bench(args).run()


Cell = tuple[str, Callable[[], object]]


class Bench:
    """One run: the options, what was found so far, and the real host."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device(args.device)
        self.steps = args.warm + args.steps
        self.until = 0.0  # when the present cell should end
        self.decoding = dewmark.Decoding(temperature=args.temperature, top_p=args.top_p)
        self.report: dict[str, object] = {
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "turn": args.turn,
            "decoding": self.decoding.to_dict(),
        }
        self.host = dewmark.load_host(args.host, device=args.device)
        self.forbidden = torch.from_numpy(~self.host.info.markable).to(self.device)

    def run(self) -> None:
        """All cells of the parts that were asked for."""
        gc.disable()  # a graph that is collected during another capture would break it
        parts: dict[str, Callable[[], list[Cell]]] = {
            "smollm2": lambda: self.per_batch(f"{self.args.host} eager", self.real),
            "draws": lambda: self.per_batch("draws", self.draws),
            "graphed": lambda: self.per_batch(f"{self.args.shape} graphed", self.graphed),
            "eager": lambda: self.per_batch(f"{self.args.shape} eager", self.shaped_eager),
            "detect": lambda: [("detection", self.detect)],
            "memory": lambda: [("memory", self.memory)],
        }
        cells = [cell for part in self.args.parts for cell in parts[part]()]
        end = time.perf_counter() + self.args.seconds
        for done, (name, work) in enumerate(cells):
            left = end - time.perf_counter()
            if left <= 0.0:
                self.found(name, "not run: no time left")
                continue
            self.until = time.perf_counter() + left / (len(cells) - done)
            self.found(name, _tried(work))
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def per_batch(self, name: str, work: Callable[[int], object]) -> list[Cell]:
        """One cell per batch size."""
        return [(f"{name}, batch {n}", functools.partial(work, n)) for n in self.args.batches]

    def found(self, name: str, values: object) -> None:
        """Print a result and write all so far."""
        self.report[name] = values
        print(json.dumps({name: values}), flush=True)
        if self.args.out:
            self.args.out.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")

    # Marking

    def prompts(self, batch: int) -> torch.Tensor:
        """The package's openings, each repeated up to the same length."""
        texts = self.host.info.tokenizer.encode(prompts(batch))
        rows = [(list(text.ids) * PROMPT)[:PROMPT] for text in texts]
        return torch.tensor(rows, device=self.device)

    def choosers(self, info: HostInfo, prompt: torch.Tensor) -> dict[str, Chooses]:
        """For each mark, the function that draws with it."""
        made: dict[str, Chooses] = {}
        for name in self.args.marks:
            scheme = None
            if name != "none":
                kind, settings = CONFIGURATIONS[name]
                workspace = Workspace(cache=cache_dir())
                scheme = SCHEMES[kind]().with_settings(settings).bind(named_key("speed"), info, workspace)
            made[name] = drawn_by(scheme, prompt, self.decoding)
        if self.args.peers:
            made |= {name: start(prompt) for name, start in peer_marks(info.vocab_size, self.device).items()}
        return made

    def real(self, batch: int) -> object:
        """The real host, eager."""
        prompt = self.prompts(batch)
        self.rehearse(eager(self.host.writer, self.forbidden), prompt)
        return self.turns(
            {
                name: Writer(eager(self.host.writer, self.forbidden), choose, prompt, room=self.steps)
                for name, choose in self.choosers(self.host.info, prompt).items()
            }
        )

    def draws(self, batch: int) -> object:
        """Marking and drawing without a host."""
        prompt = self.prompts(batch)
        recorded = self.recorded(prompt)
        choosers = self.choosers(self.host.info, prompt)
        width = self.host.info.vocab_size
        found: dict[str, object] = {}
        if "dew" in choosers:
            found["dew by kernels"] = _tried(lambda: self.by_kernels(prompt, recorded))
        for name, choose in {"nothing": _first, **choosers}.items():
            writer = self.replaying(_nothing, choose, prompt, recorded, width)
            fastest = min(writer(1) for _ in range(self.args.warm))
            found[name] = {"us": round(1e6 * fastest, 1)}
            if self.device.type == "cuda" and fastest < 1.0:
                found[f"{name}, profile"] = _tried(functools.partial(_profiled, writer, self.args.turn))
        return found

    @torch.inference_mode()
    def by_kernels(self, prompt: torch.Tensor, recorded: Recorded) -> object:
        """How many tokens the kernels draw as torch does, and the µs of a step in a CUDA graph."""
        dew = SCHEMES["dew"]().bind(named_key("speed"), self.host.info, Workspace(cache=cache_dir()))
        session = dew.session(prompt, torch.ones_like(prompt), seeds=range(len(prompt)))
        tables = session.texts.tables
        if not tables.kernels:
            return "not used here"
        ids = torch.cat((prompt, recorded.tokens), dim=1)
        drawn = []
        for used in (True, False):
            tables.kernels = used
            choose = drawn_by(dew, prompt, self.decoding)
            steps = range(self.args.warm + self.args.turn)
            drawn.append([choose(ids[:, : PROMPT + i], recorded.logits[i].float(), i) for i in steps])
        tables.kernels = True
        same = sum(int((a == b).sum()) for a, b in zip(*drawn, strict=True))
        found: dict[str, object] = {"same": same, "of": len(prompt) * (self.args.warm + self.args.turn)}
        if self.device.type == "cuda":
            texts = dew.session(prompt, torch.ones_like(prompt), seeds=range(len(prompt))).texts
            W = torch.from_numpy(dew.W).to(self.device)
            scores, token = recorded.logits[0].float(), ids[:, PROMPT].clone()
            random = RandomStreams(range(len(prompt)), device=self.device).states(0)

            def step() -> None:
                texts.push(token.unsqueeze(1))
                chosen, _ = dew.race(scores, texts, W, [self.decoding] * len(prompt), random)
                token.copy_(chosen)

            replay = captured(step, device=self.device)
            times = [1e6 * seconds(replay, self.device) for _ in range(50)]
            found["graph_us"] = _quartiles(times)
        return found

    def recorded(self, prompt: torch.Tensor) -> Recorded:
        """What the real host writes after the prompts (batch, length)."""
        return record(eager(self.host.writer, self.forbidden), prompt, steps=self.steps)

    def graphed(self, batch: int) -> object:
        """The larger shape, its forward pass in a CUDA graph."""
        if self.device.type != "cuda":
            return "needs CUDA"
        return self.shaped(batch, self.graphed_host(batch))

    def shaped_eager(self, batch: int) -> object:
        """The larger shape as a model of transformers."""
        none = torch.zeros(self.shape["vocab_size"], dtype=torch.bool, device=self.device)
        return self.shaped(batch, lambda: eager(self.shaped_model, none))

    @functools.cached_property
    def shape(self) -> dict[str, int]:
        """The larger shape; the real host's vocabulary fits into it."""
        shape = dict(SHAPES[self.args.shape])
        return shape | {"vocab_size": max(shape["vocab_size"], self.host.info.vocab_size)}

    @functools.cached_property
    def shaped_model(self) -> object:
        """Random weights in the larger shape."""
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        return random_host(self.shape, name=self.args.shape, device=self.device, dtype=dtype).model

    @functools.cached_property
    def graphed_host(self) -> Callable[[int], Callable[[], Forward]]:
        """The larger shape's forward pass, captured for a batch size."""
        return _graphed(self.shape["vocab_size"])

    def shaped(self, batch: int, forward: Callable[[], Forward]) -> object:
        """A host of the larger shape, which reads and writes the real host's text."""
        width = self.shape["vocab_size"]
        info = dataclasses.replace(self.host.info, name=f"random:{self.args.shape}", vocab_size=width)
        prompt = self.prompts(batch)
        recorded = self.recorded(prompt)
        self.rehearse(forward(), prompt)
        return self.turns(
            {
                name: self.replaying(forward(), choose, prompt, recorded, width)
                for name, choose in self.choosers(info, prompt).items()
            }
        )

    def rehearse(self, forward: Forward, prompt: torch.Tensor) -> None:
        """Let the host read every length once: the first of each costs a GPU the planning of its attention.

        Otherwise whoever comes first in a round pays for both (34 ms a step on an H200, where a step takes
        17 ms).
        """
        Writer(forward, _first, prompt, room=self.steps)(self.steps)

    def replaying(
        self, forward: Forward, choose: Chooses, prompt: torch.Tensor, recorded: Recorded, width: int
    ) -> Writer:
        """A writer of the recorded text."""
        whole = replayed(forward, recorded, start=prompt.shape[1], vocab_size=width)
        return Writer(whole, choose, prompt, room=self.steps, forced=recorded.tokens)

    def turns(self, writers: dict[str, Writer]) -> dict[str, object]:
        """Milliseconds a step of each writer, in turns; the slowest may have no time for theirs."""
        found: dict[str, object] = {}
        for name, writer in list(writers.items()):
            fastest = min(writer(1) for _ in range(self.args.warm))
            left = self.until - time.perf_counter()
            if name != "none" and fastest * self.args.turn * _FEWEST > left / 2:
                found[name] = {"ms": round(1e3 * fastest, 4), "rounds": 0}
                del writers[name]
        rounds: list[dict[str, float]] = []
        names = list(writers)
        for number in range(self.args.steps // self.args.turn):
            if rounds and time.perf_counter() > self.until:
                break
            first = number % len(names)  # no mark is always first
            rounds.append(
                {name: 1e3 * writers[name](self.args.turn) for name in names[first:] + names[:first]}
            )
        return {name: _summary(name, rounds) for name in names} | found

    # Detection

    def detect(self) -> object:
        """The default without a host, on one thread of the CPU."""
        bound = dewmark.load_scheme(named_key("speed"), host=None)
        texts = random_texts(self.host.info.tokenizer, 600, tokens=200, seed=0)
        device, threads = torch.device("cpu"), torch.get_num_threads()
        torch.set_num_threads(1)
        bound.detect_batch(texts[:50])
        batched = [
            1e3 * seconds(functools.partial(bound.detect_batch, texts[at : at + 100]), device) / 100
            for at in range(0, 500, 100)
        ]
        single = [1e3 * seconds(functools.partial(bound.detect, text), device) for text in texts[500:540]]
        torch.set_num_threads(threads)
        return {"cpu": {"ms_batched": _quartiles(batched), "ms_single": _quartiles(single)}}

    def memory(self) -> object:
        """MB of a fresh process that scores texts under a key."""
        code = _MEMORY.format(key=bytes(32).hex())
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
        )
        return json.loads(done.stdout.splitlines()[-1])


_MEMORY = """
import json, time
started = time.perf_counter()
import dewmark
bound = dewmark.load_scheme(dewmark.Key(bytes.fromhex("{key}")))
text = "The old bridge over the river was built in the nineteenth century by a company of engineers. " * 12
status = lambda: dict(line.split(":", 1) for line in open("/proc/self/status"))
peak = lambda: round(int(status()["VmHWM"].split()[0]) / 1024, 1)
opened = peak()
bound.detect(text)
found = {{"opened": opened, "one text": peak(), "seconds to a verdict": time.perf_counter() - started}}
bound.detect_batch([text + str(i) for i in range(200)])
found["200 texts"] = peak()
print(json.dumps(found))
"""


def _graphed(width: int) -> Callable[[int], Callable[[], Forward]]:
    """The forward pass of the 3B shape as one CUDA graph per batch size, shared by all marks."""
    import graphed_host

    assert width == graphed_host.VOCAB, "graphed_host.py has the shape of Llama-3.2-3B"
    with torch.inference_mode():
        host = graphed_host.Decoder()

    def forwards(batch: int) -> Callable[[], Forward]:
        with torch.inference_mode():
            host.resize(batch)
            ids = torch.zeros(batch, dtype=torch.long, device=graphed_host.DEVICE)
            kept: list[torch.Tensor] = []

            def forward() -> None:
                kept[:] = [host(ids).float()]

            replay = graphed_host.captured(forward)

        def logits(text: torch.Tensor) -> torch.Tensor:
            ids.copy_(text[:, -1])
            host.position.fill_(graphed_host.PROMPT + text.shape[1] % 128)
            replay()
            return kept[0]

        return lambda: logits

    return forwards


def _tried(work: Callable[[], object]) -> object:
    """The work's result, or why there is none: other cells may do better."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        return f"failed: {type(error).__name__}: {error}"[:500]


def _nothing(ids: torch.Tensor) -> torch.Tensor:
    """A host that computes nothing."""
    return ids


def _first(ids: torch.Tensor, scores: torch.Tensor, step: int) -> torch.Tensor:
    """A draw that computes nothing."""
    return ids[:, 0]


def _profiled(writer: Writer, steps: int) -> dict[str, object]:
    """Kernels and waits of a step, the device's time, and the lines that wait."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        writer(steps)
    calls: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    for event in seen.key_averages():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kernels[event.key[:60]] += event.self_device_time_total
        elif event.key.startswith(("cuda", "cuLaunch")):
            calls[event.key] += event.count
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            writer(1)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    lines = Counter(f"{Path(wait.filename).name}:{wait.lineno}" for wait in waits)
    return {
        "device_us": round(sum(kernels.values()) / steps, 1),
        "launches": sum(count for name, count in calls.items() if "Launch" in name) / steps,
        "copies": sum(count for name, count in calls.items() if "Memcpy" in name) / steps,
        "waits": calls["cudaStreamSynchronize"] / steps,
        "waiting_lines": dict(lines),
        "top_us": {name: round(taken / steps, 1) for name, taken in kernels.most_common(8)},
    }


def _summary(name: str, rounds: list[dict[str, float]]) -> dict[str, object]:
    times = [taken[name] for taken in rounds]
    ratios = sorted(taken[name] / taken["none"] for taken in rounds) if "none" in rounds[0] else []
    interval = median_interval(ratios)
    return {
        "ms": _quartiles(times),
        "ratio": round(statistics.median(ratios), 4) if ratios else None,
        "interval": interval and [round(end, 4) for end in interval],
        "rounds": len(rounds),
    }


def _quartiles(times: list[float]) -> list[float]:
    found = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    return [round(value, 4) for value in found]


if __name__ == "__main__":
    main()
