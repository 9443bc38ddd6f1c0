"""The closed form of the key test against simulated keys, on real texts (docs/statistics.md, section 3).

    python benchmarks/closed_form.py --keys 500 TEXTS.jsonl[:FIRST:LAST] …

For each text, and for the first one repeated ten times: the standard deviation of the sum of scores over
keys, simulated and in closed form, and their ratio. With K keys a ratio has a standard error of 1/√(2K).
"""

from __future__ import annotations

import functools
import math

import numpy as np
from script_inputs import read_texts, script_parser

import dewmark
from dewmark.config import parse_settings
from dewmark.dew.detection import saturate
from dewmark.stats.key_test import score_variance
from dewmark.stats.monte_carlo import monte_carlo_sums


def main() -> None:
    """Run the benchmark."""
    parser = script_parser(__doc__)
    parser.add_argument("sources", nargs="+", metavar="FILE.jsonl[:FIRST:LAST]")
    parser.add_argument("--keys", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--set", nargs="*", default=[], metavar="SETTING=VALUE")
    args = parser.parse_args()
    texts = [(source, text) for source in args.sources for text in read_texts(source, args.tokens)]
    texts.append((f"{texts[0][0]}, ten times", (texts[0][1] + "\n\n") * 10))
    bound = dewmark.load_scheme(
        "dew", key=dewmark.Key.generate(), host="smollm2-135m", **parse_settings(args.set)
    )
    score = np.asarray  # keyed sampling sums u itself
    if bound.scheme.sampler == "bias":
        score = functools.partial(saturate, gamma=bound.scheme.gamma)
    ratios = []
    for name, text in texts:
        (evidence,) = bound.evidence(bound.tokenize([text]), bound.tokenize([""]))
        sums = monte_carlo_sums(
            evidence,
            score,
            n=bound.fold.n,
            kind=bound.scheme.projection,
            secret=b"closed form",
            keys=args.keys,
        )
        simulated, closed = math.sqrt(float(np.mean(sums**2))), math.sqrt(score_variance(evidence))
        ratios.append(simulated / closed)
        print(
            f"{name}: {evidence.length} tokens, {simulated:.3f} simulated, {closed:.3f} closed, "
            f"ratio {ratios[-1]:.4f}",
            flush=True,
        )
    print(
        f"{len(ratios)} texts: ratio {min(ratios):.4f} to {max(ratios):.4f}, mean {np.mean(ratios):.4f}; "
        f"standard error of one ratio {1 / math.sqrt(2 * args.keys):.4f}"
    )


if __name__ == "__main__":
    main()
