"""Windows a second through use-m3: numpy on the CPU against torch on a device, and how far they differ.

    python benchmarks/use_m3.py --out use_m3.json

Windows are four words, or seven characters where a language has no spaces, in the languages of the package's
ordinary texts. ``first`` is with an empty memory of words, ``again`` with a full one; ``ids`` is the
tokenizer alone. ``graph`` is a batch of windows as a CUDA graph: milliseconds until the call returns, and
until the rows are there.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from dewmark.cuda.encoder import GraphedEncoder
from dewmark.encoders.contexts import ordinary_texts
from dewmark.encoders.use import USEWordTokenizer, load_numpy_model, load_tokenizer
from dewmark.encoders.use_torch import TorchUSE
from dewmark.models.packaged import PACKAGED, fetch


def windows(count: int) -> list[str]:
    """So many windows, the same ones each time."""
    draw = random.Random(0)
    found = []
    for text in draw.choices(ordinary_texts(), k=count):
        words = text.split()
        if len(words) > 60:
            found.append(" " + " ".join(draw.choices(words, k=4)))
        else:
            start = draw.randrange(len(text) - 7)
            found.append(text[start : start + 7])
    return found


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def graph(graphs: GraphedEncoder, texts: list[str], *, rounds: int = 20) -> dict[str, float]:
    """Median milliseconds of a batch after it was captured."""
    called, done = [], []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        with torch.cuda.stream(graphs.stream):
            graphs.encode(texts)
        called.append(time.perf_counter() - start)
        graphs.stream.synchronize()
        done.append(time.perf_counter() - start)
    return {"called": 1e3 * float(np.median(called[1:])), "done": 1e3 * float(np.median(done[1:]))}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=50_000)
    parser.add_argument("--numpy-windows", type=int, default=2000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    folder = fetch("use-m3") / PACKAGED["use-m3"].entry
    texts = windows(args.windows)
    pieces = USEWordTokenizer(load_tokenizer(folder))
    model = TorchUSE(folder / "resources" / "weights.npz", pieces, device=device)
    model.encode([""])
    report: dict[str, object] = {"device": str(device), "windows": len(texts)}
    for name in ("first", "again"):
        report[f"torch_{name}_per_s"] = len(texts) / seconds(lambda: model.encode(texts))
    report["ids_again_per_s"] = len(texts) / seconds(lambda: pieces.rows(texts))
    some = texts[: args.numpy_windows]
    plain = load_numpy_model(folder)
    plain.encode(some[:100])
    report["numpy_per_s"] = len(some) / seconds(lambda: plain.encode(some))
    report["largest_difference"] = float(np.abs(plain.encode(some) - model.encode(some)).max())
    if device.type == "cuda":
        report["peak_mb"] = torch.cuda.max_memory_allocated(device) >> 20
        graphs = GraphedEncoder(model)
        report["graph_ms"] = {size: graph(graphs, texts[:size]) for size in (1, 16, 64, 256)}
        expected = model.encode(texts[:256])
        with torch.cuda.stream(graphs.stream):
            found = graphs.encode(texts[:256])
        graphs.stream.synchronize()
        report["largest_difference_graph"] = float(np.abs(found.cpu().numpy() - expected).max())
        report["peak_mb_with_graphs"] = torch.cuda.max_memory_allocated(device) >> 20
    text = json.dumps(report, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
