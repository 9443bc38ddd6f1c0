"""What one key does to unmarked texts of one kind: r, and the rates of many keys (docs/results/one-key.md).

    python benchmarks/one_key.py KINDS.json --keys 1000 [--set flatten=2 ...] [--out TABLE.json]

KINDS.json maps the name of a kind to a list of texts. For each kind the table has the mean correlation r of
two texts' z under one key and the r that matches the variance of a key's rate at 1% (closed forms, without
any key); r without a reader; the rate at 1% averaged over keys, that of the 1st, the 99th percentile and the
worst key; and the 1st and 99th percentiles that the matched r predicts. The last line has the shares of all
texts under all keys at four levels. Texts without a verdict do not count. Keys are SHA-256("one-key-0"),
"one-key-1", ….
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

import numpy as np
from scipy.special import ndtri
from script_inputs import named_key

import dewmark
from dewmark.config import config_hash, parse_settings
from dewmark.core.projections import draw_float32_matrix
from dewmark.dew.scheme import BoundDEW
from dewmark.stats.one_key import matching_correlation, mean_correlation, rate_ceiling
from dewmark.verdict import MIN_EFFECTIVE_LENGTH

DETECTION = ("flatten", "k", "lexicon")  # the settings on which unmarked texts' scores depend
LEVEL, LEVELS = 0.01, (0.05, 0.01, 0.001, 0.0001)


def configuration(bound: BoundDEW) -> str:
    """What the scores of unmarked texts depend on: settings, and the packaged reader."""
    settings = bound.scheme.to_dict()
    return config_hash({name: settings[name] for name in DETECTION}, bound.reader.packaged.identity)


def matrices(bound: BoundDEW, texts: list[str]) -> np.ndarray:
    """F/‖F‖ of the texts that get a verdict, (texts, d_T · d_C)."""
    found = bound.read(bound.tokenize(texts), bound.tokenize([""] * len(texts)))
    tested = [each for each in found if each.square and each.effective_length >= MIN_EFFECTIVE_LENGTH]
    return np.array([np.ravel(each.F) / each.square**0.5 for each in tested], dtype=np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", type=Path)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--most", type=int, default=200, help="texts per kind")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    opened = gzip.open if options.kinds.suffix == ".gz" else open
    with opened(options.kinds, "rt", encoding="utf-8") as file:
        kinds: dict[str, list[str]] = json.load(file)
    settings = parse_settings(options.set)
    keys = [named_key(f"one-key-{i}") for i in range(options.keys)]
    bound, bare = (dewmark.load_scheme(keys[0], settings=settings, reader=each) for each in (None, "none"))
    assert isinstance(bound, BoundDEW)
    assert isinstance(bare, BoundDEW)
    d_T, d_C = bound.W.shape
    W = np.stack([draw_float32_matrix(key, d_T=d_T, d_C=d_C).ravel() for key in keys], axis=1)
    rows, tested, alarms = [], 0, np.zeros(len(LEVELS))
    for kind, texts in kinds.items():
        m = matrices(bound, texts[: options.most])
        if len(m) < 2:
            continue
        z = m @ W
        rates = np.mean(z > -ndtri(LEVEL), axis=0)
        tested += z.size
        alarms += [np.count_nonzero(z > -ndtri(level)) for level in LEVELS]
        matched = matching_correlation(m, LEVEL)
        row = {
            "kind": kind,
            "texts": len(m),
            "words": round(float(np.mean([len(text.split()) for text in texts[: options.most]]))),
            "r": round(mean_correlation(m).r, 5),
            "matched": round(matched, 5),
            "r_bare": round(mean_correlation(matrices(bare, texts[: options.most])).r, 5),
            "rate": round(float(rates.mean()), 5),
            "rate_1": round(float(np.quantile(rates, 0.01)), 5),
            "rate_99": round(float(np.quantile(rates, 0.99)), 5),
            "worst": round(float(rates.max()), 5),
            "predicted_1": round(rate_ceiling(matched, LEVEL, share=0.01), 5),
            "predicted_99": round(rate_ceiling(matched, LEVEL), 5),
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    table = {
        "configuration": configuration(bound),
        "keys": options.keys,
        "texts": sum(row["texts"] for row in rows),
        "levels": {str(level): count / tested for level, count in zip(LEVELS, alarms.tolist(), strict=True)},
        "rows": rows,
    }
    print(json.dumps({name: value for name, value in table.items() if name != "rows"}))
    if options.out:
        lines = ",\n".join(map(json.dumps, rows))
        options.out.write_text(json.dumps({**table, "rows": 0})[:-2] + f"[\n{lines}\n]}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
