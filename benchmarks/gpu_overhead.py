"""What the bias mark adds to a token on a GPU, over an eager host and over one in a CUDA graph.

    python benchmarks/gpu_overhead.py --out overhead.json

Random weights in the shapes of Llama-3.2-3B (host) and MPNet-base (encoder), bfloat16; tables 128,256 x 768.
Rows: no mark; ``composed`` contexts; ``window`` contexts, whose encoder runs in a CUDA graph of its own, on a
stream of lower priority, while the host computes the next logits. All rows take turns, round after round;
printed are milliseconds per token and the median over rounds of the ratio to no mark in the same round.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from gpu_models import LLAMA_3B, MPNET_BASE, PIECES, Decoder, Encoder, llama, sentence_encoder, spellings

from dewmark.dew.channels import DeviceTables, TokenChannel
from dewmark.dew.hot import GraphMark
from dewmark.dew.scheme import DEW
from dewmark.dew.session import BiasSession
from dewmark.embeddings.contexts import WindowContexts
from dewmark.embeddings.encoders import SentenceTransformerEncoder
from dewmark.hosts.decoding import CachedForward
from dewmark.sampling import race

Loop = Callable[[int], None]  # writes so many tokens

DEVICE = torch.device("cuda")
ROOM, N = 256, 3072
SCHEME = DEW(units="token", sampler="bias")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument(
        "--steps", type=int, default=100, help="tokens a round in the graph; eager: a quarter"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--hosts", nargs="+", default=["graph", "eager"], choices=["graph", "eager"])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    report: dict[str, dict[str, float]] = {}
    gc.disable()  # a graph that is collected while another is captured spoils the capture
    with torch.inference_mode():
        tables = random_tables()
        for kind in args.hosts:
            host, encoder = (graph_models if kind == "graph" else eager_models)()
            for batch in args.batches:
                loops = (graph_loops if kind == "graph" else eager_loops)(host, tables, encoder, batch)
                steps = args.steps if kind == "graph" else max(args.steps // 4, 10)
                for name, row in timed(loops, steps, args.rounds).items():
                    report[f"{kind} {batch} {name}"] = row
                    print(f"{kind}, batch {batch}, {name}: {row}", flush=True)
                if args.out:
                    args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
                del loops
                gc.collect()
            del host, encoder
            gc.collect()
            torch.cuda.empty_cache()


def timed(loops: dict[str, Loop], steps: int, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds per token (median) and ratio to the first row."""
    times: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(rounds + 1):
        names = list(loops)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            torch.cuda.synchronize()
            started = time.perf_counter()
            loops[name](steps)
            torch.cuda.synchronize()
            times[name].append(1000.0 * (time.perf_counter() - started) / steps)
    plain = times[next(iter(loops))][1:]
    return {
        name: {
            "ms": round(statistics.median(mine[1:]), 4),
            "ratio": round(statistics.median(a / b for a, b in zip(mine[1:], plain, strict=True)), 4),
        }
        for name, mine in times.items()
    }


def random_tables() -> DeviceTables:
    """Tables of the scheme's shape, as if of some key."""
    vocab, width = LLAMA_3B.vocab, MPNET_BASE.width
    special = torch.zeros(vocab + 1, dtype=torch.bool, device=DEVICE)
    special[-1] = True
    rows = torch.randn(vocab + 1, width, device=DEVICE, dtype=torch.float16)
    rows[-1] = 0.0
    R_C = torch.randn(width, N, device=DEVICE)
    return DeviceTables(
        Q=torch.randn(vocab, width, device=DEVICE) / N**0.5, G=R_C @ R_C.T, special=special, context_rows=rows
    )


def sampled(logits: torch.Tensor) -> torch.Tensor:
    """One id per row, from the softmax of logits (batch, vocab)."""
    scores = logits.float()
    return race(scores, torch.empty_like(scores).exponential_())[0]


def captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The work as a CUDA graph, after it ran a few times, on a stream with a workspace of its own."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        work()
    return graph


def graph_models() -> tuple[Decoder, Encoder]:
    """A host and an encoder that can be captured."""
    return Decoder(LLAMA_3B, batch=1, length=ROOM, device=DEVICE), Encoder(MPNET_BASE, device=DEVICE)


def eager_models() -> tuple[torch.nn.Module, SentenceTransformerEncoder]:
    """A host and an encoder as libraries give them."""
    return llama(), sentence_encoder(Path(tempfile.mkdtemp()))


def graph_loops(host: Decoder, tables: DeviceTables, encoder: Encoder, batch: int) -> dict[str, Loop]:
    """Loops whose host, mark and sampling are captured."""
    host.resize(batch, ROOM)
    ids = torch.randint(1000, (batch,), device=DEVICE)
    mark = GraphMark(SCHEME, tables, n=N, batch=batch)

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

    def replayed(graph: torch.cuda.CUDAGraph, steps: int) -> None:
        host.position.fill_(64)
        for _ in range(steps):
            graph.replay()

    window = WindowLoop(host, mark, tables, encoder, ids)
    return {
        "none": functools.partial(replayed, captured(plain)),
        "composed": functools.partial(replayed, captured(composed)),
        "window": window.run,
    }


class Windows:
    """Contexts of the last k tokens by an encoder that runs beside the host.

    The ids come to the CPU while the device is at work, are spelled and cut into the encoder's tokens there,
    and the encoder's graph is started on a stream of low priority.
    """

    LENGTH = 16

    def __init__(
        self, encoder: Encoder, tables: DeviceTables, contexts: torch.Tensor, products: torch.Tensor
    ) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers

        known = {piece: i for i, piece in enumerate([*PIECES, "[UNK]"])}
        self._tokenizer = Tokenizer(models.WordPiece(known, unk_token="[UNK]"))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        self._spelling = spellings()
        batch = len(contexts)
        self._ids = torch.zeros(2, batch, self.LENGTH, dtype=torch.long, device=DEVICE)
        self._staged = torch.zeros(2, batch, self.LENGTH, dtype=torch.long).pin_memory()
        self._windows = [[0, 0, 0] for _ in range(batch)]
        self.aside = torch.cuda.Stream(priority=0)
        self.done = torch.cuda.Event()

        def work() -> None:
            contexts.copy_(encoder(self._ids[0], self._ids[1]))
            torch.mm(contexts, tables.G, out=products)

        self._graph = captured(work)

    def start(self, new: list[int]) -> None:
        """Encode the windows that end in these ids, one per row."""
        for window, token in zip(self._windows, new, strict=True):
            window.append(token)
            del window[0]
        texts = ["".join(self._spelling[i] for i in window) for window in self._windows]
        cut = [encoding.ids[: self.LENGTH] for encoding in self._tokenizer.encode_batch_fast(texts)]
        padded = [[ids + [0] * (self.LENGTH - len(ids)) for ids in cut]]
        padded.append([[1] * len(ids) + [0] * (self.LENGTH - len(ids)) for ids in cut])
        self._staged.copy_(torch.tensor(padded))
        with torch.cuda.stream(self.aside):
            self._ids.copy_(self._staged, non_blocking=True)
            self._graph.replay()
            self.done.record()


class WindowLoop:
    """The graphed host with window contexts: two graphs for host and mark, and the encoder's beside them."""

    def __init__(
        self, host: Decoder, mark: GraphMark, tables: DeviceTables, encoder: Encoder, ids: torch.Tensor
    ) -> None:
        self._host, self._ids = host, ids
        self._windows = Windows(encoder, tables, mark.contexts, mark.products)
        self._stream = torch.cuda.Stream(priority=-1)
        self._seen = torch.zeros(len(ids), dtype=torch.long).pin_memory()
        self._known = torch.cuda.Event()
        logits = torch.zeros(len(ids), LLAMA_3B.vocab, device=DEVICE, dtype=torch.bfloat16)
        self._forward = captured(lambda: logits.copy_(host(ids)))
        self._choose = captured(lambda: ids.copy_(sampled(mark.mark_(logits))))

    def run(self, steps: int) -> None:
        """Write so many tokens."""
        self._host.position.fill_(64)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(steps):
                self._seen.copy_(self._ids, non_blocking=True)
                self._known.record()
                self._forward.replay()  # queued before the CPU knows the last token
                self._known.synchronize()
                self._windows.start(self._seen.tolist())
                self._stream.wait_event(self._windows.done)
                self._choose.replay()
        torch.cuda.current_stream().wait_stream(self._stream)


def eager_loops(
    model: torch.nn.Module, tables: DeviceTables, encoder: SentenceTransformerEncoder, batch: int
) -> dict[str, Loop]:
    """Loops over transformers' own forward pass, token by token, as the library's host runs it."""
    prompt = torch.randint(1000, (batch, 64), device=DEVICE)
    spelling = spellings()
    tokenizer = SimpleNamespace(
        pad_id=None,
        special_ids=(),
        decode=lambda rows: ["".join(spelling[i] for i in row) for row in rows],
    )
    contexts = {"composed": object(), "window": WindowContexts(encoder, tokenizer, None)}
    shared: dict[str, object] = {}

    def session(kind: str) -> BiasSession:
        mine = tables if kind == "composed" else dataclasses.replace(tables, context_rows=None)

        def share(name: str, make: Callable[[], object]) -> object:
            return mine if name.startswith("tables") else shared.setdefault(f"{kind} {name}", make())

        bound = SimpleNamespace(
            scheme=SCHEME,
            hashed=None,
            fold=SimpleNamespace(n=N),
            host=SimpleNamespace(vocab_size=LLAMA_3B.vocab, tokenizer=tokenizer),
            shared=share,
        )
        reader = SimpleNamespace(k=SCHEME.k, contexts=contexts[kind])
        return BiasSession(SCHEME, TokenChannel(bound, reader, prompt, None), vocab_size=LLAMA_3B.vocab)

    def run(kind: str, steps: int) -> None:
        forward, ids = CachedForward(model, None), prompt
        mark = None if kind == "none" else session(kind)
        for _ in range(steps):
            if mark is not None:
                mark.ahead(ids)
            scores = forward(ids).to(torch.float32, copy=True)
            if mark is not None:
                scores = mark(ids, scores)
            ids = torch.cat((ids, sampled(scores).unsqueeze(1)), dim=1)

    return {name: functools.partial(run, name) for name in ("none", "composed", "window")}


if __name__ == "__main__":
    main()
