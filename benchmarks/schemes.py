"""All schemes on the same prompts: texts found, unmarked texts accused, quality (docs/results/schemes.md).

    python benchmarks/schemes.py run OUT --schemes unigram sweet ewd --texts 200 --keys 3
    python benchmarks/schemes.py join T1 OUT --to docs/results/schemes.jsonl
    python benchmarks/schemes.py table docs/results/schemes.jsonl

``run``: under several keys, the host continues the package's openings with each configuration of `dewmark
bench`. The scheme's default test scores all texts without their prompts: the marked ones, and under each key
the host's unmarked completions of the same prompts, and human texts if there are any (``--human NAME=FILE``,
JSONL rows with ``text`` or ``response``, truncated to about the same length). It also takes the median
perplexity under the host, and the seconds to generate and to detect a text in batches. Settings can be
changed: ``--schemes atw:delta=0.2``. An interrupted run resumes from OUT.

``join`` collects the rows of such folders, and of folders of `benchmarks/table1.py run`, whose unattacked
texts are as good a sample. ``table`` prints the rows as Markdown.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from script_inputs import quality, read_texts, script_parser
from table1 import MORE, ROWS, cells

import dewmark
from dewmark.decoding import Decoding
from dewmark.hosts.base import Host, generation_hash
from dewmark.lab.bench.configurations import CONFIGURATIONS, bind, configuration
from dewmark.lab.bench.workloads import prompts as openings
from dewmark.lab.evaluation.results import CLEAN, MARKED
from dewmark.scheme import BoundScheme
from dewmark.storage import append_jsonl, atomic_write, read_jsonl
from dewmark.types import Generation

LEVEL = 0.01
LEVELS = {"p < 0.01": 0.01, "p < 10⁻⁴": 1e-4, "p < 10⁻⁸": 1e-8}
UNMARKED = "unmarked completions"


def run(args: argparse.Namespace) -> None:
    """Measure configurations; each gets a file in the folder."""
    out = args.out
    out.mkdir(parents=True, exist_ok=True)
    host = dewmark.load_host(args.host, device=args.device, dtype=args.dtype)
    prompts = openings(args.texts)
    plain, seconds = _written(out / "unmarked.jsonl", host, prompts, None, args)
    nulls = {UNMARKED: plain} | {name: read_texts(source, args.tokens) for name, source in args.human}
    unmarked = {"name": "none", "texts": len(plain), "write_s": seconds, **quality(host, prompts, plain)}
    _save(out / "none.json", unmarked)
    for name in args.schemes or CONFIGURATIONS:
        _row(name, out, host, prompts, nulls, args)


def join(args: argparse.Namespace) -> None:
    """Write the rows of all folders to one file; of rows with one name the last counts."""
    found: dict[str, dict[str, Any]] = {}
    for out in args.outs:
        if any(out.glob("cells-*.jsonl")):
            found |= {row["name"]: row for row in _from_table1(out)}
        for file in sorted(out.glob("*.json")):
            row = json.loads(file.read_text(encoding="utf-8"))
            if "found" in row and row["name"] not in found:
                row["settings"] = row.pop("asked")["settings"][1]
                found[row["name"]] = row
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in found.values()]
    args.to.write_text("".join(lines), encoding="utf-8")


def _from_table1(out: Path) -> Iterator[dict[str, Any]]:
    """The rows of a run of Table 1: marked and unmarked texts, unattacked, under all keys it has."""
    configuration = json.loads((out / "configuration.json").read_text(encoding="utf-8"))
    entries = {entry["label"]: entry for entry in configuration["schemes"]}
    places = ("row", "key", "seed", "kind", "attack")
    # of cells that two workers made, the last one counts
    read = list({tuple(map(row.get, places)): row for row in cells(out) if "row" in row}.values())
    unmarked = [row["quality"] for row in read if "quality" in row and row["row"] == "none"]
    if unmarked:
        texts = sum(len(each["perplexity"]) for each in unmarked)
        yield {"name": "none", "texts": texts, **_judged(unmarked)}
    for label in (label for group in (*ROWS, *MORE) for label in group):
        mine = [row for row in read if row.get("row") == label and row.get("attack") == CLEAN]
        marked = [p for row in mine if row["kind"] == MARKED for p in row["p"]]
        if not marked:
            continue
        keys = sorted({row["key"] for row in mine})
        plain = [row for row in mine if row["kind"] != MARKED]
        nulls = [[p for row in plain if row["key"] == key for p in row["p"]] for key in keys]
        settings = {name: value for name, value in entries[label]["settings"].items() if name != "artifact"}
        judged = [row["quality"] for row in read if "quality" in row and row["row"] == label]
        yield {
            "name": label,
            "settings": settings,
            "test": entries[label]["test"],
            "texts": len(marked),
            "keys": len(keys),
            "found": _found(marked),
            "accused": {UNMARKED: [float(np.mean(np.array(p) < LEVEL)) for p in nulls]},
            **(_judged(judged) if judged else {}),
        }


def _found(p_values: Sequence[float]) -> dict[str, float]:
    return {name: float(np.mean(np.array(p_values) < level)) for name, level in LEVELS.items()}


def _judged(rows: Sequence[dict[str, list[float | None]]]) -> dict[str, float]:
    """Median perplexity and mean diversity of all texts."""
    perplexity, distinct = (
        [value for row in rows for value in row[name] if value is not None]
        for name in ("perplexity", "distinct_3")
    )
    return {"perplexity": float(np.median(perplexity)), "distinct_3": float(np.mean(distinct))}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    columns = ["scheme", "texts", *LEVELS, "unmarked accused (worst key)", "perplexity", "distinct-3"]
    lines = ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]
    for row in rows:
        shares = row.get("accused", {}).get(UNMARKED)
        cells = [row["name"], str(row["texts"])]
        cells += [f"{row['found'][name]:.3f}" if "found" in row else "" for name in LEVELS]
        cells.append(f"{np.mean(shares):.2%} ({max(shares):.1%})" if shares else "")
        cells += [f"{row['perplexity']:.1f}" if "perplexity" in row else ""]
        cells += [f"{row['distinct_3']:.3f}" if "distinct_3" in row else ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


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
            p_values[kind].append(found)
    row = {
        "name": name,
        "asked": asked,
        "write_s": float(np.median(write)),
        "detect_s": float(np.median(detect)),
        "texts": len(marked),
        "keys": args.keys,
        "found": _found([p for mine in p_values["marked"] for p in mine]),
        "accused": {kind: [float(np.mean(np.array(p) < LEVEL)) for p in p_values[kind]] for kind in nulls},
        **quality(host, prompts * args.keys, marked),
        **_drafts([out / f"{name}-{number}.jsonl" for number in range(args.keys)]),
    }
    _save(path, row)
    print(f"{name}: {json.dumps({k: v for k, v in row.items() if k != 'asked'})}", flush=True)
    return row


def _save(path: Path, row: dict[str, Any]) -> None:
    with atomic_write(path) as stream:
        stream.write((json.dumps(row, indent=1) + "\n").encode())


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


def _detected(scheme: BoundScheme, texts: Sequence[str], batch_size: int) -> list[float]:
    """The p-value of each text, in batches."""
    found = []
    for start in range(0, len(texts), batch_size):
        # small models sometimes write nothing, or a NUL, which detectors reject
        batch = [text.replace("\0", " ") for text in texts[start : start + batch_size]]
        batch = [text if text.strip() else "." for text in batch]
        found += [each.p_value for each in scheme.detect_batch(batch)]
    return found


def main() -> None:
    """Measure, collect, or print."""
    parser = script_parser(__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    measured = verbs.add_parser("run")
    measured.add_argument("out", type=Path)
    measured.add_argument("--host", default="smollm2-135m")
    measured.add_argument("--texts", type=int, default=200, help="openings to continue under each key")
    measured.add_argument("--tokens", type=int, default=200)
    measured.add_argument("--keys", type=int, default=3)
    measured.add_argument("--schemes", nargs="*", metavar="NAME", help=", ".join(CONFIGURATIONS))
    measured.add_argument(
        "--human",
        action="append",
        default=[],
        metavar="NAME=FILE[:FIRST:LAST]",
        type=lambda text: tuple(text.split("=", 1)),
    )
    measured.add_argument("--batch-size", type=int, default=250)
    measured.add_argument("--device", default="auto")
    measured.add_argument("--dtype", default="auto")
    joined = verbs.add_parser("join")
    joined.add_argument("outs", type=Path, nargs="+", metavar="OUT")
    joined.add_argument("--to", type=Path, required=True)
    printed = verbs.add_parser("table")
    printed.add_argument("file", type=Path)
    args = parser.parse_args()
    if args.verb == "table":
        print(table([row for _, row in read_jsonl(args.file)]), end="")
    else:
        (run if args.verb == "run" else join)(args)


if __name__ == "__main__":
    main()
