"""The real false-positive rate of every scheme at p < 0.01, over keys and kinds of unmarked text.

    python benchmarks/scheme_false_alarms.py --cell en=en.jsonl --cell de=de.jsonl kgw exp:z synthid

A scheme is NAME[:TEST][,SETTING=VALUE…]. A cell is NAME=FILE[:FIRST:LAST], JSONL rows with ``text`` or
``response``, truncated to about ``--tokens`` tokens. Texts too short for a verdict do not count. The table
shows the share of (text, key) pairs with p < 0.01, the worst key, and how many pairs were tested. With
``--out`` an interrupted run continues.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from script_inputs import named_key, read_texts, script_parser

import dewmark
from dewmark.config import parse_settings
from dewmark.types import Verdict

LEVEL = 0.01


def main() -> None:
    """Run the benchmark."""
    parser = script_parser(__doc__)
    parser.add_argument("schemes", nargs="+", metavar="NAME[:TEST][,SETTING=VALUE…]")
    parser.add_argument("--cell", action="append", required=True, metavar="NAME=FILE[:FIRST:LAST]")
    parser.add_argument("--keys", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--out", type=Path, help="append each row to this JSONL file")
    args = parser.parse_args()
    cells = {
        name: read_texts(source, args.tokens)
        for name, _, source in (cell.partition("=") for cell in args.cell)
    }
    keys = [named_key(f"false-alarms-{i}") for i in range(args.keys)]
    done = set()
    if args.out and args.out.exists():
        done = {(row["scheme"], row["text"]) for row in map(json.loads, args.out.read_text().splitlines())}
    print("| scheme | text | p < 0.01 | worst key | pairs |\n| --- | --- | --- | --- | --- |", flush=True)
    for given in args.schemes:
        named, *settings = given.split(",")
        scheme, _, test = named.partition(":")
        for cell, texts in cells.items():
            if (given, cell) in done:
                continue
            started = time.perf_counter()
            found = dewmark.identify(
                texts,
                keys,
                host=args.host,
                scheme=scheme,
                settings=parse_settings(settings),
                test=test or None,
            )
            tested = [each for each in found if each.detections[0].verdict is not Verdict.TOO_SHORT]
            p = np.array([[d.p_value for d in each.detections] for each in tested])
            share, worst = float((p < LEVEL).mean()), float((p < LEVEL).mean(axis=0).max())
            print(f"| {given} | {cell} | {100 * share:.2f}% | {100 * worst:.1f}% | {p.size} |", flush=True)
            row = {"scheme": given, "text": cell, "share": share, "worst": worst, "pairs": p.size}
            if args.out:
                with args.out.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps({**row, "seconds": time.perf_counter() - started}) + "\n")


if __name__ == "__main__":
    main()
