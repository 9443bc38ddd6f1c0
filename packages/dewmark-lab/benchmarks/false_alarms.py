"""False-positive rates of many keys on unmarked texts (docs/statistics.md, docs/results/one-key.md).

    python benchmarks/false_alarms.py --cell de=de.jsonl --config white: --config raw: flatten=1e9

A cell is NAME=FILE[:FIRST:LAST], JSONL rows with ``text`` or ``response``; texts are truncated to about
``--tokens`` tokens. For each configuration and test the table shows the share of texts with p < 0.01, mean
over keys (worst key), and over all cells and keys the share with p < 0.001.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from script_inputs import named_key, parse_with_configs, read_texts, script_parser

import dewmark

Job = tuple[str, dict[str, Any], str, str, list[str], int, str]


def main() -> None:
    """Run the benchmark."""
    args = _arguments()
    cells = {name: read_texts(source, args.tokens) for name, source in args.cell}
    jobs: list[Job] = [
        (config, settings, test, cell, texts, args.keys, args.host)
        for config, settings in args.config
        for test in args.tests
        for cell, texts in cells.items()
    ]
    # the first job runs alone, so that tables are built only once
    found = [_p_values(jobs[0])]
    with ProcessPoolExecutor(args.workers) as pool:
        found += pool.map(_p_values, jobs[1:])
    report = {}
    for (config, _, test, cell, *_), p in zip(jobs, found, strict=True):
        by_key = (p < 0.01).mean(axis=1)
        report[f"{config}|{test}|{cell}"] = {
            "texts": p.shape[1],
            "mean": float(by_key.mean()),
            "worst": float(by_key.max()),
            "p<0.001": float((p < 0.001).mean()),
            "count": int(p.size),
        }
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    columns = [f"{config}, {test}" for config, _ in args.config for test in args.tests]
    print("| text |", " | ".join(columns), "|")
    print("| --- " * (1 + len(columns)) + "|")
    for cell in cells:
        rows = [report[f"{config}|{test}|{cell}"] for config, _ in args.config for test in args.tests]
        print(
            f"| {cell} |", " | ".join(f"{100 * r['mean']:.2f}% ({100 * r['worst']:.1f}%)" for r in rows), "|"
        )
    pooled = [
        [report[f"{config}|{test}|{cell}"] for cell in cells]
        for config, _ in args.config
        for test in args.tests
    ]
    shares = [sum(r["p<0.001"] * r["count"] for r in rows) / sum(r["count"] for r in rows) for rows in pooled]
    print("| p < 0.001, pooled |", " | ".join(f"{100 * share:.3f}%" for share in shares), "|")


def _p_values(job: Job) -> np.ndarray:
    """The p-values (keys, texts) of one configuration, test and cell."""
    _, settings, test, _, texts, count, host = job
    keys = [named_key(f"false-alarms-{i}") for i in range(count)]
    found = dewmark.identify(texts, keys, host=host, settings=settings, test=test)
    return np.array([[d.p_value for d in attribution.detections] for attribution in found]).T


def _arguments() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=250)
    parser.add_argument("--tests", nargs="+", default=["key", "gaussian"])
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 2) // 2, 1))
    parser.add_argument("--cell", action="append", required=True, type=lambda text: tuple(text.split("=", 1)))
    parser.add_argument("--out")
    return parse_with_configs(parser)


if __name__ == "__main__":
    main()
