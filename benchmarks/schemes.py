"""All schemes on the same prompts: texts found, unmarked texts accused, quality (docs/results/schemes.md).

    python benchmarks/schemes.py --out results/ --human english=en.jsonl --human german=de.jsonl:300:500

Under several keys, the host continues the package's openings with each configuration of `dewmark bench`. The
scheme's default test scores all texts without their prompts. The table gives the share of marked texts with
p < 0.01 and their mean z; the share of accused texts (mean over keys, worst key) among the host's unmarked
completions of the same prompts and among human texts (JSONL rows with ``text`` or ``response``, truncated to
about the same length); the median perplexity under the host; and seconds per text to generate and to detect,
in batches. Settings can be changed: ``--schemes atw:delta=0.2``. An interrupted run resumes from ``--out``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from script_inputs import quality, read_texts, script_parser

import dewmark
from dewmark.decoding import Decoding
from dewmark.hosts.base import Host, generation_hash
from dewmark.lab.bench.configurations import CONFIGURATIONS, bind, configuration
from dewmark.lab.bench.workloads import prompts as openings
from dewmark.scheme import BoundScheme
from dewmark.storage import append_jsonl, atomic_write, read_jsonl
from dewmark.types import Generation

LEVEL = 0.01
UNMARKED = "unmarked completions"


def main() -> None:
    """Run the benchmark."""
    args = _arguments()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    host = dewmark.load_host(args.host, device=args.device, dtype=args.dtype)
    prompts = openings(args.texts)
    plain, seconds = _written(out / "unmarked.jsonl", host, prompts, None, args)
    nulls = {UNMARKED: plain} | {name: read_texts(source, args.tokens) for name, source in args.human}
    baseline = {"name": "none", "write_s": seconds, **quality(host, prompts, plain)}
    rows = [_row(name, out, host, prompts, nulls, args) for name in args.schemes or CONFIGURATIONS]
    _table(baseline, rows, list(nulls))


def _row(
    name: str,
    out: Path,
    host: Host,
    prompts: list[str],
    nulls: dict[str, list[str]],
    args: argparse.Namespace,
) -> dict[str, Any]:
    """The numbers of one configuration, from its file or measured now."""
    path = out / f"{name}.json"
    asked = {
        "settings": configuration(name),
        "host": host.info.identity,
        "keys": args.keys,
        "texts": len(prompts),
        "tokens": args.tokens,
        "nulls": {kind: len(texts) for kind, texts in nulls.items()},
    }
    asked = json.loads(json.dumps(asked))
    if path.exists():
        row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if row["asked"] == asked:
            return row
    marked: list[str] = []
    p_values: dict[str, list[Any]] = {kind: [] for kind in ("marked", *nulls)}
    z: list[float] = []
    write, detect = [], []
    for number in range(args.keys):
        scheme = bind(name, host, number=number)
        mine, seconds = _written(out / f"{name}-{number}.jsonl", host, prompts, scheme, args)
        marked += mine
        write.append(seconds)
        for kind, texts in (("marked", mine), *nulls.items()):
            started = time.perf_counter()
            found = _detected(scheme, texts, args.batch_size)
            if kind == UNMARKED:
                detect.append((time.perf_counter() - started) / len(texts))
            p_values[kind].append([p for p, _ in found])
            z += [value for _, value in found] if kind == "marked" else []
    row = {
        "name": name,
        "asked": asked,
        "write_s": float(np.median(write)),
        "detect_s": float(np.median(detect)),
        "found": float(np.mean(np.array(p_values["marked"]) < LEVEL)),
        "found_1e-4": float(np.mean(np.array(p_values["marked"]) < 1e-4)),
        "mean_z": float(np.mean(z)),
        "accused": {kind: [float(np.mean(np.array(p) < LEVEL)) for p in p_values[kind]] for kind in nulls},
        **quality(host, prompts * args.keys, marked),
        **_drafts([out / f"{name}-{number}.jsonl" for number in range(args.keys)]),
    }
    with atomic_write(path) as stream:
        stream.write((json.dumps(row, indent=1) + "\n").encode())
    print(f"{name}: {json.dumps({k: v for k, v in row.items() if k != 'asked'})}", flush=True)
    return row


def _written(
    path: Path, host: Host, prompts: list[str], scheme: BoundScheme | None, args: argparse.Namespace
) -> tuple[list[str], float]:
    """Completions and seconds per text, from the file if it matches, or written now and saved."""
    decoding = Decoding(max_new_tokens=args.tokens, min_new_tokens=args.tokens, no_repeat_ngram=4)
    if path.exists():
        rows = [row for _, row in read_jsonl(path)]
        expected = [(prompt, generation_hash(decoding, scheme, host.info)) for prompt in prompts]
        if [(row["prompt"], row["config_hash"]) for row in rows] == expected:
            return [row["text"] for row in rows], rows[0]["seconds"]
        path.unlink()
    started = time.perf_counter()
    made = host.generate(
        prompts,
        scheme=scheme,
        seeds=range(len(prompts)),
        batch_size=args.batch_size,
        decoding=decoding,
    )
    seconds = round((time.perf_counter() - started) / len(made), 4)
    append_jsonl(path, [_stored(generation) | {"seconds": seconds} for generation in made])
    return [g.text for g in made], seconds


def _stored(made: Generation) -> dict[str, Any]:
    """The row of one text."""
    row = {"prompt": made.prompt, "text": made.text, "config_hash": made.config_hash}
    return row if made.drafts is None else {**row, "drafts": made.drafts.to_dict()}


def _drafts(paths: Sequence[Path]) -> dict[str, Any]:
    """Total counts of drafts over all texts, for schemes that choose between drafts."""
    counts = [row["drafts"] for path in paths for _, row in read_jsonl(path) if "drafts" in row]
    return {"drafts": {name: sum(count[name] for count in counts) for name in counts[0]}} if counts else {}


def _detected(scheme: BoundScheme, texts: Sequence[str], batch_size: int) -> list[tuple[float, float]]:
    """p-value and z of each text, in batches."""
    found = []
    for start in range(0, len(texts), batch_size):
        # small models sometimes write nothing, or a NUL, which detectors reject
        batch = [text.replace("\0", " ") for text in texts[start : start + batch_size]]
        batch = [text if text.strip() else "." for text in batch]
        found += [(d.p_value, d.z) for d in scheme.detect_batch(batch)]
    return found


def _table(baseline: dict[str, Any], rows: list[dict[str, Any]], nulls: list[str]) -> None:
    columns = ["scheme", "found at p < 0.01", "p < 1e-4", "mean z", *(f"accused: {kind}" for kind in nulls)]
    columns += ["perplexity", "distinct-3", "s to generate", "s to detect"]
    print("|", " | ".join(columns), "|")
    print("| --- " * len(columns) + "|")
    for row in (baseline, *rows):
        cells = [row["name"]]
        if row is baseline:
            cells += ["–"] * (3 + len(nulls))
        else:
            cells += [f"{row['found']:.3f}", f"{row['found_1e-4']:.3f}", f"{row['mean_z']:.2f}"]
            for kind in nulls:
                shares = row["accused"][kind]
                cells.append(f"{np.mean(shares):.2%} ({max(shares):.1%})")
        cells += [f"{row['perplexity']:.1f}", f"{row['distinct_3']:.3f}", f"{row['write_s']:.3f}"]
        print("|", " | ".join([*cells, f"{row['detect_s']:.4f}" if row is not baseline else "–"]), "|")


def _arguments() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--texts", type=int, default=200, help="openings to continue under each key")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--schemes", nargs="*", metavar="NAME", help=", ".join(CONFIGURATIONS))
    parser.add_argument(
        "--human",
        action="append",
        default=[],
        metavar="NAME=FILE[:FIRST:LAST]",
        type=lambda text: tuple(text.split("=", 1)),
    )
    parser.add_argument("--batch-size", type=int, default=250)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
