"""What many keys cost on one text, as a ratio to one key, and what a long text costs in time and memory.

    python benchmarks/many_keys.py --text page.txt --keys 1000

All keys are fresh: each has its projections drawn and the text scored. Times are for one process with the
public tables open, and for the whole of it (tables opened, too), as the command pays.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import dewmark
from dewmark.hosts import host_info


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", required=True)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--host", default="smollm2-135m")
    args = parser.parse_args()
    info = host_info(args.host)
    cut = info.tokenizer.encode([Path(args.text).read_text(encoding="utf-8")])[0]
    text = cut.text[: cut.offsets[: args.tokens][-1][1]]
    _timed(text, 1, info)  # imports, disk cache
    one = _timed(text, 1, info)
    bound = dewmark.load_scheme("dew", key=dewmark.Key.generate(), host=info)  # keeps the tables open
    warm = min(_timed(text, 1, info) for _ in range(5))
    many = _timed(text, args.keys, info)
    print(f"{len(cut.ids[: args.tokens])} tokens, scheme {bound.config_hash[:8]}")
    print(f"one key, tables opened too: {one:.3f} s; tables open: {warm * 1000:.1f} ms")
    print(f"{args.keys} keys: {many:.2f} s, {many / args.keys * 1000:.1f} ms a key")
    print(f"ratio to one key: {many / one:.1f} whole, {many / warm:.0f} with tables open")
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def _timed(text: str, keys: int, info: object) -> float:
    fresh = [dewmark.Key.generate() for _ in range(keys)]
    started = time.perf_counter()
    dewmark.identify([text], fresh, host=info)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
