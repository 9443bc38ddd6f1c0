"""The real false-positive rate of every scheme at p < 0.01, over keys and kinds of unmarked text.

    python benchmarks/scheme_false_alarms.py --cell en=en.jsonl --cell de=de.jsonl kgw exp:z synthid

A scheme is NAME[:TEST][,SETTING=VALUE…]. A cell is NAME=FILE[:FIRST:LAST], JSONL rows with ``text`` or
``response``, truncated to about ``--tokens`` tokens. Pairs of text and key too short for a verdict do not
count. The table shows the share of pairs with p < 0.01, its standard error over keys, the worst key, the p
that 1% of the pairs are below, and how many pairs were tested. A test whose statistic takes few values cannot
reach 1%: for schemes of sentences, ``expected`` is the mean of the largest p-values below 0.01 that the pairs
can have, which is the rate that their exact laws predict. ``--pool`` names texts that a scheme with a pool
(WaterPool) has written under each key. With ``--out`` an interrupted run continues.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom
from script_inputs import named_key, read_texts, script_parser

import dewmark
from dewmark.baselines.sentence.acceptance_law import acceptance_law
from dewmark.baselines.sentence.pmark import ChannelEvidence
from dewmark.baselines.sentence.rejection_sampling import SentenceBound, SentenceUnits, TransitionEvidence
from dewmark.config import parse_settings
from dewmark.hosts import host_info
from dewmark.registry import SCHEMES
from dewmark.types import Detection, Verdict
from dewmark.workspace import Workspace

LEVEL = 0.01


def detections(
    scheme: str,
    settings: dict[str, Any],
    test: str | None,
    texts: Sequence[str],
    options: Any,  # noqa: ANN401
) -> list[list[Detection]]:
    """One row per text, one column per key."""
    keys = options.keyring
    if scheme != "waterpool":
        about: dict[str, Any] = {"host": options.host, "scheme": scheme, "settings": settings}
        found = dewmark.identify(texts, keys, test=test, fpr=LEVEL, **about)
        return [list(each.detections) for each in found]
    columns = []
    for key in keys:
        bound: Any = dewmark.load_scheme(scheme, key=key, host=options.host, pool="memory", settings=settings)
        bound.finished(options.pool, seeds=range(len(options.pool)))
        columns.append(bound.detect_batch(texts, fpr=LEVEL, test=test))
    return [list(row) for row in zip(*columns, strict=True)]


def expected(
    scheme: str,
    settings: dict[str, Any],
    texts: Sequence[str],
    options: Any,  # noqa: ANN401
) -> np.ndarray | None:
    """The probability (texts, keys) that p < LEVEL, for schemes of sentences: the next p-value below it."""
    chosen = SCHEMES[scheme]().with_settings(settings)
    if not chosen.needs.drafts:
        return None
    columns = []
    for bound in chosen.bind_keys(options.keyring, host_info(options.host), Workspace(Path())):
        assert isinstance(bound, SentenceUnits)
        evidence = bound.evidence(bound.tokenize(texts), bound.tokenize([""] * len(texts)))
        tails = [np.cumsum(law[::-1]) for law in _laws(bound, evidence)]
        columns.append([float(tail[tail < LEVEL].max(initial=0.0)) for tail in tails])
    return np.array(columns).T


def _laws(bound: SentenceUnits, evidence: Sequence[Any]) -> Iterator[np.ndarray]:
    """The law over keys of each text's statistic, from its least value to its largest."""
    for each in evidence:
        if isinstance(each, ChannelEvidence):
            yield binom.pmf(np.arange(each.agrees.size + 1), each.agrees.size, 0.5)
        elif isinstance(bound, SentenceBound) and isinstance(each, TransitionEvidence):
            yield acceptance_law(each.counts, int(bound.partition[0].sum()))


def main() -> None:
    """Run the benchmark."""
    parser = script_parser(__doc__)
    parser.add_argument("schemes", nargs="+", metavar="NAME[:TEST][,SETTING=VALUE…]")
    parser.add_argument("--cell", action="append", required=True, metavar="NAME=FILE[:FIRST:LAST]")
    parser.add_argument("--keys", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--pool", metavar="FILE[:FIRST:LAST]", help="for waterpool: texts it has written")
    parser.add_argument("--out", type=Path, help="append each row to this JSONL file")
    args = parser.parse_args()
    cells = {
        name: read_texts(source, args.tokens)
        for name, _, source in (cell.partition("=") for cell in args.cell)
    }
    args.keyring = [named_key(f"false-alarms-{i}") for i in range(args.keys)]
    args.pool = read_texts(args.pool, args.tokens) if args.pool else []
    if not args.pool and any(given.startswith("waterpool") for given in args.schemes):
        parser.error("waterpool without texts in its pool has p = 1 for every text: name some with --pool")
    done = set()
    if args.out and args.out.exists():
        done = {(row["scheme"], row["text"]) for row in map(json.loads, args.out.read_text().splitlines())}
    columns = ("scheme", "text", "p < 0.01", "SE over keys", "worst key", "expected", "1% below", "pairs")
    print("|", " | ".join(columns), "|\n" + "| --- " * len(columns) + "|", flush=True)
    for given in args.schemes:
        named, *rest = given.split(",")
        settings = parse_settings(rest)
        scheme, _, test = named.partition(":")
        for cell, texts in cells.items():
            if (given, cell) in done:
                continue
            started = time.perf_counter()
            found = detections(scheme, settings, test or None, texts, args)
            row = {"scheme": given, "text": cell, **summary(found)}
            if (law := expected(scheme, settings, texts, args)) is not None:
                row["expected"] = float(law[conclusive(found)].mean())
            shown = [row[name] for name in ("share", "error", "worst")] + [row.get("expected", float("nan"))]
            print(
                f"| {given} | {cell} |",
                " | ".join(f"{100 * value:.2f}%" for value in shown),
                f"| {row['quantile']:.3g} | {row['pairs']} |",
                flush=True,
            )
            if args.out:
                with args.out.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps({**row, "seconds": time.perf_counter() - started}) + "\n")


def conclusive(found: Sequence[Sequence[Detection]]) -> np.ndarray:
    """Which pairs (texts, keys) are long enough for a verdict."""
    return np.array([[each.verdict is not Verdict.TOO_SHORT for each in row] for row in found])


def summary(found: Sequence[Sequence[Detection]]) -> dict[str, Any]:
    """The share of pairs with p < LEVEL, and how it varies over keys."""
    p = np.array([[each.p_value for each in row] for row in found])
    long = conclusive(found)
    by_key = ((p < LEVEL) & long).sum(axis=0) / long.sum(axis=0)
    return {
        "share": float((p[long] < LEVEL).mean()),
        "worst": float(by_key.max()),
        "error": float(by_key.std(ddof=1) / np.sqrt(len(by_key))),
        "quantile": float(np.quantile(p[long], LEVEL)),
        "pairs": int(long.sum()),
        "texts": int(long.any(axis=1).sum()),
    }


if __name__ == "__main__":
    main()
