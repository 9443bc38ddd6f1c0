"""How often WaterPool's retrieval finds a rewritten text's original, by the size of the pool.

    python benchmarks/waterpool_size.py --original A.jsonl:0:100 --rewritten B.jsonl:0:100 --sizes 1000 100000

Row i of B rewrites row i of A. The pool holds the originals and unrelated entries. Nobody has 100,000 texts
of one host at hand, so the vectors of those are drawn from the normal law with the mean and covariance of the
originals' vectors: as many neighbours as real texts of the same kinds would have, on average over directions.
The table shows the share of rewrites whose original is among the r nearest entries; no inner scheme can find
more. With one text per topic a real pool is as easy; with many answers to one prompt it is harder.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import numpy as np
from script_inputs import script_parser

from dewmark.baselines.retrieval.key_pool import Pool
from dewmark.core.whitening import normalize_rows
from dewmark.encoders import load_encoder

BATCH = 32
RETRIEVED = (1, 3, 10)


def read_rows(source: str, tokens: int) -> list[str]:
    """The ``response`` of every row of FILE[:FIRST:LAST], truncated to about ``tokens`` tokens."""
    name, *rows = source.split(":")
    lines = [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]
    chosen = lines[int(rows[0]) : int(rows[1])] if rows else lines
    return [str(line.get("text", line.get("response")))[: 5 * tokens] for line in chosen]


def main() -> None:
    """Run the benchmark."""
    parser = script_parser(__doc__)
    parser.add_argument("--original", required=True, metavar="FILE[:FIRST:LAST]")
    parser.add_argument("--rewritten", required=True, metavar="FILE[:FIRST:LAST]")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--encoder", default="use-m3")
    args = parser.parse_args()
    originals, rewrites = (read_rows(each, args.tokens) for each in (args.original, args.rewritten))
    if len(originals) != len(rewrites):
        parser.error(f"{len(originals)} originals but {len(rewrites)} rewrites: row i rewrites row i")
    encoder = load_encoder(args.encoder)
    mine, theirs = (
        normalize_rows(np.concatenate([encoder.encode(t[i : i + BATCH]) for i in range(0, len(t), BATCH)]))
        for t in (originals, rewrites)
    )
    pool = Pool(secret=bytes(32), dim=encoder.dim)
    keys = [secrets.token_bytes(32) for _ in originals]
    pool.add(keys, originals, mine)
    rng = np.random.default_rng(0)
    mean, spread = mine.mean(axis=0), (mine - mine.mean(axis=0)) / np.sqrt(len(mine))
    print("| pool |", " | ".join(f"among {r}" for r in RETRIEVED), "|\n|" + " --- |" * 4)
    for size in args.sizes:
        new = size - len(pool)
        if new > 0:
            others = normalize_rows(mean + rng.normal(size=(new, len(mine))) @ spread).astype(np.float32)
            names = [f"entry {len(pool) + i}" for i in range(new)]
            pool.add([secrets.token_bytes(32) for _ in names], names, others)
        found = pool.nearest(theirs.astype(np.float32), max(RETRIEVED))
        shares = [
            np.mean([key in near[:r] for key, near in zip(keys, found, strict=True)]) for r in RETRIEVED
        ]
        print(f"| {len(pool):,} |", " | ".join(f"{share:.2f}" for share in shares), "|", flush=True)


if __name__ == "__main__":
    main()
