"""The default's overhead, step by step, and the time and memory of its detection.

    python benchmarks/default_speed.py --device cuda --out speed.json

- ``smollm2-135m eager``: transformers' forward pass and the library's session, on text that it really writes.
- ``llama-3.2-3b eager`` and ``graphed``: random weights in that shape, 128,256 ids. A random host writes no
  words, so its logits are replaced by those of SmolLM2 on a real text, padded to its vocabulary, after it has
  computed its own; the tokenizer is SmolLM2's. Graphed: the forward pass is one CUDA graph, and marking and
  drawing follow it as Python calls, as in serving engines (CUDA only).
- detection: ms per text of 200 tokens without a host, batched and single; on a CPU with one thread.
- memory: MB that a process holds after scoring 1 and 200 texts.

Marks take turns of ``--turn`` steps. Times are ms a step: quartiles over turns; ``ratio`` is the median over
rounds of the ratio to ``none`` in the same round, with its 95% interval. Every finished cell is printed, and
written to ``--out``. A cell ends early after ``--seconds``.
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
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from script_inputs import named_key, script_parser

import dewmark
from dewmark.config import cache_dir
from dewmark.lab.bench.configurations import CONFIGURATIONS
from dewmark.lab.bench.random_models import SHAPES, random_host
from dewmark.lab.bench.timing import median_interval, seconds
from dewmark.lab.bench.workloads import prompts, random_texts
from dewmark.lab.bench.writers import (
    Forward,
    Recorded,
    Writer,
    drawn_by,
    eager,
    peer_marks,
    record,
    replayed,
)
from dewmark.registry import SCHEMES
from dewmark.workspace import HostInfo, Workspace

MARKS = ("none", "dew", "kgw", "synthid", "exp")
PROMPT = 32  # tokens; the same for all rows, so that none is padded


def main() -> None:
    """Run the benchmark."""
    parser = script_parser(__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--parts", nargs="+", default=["smollm2", "eager", "graphed", "detect", "memory"])
    parser.add_argument("--marks", nargs="+", default=list(MARKS), help=f"of {', '.join(CONFIGURATIONS)}")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="without transformers' own")
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--shape", default="llama-3.2-3b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--warm", type=int, default=5, help="steps before the measured ones")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--turn", type=int, default=5, help="steps of one mark before the next has its turn")
    parser.add_argument("--seconds", type=float, default=8.0, help="for one batch size of one host")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    args = parser.parse_args()
    Bench(args).run()


class Bench:
    """One run: the options, what was found so far, and the real host."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device(args.device)
        self.steps = args.warm + args.steps
        self.report: dict[str, object] = {
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "turn": args.turn,
        }
        self.host = dewmark.load_host(args.host, device=args.device)
        self.forbidden = torch.from_numpy(~self.host.info.markable).to(self.device)

    def run(self) -> None:
        """All parts that were asked for."""
        gc.disable()  # a graph that is collected during another capture would break it
        parts = {
            "smollm2": self.real,
            "eager": lambda: self.shaped(graphed=False),
            "graphed": lambda: self.shaped(graphed=True),
            "detect": self.detect,
            "memory": self.memory,
        }
        for name in self.args.parts:
            parts[name]()

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

    def choosers(self, info: HostInfo, prompt: torch.Tensor) -> dict[str, object]:
        """For each mark, the function that draws with it."""
        made = {}
        for name in self.args.marks:
            scheme = None
            if name != "none":
                kind, settings = CONFIGURATIONS[name]
                workspace = Workspace(cache=cache_dir())
                scheme = SCHEMES[kind]().with_settings(settings).bind(named_key("speed"), info, workspace)
            made[name] = drawn_by(scheme, prompt)
        if self.args.peers:
            made |= {name: start(prompt) for name, start in peer_marks(info.vocab_size, self.device).items()}
        return made

    def real(self) -> None:
        """The real host, eager."""
        for batch in self.args.batches:
            prompt = self.prompts(batch)
            choosers = self.choosers(self.host.info, prompt)
            writers = {
                name: Writer(eager(self.host.model, self.forbidden), choose, prompt, room=self.steps)
                for name, choose in choosers.items()
            }
            self.found(f"{self.args.host} eager, batch {batch}", self.turns(writers))
            del writers, choosers
            self.free()

    def shaped(self, *, graphed: bool) -> None:
        """A host of the larger shape, which reads and writes the real host's text."""
        how = "graphed" if graphed else "eager"
        if graphed and self.device.type != "cuda":
            self.found(f"{self.args.shape} graphed", "needs CUDA")
            return
        shape = dict(SHAPES[self.args.shape])
        width = shape["vocab_size"] = max(shape["vocab_size"], self.host.info.vocab_size)
        info = dataclasses.replace(self.host.info, name=f"random:{self.args.shape}", vocab_size=width)
        if graphed:
            forwards = _graphed(width)
        else:
            dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
            model = random_host(shape, name=self.args.shape, device=self.device, dtype=dtype).model
            none = torch.zeros(width, dtype=torch.bool, device=self.device)

            def forwards(batch: int) -> Callable[[], Forward]:
                return lambda: eager(model, none)

        for batch in self.args.batches:
            prompt = self.prompts(batch)
            recorded = record(eager(self.host.model, self.forbidden), prompt, steps=self.steps)
            make = forwards(batch)
            writers = {
                name: self.replaying(make(), choose, prompt, recorded, width)
                for name, choose in self.choosers(info, prompt).items()
            }
            self.found(f"{self.args.shape} {how}, batch {batch}", self.turns(writers))
            del writers, recorded, make
            self.free()

    def replaying(
        self, forward: Forward, choose: object, prompt: torch.Tensor, recorded: Recorded, width: int
    ) -> Writer:
        """A writer of the recorded text."""
        whole = replayed(forward, recorded, start=prompt.shape[1], vocab_size=width)
        return Writer(whole, choose, prompt, room=self.steps, forced=recorded.tokens)

    def turns(self, writers: Mapping[str, Writer]) -> dict[str, object]:
        """Milliseconds a step of each writer, in turns."""
        for writer in writers.values():
            writer(self.args.warm)
        rounds: list[dict[str, float]] = []
        started, names = time.perf_counter(), list(writers)
        for number in range(self.args.steps // self.args.turn):
            if rounds and time.perf_counter() - started > self.args.seconds:
                break
            first = number % len(names)  # no mark is always first
            rounds.append(
                {name: 1e3 * writers[name](self.args.turn) for name in names[first:] + names[:first]}
            )
        return {name: _summary(name, rounds) for name in names}

    def free(self) -> None:
        """Give memory back between batch sizes."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # Detection

    def detect(self) -> None:
        """The default without a host, on this device and on one thread of the CPU."""
        bound = dewmark.load_scheme("dew", key=named_key("speed"), host=None)
        texts = random_texts(self.host.info.tokenizer, 600, tokens=200, seed=0)
        for name in dict.fromkeys((self.args.device, "cpu")):
            device, mine = torch.device(name), bound.on(name)
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            mine.detect_batch(texts[:50])
            batched = [
                1e3 * seconds(functools.partial(mine.detect_batch, texts[at : at + 100]), device) / 100
                for at in range(0, 500, 100)
            ]
            single = [1e3 * seconds(functools.partial(mine.detect, text), device) for text in texts[500:540]]
            torch.set_num_threads(threads)
            self.found(
                f"detection on {device.type}, 200 tokens",
                {"ms_batched": _quartiles(batched), "ms_single": _quartiles(single)},
            )

    def memory(self) -> None:
        """A fresh process that scores texts under a key."""
        code = _MEMORY.format(key=bytes(32).hex())
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
        )
        self.found("memory of a detector, MB", json.loads(done.stdout.splitlines()[-1]))


_MEMORY = """
import json, time
started = time.perf_counter()
import dewmark
bound = dewmark.load_scheme("dew", key=dewmark.Key(bytes.fromhex("{key}")), host=None)
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
