"""Milliseconds per text of the default's detection, in batch: by device and number of processes.

    python benchmarks/batch_detection.py --device cpu cuda --jobs 1 4 16 --out batch.json

Texts of 155 words (about 200 tokens) are random walks over the package's English texts. Every process opens
its own detector, scores a few texts, waits for the others, and then scores its share in batches of
``--batch``; it has one thread. ``ms`` is the time from the start of the first process to the end of the last,
per text; ``cpu_ms`` the processor time of all processes. At level 0.5 half of the texts count as marked, and
are tested for forgery too. With one process the parts are timed as well: words, languages, look-ups, and the
rest, which includes the device.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from script_inputs import named_key, script_parser

import dewmark
from dewmark.dew.scheme import BoundDEW
from dewmark.lab.bench.workloads import random_walks

WORDS = 155
LEVELS = (0.01, 0.5)
Times = tuple[float, float, float]  # when it began and ended, and the processor time between


def main() -> None:
    """Run the benchmark."""
    parser = script_parser(__doc__)
    parser.add_argument("--device", nargs="+", default=["cpu"])
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--texts", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the processes to start
    rows: list[dict[str, object]] = []
    for device in args.device:
        for jobs in args.jobs:
            for row in measured(device, jobs, args):
                rows.append(row)
                print(json.dumps(row), flush=True)
                if args.out:
                    args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def measured(device: str, jobs: int, args: argparse.Namespace) -> list[dict[str, object]]:
    """All numbers of texts and levels, by processes that stay open."""
    context = multiprocessing.get_context("spawn")
    begin, results = context.Barrier(jobs), context.Queue()
    workers = [
        context.Process(target=work, args=(job, jobs, device, args.texts, args.batch, begin, results))
        for job in range(jobs)
    ]
    for worker in workers:
        worker.start()
    found = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    rows = []
    for place, (texts, level) in enumerate(runs(args.texts)):
        times: list[Times] = [each["times"][place] for each in found]
        begun, ended = min(each[0] for each in times), max(each[1] for each in times)
        rows.append(
            {
                "device": found[0]["device"],
                "jobs": jobs,
                "texts": texts,
                "level": level,
                "ms": round(1e3 * (ended - begun) / texts, 4),
                "cpu_ms": round(1e3 * sum(each[2] for each in times) / texts, 4),
            }
        )
    if jobs == 1:
        rows.append({"device": found[0]["device"], "parts_cpu_ms": found[0]["parts"]})
    return rows


def runs(texts: list[int]) -> list[tuple[int, float]]:
    """The number of texts and the level of each run."""
    return [(count, level) for count in texts for level in LEVELS]


def work(
    job: int,
    jobs: int,
    device: str,
    counts: list[int],
    batch: int,
    begin: Barrier,
    results: Queue[dict[str, Any]],
) -> None:
    """One process: its share of every run."""
    bound = dewmark.load_scheme("dew", key=named_key("speed"), host=None)
    assert isinstance(bound, BoundDEW)
    name = device
    if device != "cpu":
        import torch

        torch.set_num_threads(1)
        bound = bound.on(device)
        name = torch.cuda.get_device_name() if device.startswith("cuda") else device
    for level in LEVELS:
        bound.detect_batch(random_walks(batch, words=WORDS, seed=10_000 + job), fpr=level)
    times: list[Times] = []
    for number, (count, level) in enumerate(runs(counts)):
        mine = random_walks(len(range(job, count, jobs)), words=WORDS, seed=number * jobs + job)
        begin.wait()
        begun, cpu = time.time(), time.process_time()
        for at in range(0, len(mine), batch):
            bound.detect_batch(mine[at : at + batch], fpr=level)
        times.append((begun, time.time(), time.process_time() - cpu))
        begin.wait()
    parts = parts_of(bound, random_walks(batch, words=WORDS, seed=20_000 + job)) if jobs == 1 else {}
    results.put({"device": name, "times": times, "parts": parts})


def parts_of(bound: BoundDEW, texts: list[str]) -> dict[str, float]:
    """Milliseconds of processor time per text, part by part; the best of five."""
    tokenized, prompts = bound.tokenize(texts), bound.tokenize([""] * len(texts))
    parts: dict[str, Callable[[], object]] = {
        "words": lambda: bound.tokenize(texts),
        "languages": lambda: bound.languages.read(texts),
        "look-ups": lambda: bound.reader.read(tokenized, prompts),
        "look-ups and tests": lambda: list(bound.test_texts(tokenized, prompts, test="key", fpr=0.01)),
        "together": lambda: bound.detect_batch(texts),
    }
    found = {}
    for name, part in parts.items():
        taken = []
        for _ in range(5):
            began = time.process_time()
            part()
            taken.append(time.process_time() - began)
        found[name] = round(1e3 * min(taken) / len(texts), 4)
    return found


if __name__ == "__main__":
    main()
