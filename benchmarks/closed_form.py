"""The key test's closed form against simulated keys, on real texts.

    python benchmarks/closed_form.py --keys 500 TEXTS.jsonl[:FIRST:LAST] …

For each text (and for one of them repeated ten times) the standard deviation of the sum of scores over keys:
simulated, in closed form, and their ratio; a ratio from K keys is itself known to 1/√(2K).
"""

from __future__ import annotations

import argparse
import functools
import math

import numpy as np
from common import read_texts

import dewmark
from dewmark.config import parse_settings
from dewmark.dew.detection import saturate
from dewmark.stats.key_test import score_variance
from dewmark.stats.monte_carlo import monte_carlo_sums


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--keys", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--set", nargs="*", default=[])
    args = parser.parse_args()
    texts = [(source, text) for source in args.sources for text in read_texts(source, args.tokens)]
    texts.append((f"{texts[0][0]}, ten times", (texts[0][1] + "\n\n") * 10))
    scheme = dewmark.load_scheme(
        "dew", key=dewmark.Key.generate(), host="smollm2-135m", **parse_settings(args.set)
    )
    tokenizer = scheme.host.tokenizer
    ratios = []
    for name, text in texts:
        evidence = scheme.evidence(tokenizer.encode([text]), tokenizer.encode([""]))[0]
        score = functools.partial(saturate, gamma=scheme.scheme.gamma)
        sums = monte_carlo_sums(
            evidence, score, n=scheme.table.n, kind=scheme.scheme.projection, keys=args.keys
        )
        simulated, closed = math.sqrt(float(np.mean(sums**2))), math.sqrt(score_variance(evidence))
        ratios.append(simulated / closed)
        print(f"{name}: {evidence.length} tokens, {simulated:.3f} simulated, {closed:.3f} closed, "
              f"ratio {simulated / closed:.4f}", flush=True)  # fmt: skip
    print(f"{len(ratios)} texts: ratio {min(ratios):.4f} to {max(ratios):.4f}, mean {np.mean(ratios):.4f}; "
          f"one ratio is known to {1 / math.sqrt(2 * args.keys):.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
