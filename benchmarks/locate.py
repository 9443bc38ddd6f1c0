"""How well `dewmark locate` finds a marked insert in human text, and how often it is wrong (docs/locate.md).

    python benchmarks/locate.py --human HUMAN.jsonl --rows 300:500 --inserts inserts.jsonl --texts 100

Documents are rows of the human file (``--field``), shuffled, joined and truncated to ``--human-tokens``; each
gets one marked insert at a random word. The inserts continue the package's openings under a fixed key; the
host writes them, and ``--inserts`` keeps them, so that an interrupted run resumes. The report gives the share
of inserts found (some passage overlaps the insert), the overlap of all passages with the insert (intersection
over union, in characters), the share of documents with a stray passage, and family-wise false alarms:
documents with any passage under a key that marked nothing in them, once without an insert and once with the
insert of the other key.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np
from script_inputs import named_key, script_parser

import dewmark
from dewmark.decoding import Decoding
from dewmark.lab.bench.workloads import prompts
from dewmark.scheme import BoundScheme
from dewmark.storage import append_jsonl
from dewmark.types import Generation
from dewmark.workspace import Tokenizer


def main() -> None:
    """Run the benchmark."""
    args = _arguments()
    settings = dict(args.set)
    scheme = dewmark.load_scheme(args.scheme, key=_key("insert"), host=args.host, **settings)
    inserts = _inserts(args, scheme)
    documents = _documents(args, inserts, scheme.host.tokenizer)

    found, overlaps, strays, seconds = [], [], [], []
    for text, start, end, _ in documents:
        started = time.perf_counter()
        located = dewmark.locate(text, scheme, fpr=args.fpr)
        seconds.append(time.perf_counter() - started)
        places = [(passage.start, passage.end) for passage in located.passages]
        hits = [place for place in places if place[0] < end and place[1] > start]
        found.append(bool(hits))
        overlaps.append(_overlap(places, start, end))
        strays.append(len(places) > len(hits))
    alarms: dict[str, list[bool]] = {"no insert": [], "another key's insert": []}
    for number in range(args.null_keys):
        text, _, _, human = documents[number % len(documents)]
        other = dewmark.load_scheme(args.scheme, key=_key(f"null-{number}"), host=scheme.host, **settings)
        alarms["no insert"].append(bool(dewmark.locate(human, other, fpr=args.fpr).passages))
        alarms["another key's insert"].append(bool(dewmark.locate(text, other, fpr=args.fpr).passages))

    report = {
        "documents": len(documents),
        "insert_tokens": args.tokens,
        "human_tokens": args.human_tokens,
        "fpr": args.fpr,
        "settings": settings,
        "found_share": float(np.mean(found)),
        "mean_overlap_found": round(
            float(np.mean([o for o, hit in zip(overlaps, found, strict=True) if hit])), 3
        ),
        "mean_overlap_all": round(float(np.mean(overlaps)), 3),
        "documents_with_a_stray_passage": float(np.mean(strays)),
        "false_alarms": {what: [int(sum(each)), len(each)] for what, each in alarms.items()},
        "median_seconds": round(float(np.median(seconds)), 3),
    }
    print(json.dumps(report, indent=1))
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--human", type=Path, required=True, help="JSONL file of human texts")
    parser.add_argument("--field", default="response", help="the field with the text")
    parser.add_argument("--rows", default="0:", help="rows of --human to use, FIRST:LAST")
    parser.add_argument("--inserts", type=Path, required=True, help="JSONL file that keeps the marked texts")
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--human-tokens", type=int, default=600)
    parser.add_argument("--fpr", type=float, default=0.05)
    parser.add_argument("--null-keys", type=int, default=200)
    parser.add_argument("--scheme", default="dew")
    parser.add_argument("--set", nargs="*", default=[], type=lambda text: tuple(text.split("=", 1)))
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--out", help="JSON file for the report")
    return parser.parse_args()


def _key(name: str) -> dewmark.Key:
    return named_key(f"benchmarks/locate/{name}")


def _inserts(args: argparse.Namespace, scheme: BoundScheme) -> list[str]:
    """Marked texts of ``--tokens`` tokens each, from the file or written now."""
    rows = []
    if args.inserts.exists():
        rows = [json.loads(line) for line in args.inserts.read_text(encoding="utf-8").splitlines()]
    if any((row["key"], row["tokens"]) != (scheme.fingerprint, args.tokens) for row in rows):
        raise SystemExit(f"{args.inserts} has texts of another key or length: use another file")
    if len(rows) < args.texts:

        def keep(batch: list[Generation]) -> None:
            new = [{"text": g.text, "tokens": args.tokens, "key": scheme.fingerprint} for g in batch]
            append_jsonl(args.inserts, new)
            rows.extend(new)
            print(f"inserts: {len(rows)} of {args.texts}", flush=True)

        dewmark.load_host(args.host).generate(
            prompts(args.texts - len(rows), first=len(rows)),
            scheme=scheme,
            seeds=range(len(rows), args.texts),
            decoding=Decoding(max_new_tokens=args.tokens, min_new_tokens=args.tokens, no_repeat_ngram=4),
            batch_size=args.batch_size,
            on_batch=keep,
        )
    return [row["text"] for row in rows[: args.texts]]


def _documents(
    args: argparse.Namespace, inserts: list[str], tokenizer: Tokenizer
) -> list[tuple[str, int, int, str]]:
    """For each insert: document, start and end of the insert, and the document without it."""
    first, _, last = args.rows.partition(":")
    lines = args.human.read_text(encoding="utf-8").splitlines()[int(first or 0) : int(last) if last else None]
    human = [json.loads(line)[args.field].strip() for line in lines]
    draw = random.Random(0)
    documents = []
    for insert in inserts:
        draw.shuffle(human)
        whole = tokenizer.encode(["\n\n".join(human[: args.human_tokens // 20])])[0]
        if len(whole.ids) < args.human_tokens:
            raise SystemExit(
                f"{len(human)} rows of {args.human} are too few for {args.human_tokens} tokens: use more rows"
            )
        text = whole.text[: whole.offsets[args.human_tokens - 1][1]]
        blanks = [i for i, character in enumerate(text) if character.isspace()]
        at = draw.choice(blanks[len(blanks) // 12 : -len(blanks) // 12])
        marked = insert.strip()
        before, after = text[:at].rstrip() + " ", " " + text[at:].lstrip()
        documents.append((before + marked + after, len(before), len(before) + len(marked), text))
    return documents


def _overlap(places: list[tuple[int, int]], start: int, end: int) -> float:
    """Characters in both over characters in either; passages do not overlap each other."""
    both = sum(max(0, min(b, end) - max(a, start)) for a, b in places)
    return both / (sum(b - a for a, b in places) + end - start - both)


if __name__ == "__main__":
    main()
