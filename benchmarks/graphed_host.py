"""The overhead of the bias mark on a GPU if the host runs in a CUDA graph (docs/bench.md, "On a GPU").

    python benchmarks/graphed_host.py --out overhead.json

`dewmark bench generate` times marks on transformers' eager forward pass. Serving engines capture the forward
pass, which leaves a mark less time to hide in. Here host, mark and sampling are captured, with random weights
in the shapes of Llama-3.2-3B (host) and MPNet-base (encoder), bfloat16, and tables of 128,256 x 768:

- ``none``: no mark;
- ``composed``: composed contexts, read beside the forward pass in the same graph;
- ``window``: window contexts, whose encoder runs in graphs of its own, at a lower priority, beside the host.

Rows take turns, round after round; the ratio is the median over rounds of the ratio to ``none``, with its 95%
interval. ``parts`` are microseconds of each part of a step, timed alone. Needs a CUDA device.
"""

from __future__ import annotations

import functools
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from script_inputs import script_parser
from torch.nn.functional import linear, rms_norm, silu

from dewmark.cuda.bias_step import BiasParameters, BiasStep, BiasSteps
from dewmark.cuda.window_contexts import WindowCache
from dewmark.hosts.fake import tiny_tokenizer
from dewmark.hosts.transformers.tokenizer import HFTokenizer
from dewmark.lab.bench.random_models import SHAPES, random_encoder
from dewmark.lab.bench.timing import seconds, time_tasks
from dewmark.sampling import race
from dewmark.text.windows import ABSENT

DEVICE = torch.device("cuda")
SHAPE = SHAPES["llama-3.2-3b"]
VOCAB, DIM, N, K = SHAPE["vocab_size"], 768, 3072, 3
ROOM, PROMPT = 256, 64  # positions of the cache, and those filled before a round


def main() -> None:
    """Run the benchmark."""
    parser = script_parser(__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--steps", type=int, default=60, help="tokens per round, at most 190")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    args = parser.parse_args()
    gc.disable()  # a graph that is collected during another capture would break it
    report: dict[str, object] = {}
    with torch.inference_mode():
        host, marks = Decoder(), Marks()
        for batch in args.batches:
            loops = host_loops(host, marks, batch)
            tasks = {
                name: functools.partial(run_round, host, loop, args.steps) for name, loop in loops.items()
            }
            costs = time_tasks(
                f"batch {batch}", tasks, repeats=args.rounds, baselines=dict.fromkeys(tasks, "none")
            )
            report[f"batch {batch}"] = {name: cost.to_dict() for name, cost in costs.items()}
            report[f"batch {batch}"] |= {"parts_us": parts(host, marks, batch)}
            print(json.dumps({f"batch {batch}": report[f"batch {batch}"]}, indent=1), flush=True)
            del loops, tasks
            gc.collect()
            torch.cuda.empty_cache()
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


class Decoder:
    """Llama-3.2-3B's forward pass for one token per row, with fixed shapes, so that it can be captured."""

    def __init__(self) -> None:
        self.heads, self.kv_heads = SHAPE["num_attention_heads"], SHAPE["num_key_value_heads"]
        self.width, hidden = SHAPE["hidden_size"], SHAPE["intermediate_size"]
        self.head = self.width // self.heads
        sizes = {
            "qkv": (self.width + 2 * self.kv_heads * self.head, self.width),
            "out": (self.width, self.width),
            "up": (2 * hidden, self.width),
            "down": (self.width, hidden),
        }
        self.layers = [
            {name: _weights(*size) for name, size in sizes.items()} for _ in range(SHAPE["num_hidden_layers"])
        ]
        self.embedding = _weights(VOCAB, self.width)
        self.positions = torch.arange(ROOM, device=DEVICE)
        frequencies = 5e5 ** -(torch.arange(0, self.head, 2, device=DEVICE) / self.head)
        angles = torch.outer(self.positions.float(), frequencies)
        self.rotations = torch.cat((angles.cos(), angles.sin()), dim=-1).to(torch.bfloat16)
        self.resize(1)

    def resize(self, batch: int) -> None:
        """Change the batch size."""
        size = (len(self.layers), 2, batch, self.kv_heads, ROOM, self.head)
        self.cache = torch.zeros(size, device=DEVICE, dtype=torch.bfloat16)
        self.position = torch.full((1,), PROMPT, device=DEVICE)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) after ids (batch,), which are appended."""
        batch = len(ids)
        cos, sin = self.rotations[self.position].chunk(2, dim=-1)
        visible = (self.positions <= self.position)[None, None, None, :]
        x = self.embedding[ids]
        for weights, cache in zip(self.layers, self.cache, strict=True):
            qkv = linear(rms_norm(x, (self.width,)), weights["qkv"]).view(batch, -1, 1, self.head)
            q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
            q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
            cache[0].index_copy_(2, self.position, k)
            cache[1].index_copy_(2, self.position, v)
            scores = q.view(batch, self.kv_heads, -1, self.head) @ cache[0].transpose(-1, -2)
            scores = (scores * self.head**-0.5).masked_fill(~visible, -float("inf"))
            x = x + linear((scores.softmax(dim=-1) @ cache[1]).reshape(batch, -1), weights["out"])
            gate, up = linear(rms_norm(x, (self.width,)), weights["up"]).chunk(2, dim=-1)
            x = x + linear(silu(gate) * up, weights["down"])
        self.position += 1
        return linear(rms_norm(x, (self.width,)), self.embedding)


def _weights(*size: int) -> torch.Tensor:
    return torch.randn(*size, device=DEVICE, dtype=torch.bfloat16) * size[-1] ** -0.5


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Marks:
    """The tables of an imaginary key, and a cache of windows over a random encoder."""

    def __init__(self) -> None:
        rows = torch.randn(VOCAB + 1, DIM, device=DEVICE, dtype=torch.float16)
        rows[-1] = 0.0
        R_C = torch.randn(DIM, N, device=DEVICE)
        Q = torch.randn(VOCAB, DIM, device=DEVICE) / N**0.5
        common = {"strength": 2.0, "gamma": 0.5, "m": 32, "n": N, "Q": Q, "G": R_C @ R_C.T}
        self.composed = BiasParameters(context_rows=rows, **common)
        self.window = BiasParameters(context_rows=None, **common)
        tokenizer = HFTokenizer(tiny_tokenizer(VOCAB, kind="bytes"))
        encoder = random_encoder("mpnet-base", device="cuda").graphed(DEVICE)
        assert encoder is not None
        self.cache = WindowCache(
            encoder, encoder.for_windows(tokenizer), dim=DIM, absent=ABSENT, whitening=None, device=DEVICE
        )


def captured(work: Callable[[], object]) -> Callable[[], None]:
    """The work as a CUDA graph whose kernels take priority over the encoder's."""
    stream = torch.cuda.Stream(priority=-1)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # compiles and allocates, which must not be captured
            work()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay


def host_loops(host: Decoder, marks: Marks, batch: int) -> dict[str, Callable[[int], None]]:
    """For each row, a function that writes so many tokens."""
    host.resize(batch)
    ids = torch.randint(1000, (batch,), device=DEVICE)
    step = BiasStep(marks.composed, batch=batch, k=K)

    def plain() -> None:
        ids.copy_(sampled(host(ids)))

    def composed() -> None:
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            step.inputs.copy_(torch.cat((step.inputs[:, 1:], ids[:, None]), dim=1))
            step.read()
        logits = host(ids)
        torch.cuda.current_stream().wait_stream(beside)
        ids.copy_(sampled(step.bias_(logits)))

    def repeat(replay: Callable[[], None], steps: int) -> None:
        for _ in range(steps):
            replay()

    return {
        "none": functools.partial(repeat, captured(plain)),
        "composed": functools.partial(repeat, captured(composed)),
        "window": WindowLoop(host, marks, ids).run,
    }


class WindowLoop:
    """The captured host with window contexts: one graph for the forward pass, one for mark and sampling."""

    def __init__(self, host: Decoder, marks: Marks, ids: torch.Tensor) -> None:
        self._ids, self._cache = ids, marks.cache
        self._step = BiasStep(marks.window, batch=len(ids), k=K)
        self._stream = torch.cuda.Stream(priority=-1)  # above the encoder's
        self._seen = torch.zeros(len(ids), dtype=torch.long).pin_memory()
        self._known = torch.cuda.Event()
        self._windows = [(0,) * K] * len(ids)

        def forward() -> None:
            self._logits = host(ids)

        def choose() -> None:
            self._step.read()
            ids.copy_(sampled(self._step.bias_(self._logits)))

        self._forward = captured(forward)
        self._choose = captured(choose)

    def run(self, steps: int) -> None:
        """Write so many tokens."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(steps):
                self._seen.copy_(self._ids, non_blocking=True)
                self._known.record()
                self._forward()  # queued before the CPU knows the last token
                self._known.synchronize()
                pairs = zip(self._windows, self._seen.tolist(), strict=True)
                self._windows = [(*window[1:], token) for window, token in pairs]
                self._cache.begin(self._windows, out=self._step.inputs)
                self._stream.wait_stream(self._cache.stream)
                self._choose()
        torch.cuda.current_stream().wait_stream(self._stream)


def run_round(host: Decoder, loop: Callable[[int], None], steps: int, number: int) -> float:
    """Seconds per token."""
    host.position.fill_(PROMPT)
    return seconds(functools.partial(loop, steps), DEVICE) / steps


def sampled(logits: torch.Tensor) -> torch.Tensor:
    """One id per row, from the softmax of logits (batch, vocab)."""
    scores = logits.float()
    return race(scores, torch.empty_like(scores).exponential_())[0]


def parts(host: Decoder, marks: Marks, batch: int, *, times: int = 100) -> dict[str, float]:
    """Microseconds of each part of a step, run alone."""
    logits = host(torch.randint(1000, (batch,), device=DEVICE))
    step, steps = BiasStep(marks.composed, batch=batch, k=K), BiasSteps(marks.composed, k=K)
    scores, windows = logits.float(), torch.randint(1000, (batch, K), device=DEVICE)
    fresh = iter(torch.randint(VOCAB, (times + 10, batch, K)).tolist())
    works: dict[str, Callable[[], object]] = {
        "contexts, captured": captured(step.read),
        "kernels, captured": captured(lambda: step.bias_(logits)),
        "sampling, captured": captured(lambda: sampled(logits)),
        "torch.topk(32), captured": captured(lambda: logits.topk(32)),
        "step of a session": lambda: steps(windows, scores),
        "windows encoded": lambda: marks.cache.begin(list(map(tuple, next(fresh)))),
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
            found[f"{name}, CPU"] = round(1e6 * queued / times, 1)
    return found


if __name__ == "__main__":
    main()
