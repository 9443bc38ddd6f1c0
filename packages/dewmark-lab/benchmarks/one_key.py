"""What one key does to unmarked texts of one kind: r, and the rates of many keys.

    python benchmarks/one_key.py KINDS.json --keys 200 [--set flatten=null ...] [--out TABLE.json]

KINDS.json maps the name of a kind to a list of texts. For each kind the table holds r, the mean correlation
of two texts' z under one key (a closed form, exact); the false-alarm rate at 1% averaged over keys; and the
rates of the worst key and of the key at the 99th percentile. Keys are SHA-256("hostile-0"), "hostile-1", ….
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
from scipy.special import ndtri

import dewmark
from dewmark.core.projections import draw_matrix
from dewmark.stats.evidence import Evidence

LEVEL = 0.01


def matrices(evidence: list[Evidence]) -> np.ndarray:
    """Each text's matrix, scaled to norm 1, (texts, d_T · d_C)."""
    found = []
    for text in evidence:
        M = (text.T * text.weights[:, None].astype(np.float32)).T @ text.C
        found.append(np.ravel(M / max(float(np.linalg.norm(M)), 1e-12)))
    return np.asarray(found, dtype=np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", type=Path)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--most", type=int, default=60, help="texts per kind")
    parser.add_argument("--scheme", default="dew")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=JSON")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    opened = gzip.open if options.kinds.suffix == ".gz" else open
    with opened(options.kinds, "rt", encoding="utf-8") as file:
        kinds: dict[str, list[str]] = json.load(file)
    settings = {name: json.loads(value) for name, _, value in (each.partition("=") for each in options.set)}
    keys = [dewmark.Key(hashlib.sha256(f"hostile-{i}".encode()).digest()) for i in range(options.keys)]
    bound = dewmark.load_scheme(keys[0], scheme=options.scheme, settings=settings)
    full = options.scheme != "dew-paper"
    W = np.zeros((0, 0), dtype=np.float32)
    if full:
        d_T, d_C = bound.W.shape
        W = np.stack([draw_matrix(key, d_T=d_T, d_C=d_C).astype(np.float32).ravel() for key in keys], axis=1)
    rows = []
    for kind, texts in kinds.items():
        texts = texts[: options.most]
        evidence = bound.evidence(bound.tokenize(texts), bound.tokenize([""] * len(texts)))
        M = matrices([each for each in evidence if len(each)])
        if len(M) < 2:
            print(f"{kind}: no evidence", flush=True)
            continue
        total = M.sum(axis=0, dtype=np.float64)
        row = {
            "kind": kind,
            "texts": len(M),
            "words": round(float(np.mean([len(each.positions) for each in evidence]))),
            "r": float((total @ total - len(M)) / (len(M) * (len(M) - 1))),
        }
        if full:
            z = M @ W
            rates = np.mean(z > -ndtri(LEVEL), axis=0)
            row |= {
                "mean_rate": float(rates.mean()),
                "worst_rate": float(rates.max()),
                "rate_99": float(np.quantile(rates, 0.99)),
                "hostile_13": float(rates[13]) if len(rates) > 13 else None,
                "deviation": float(z.std()),
            }
        rows.append(row)
        print(json.dumps(row), flush=True)
    if options.out:
        table = {"settings": settings, "keys": options.keys, "rows": rows}
        options.out.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
