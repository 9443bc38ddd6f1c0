"""Which encoder keeps most of a mark through real paraphrases and translations.

    python benchmarks/encoders.py --originals en.jsonl --rewrites para.jsonl de.jsonl fr.jsonl --rows 300:500

Row i of each file of rewrites rewrites row i of the originals. For DEW over words with each encoder as the
source of word and context vectors (``vocabulary=open``), and for the shipped lexicon: the share of the
z-score that rewrites keep, the same of unrelated texts (which must be near 0), and the effective length per
word. No host, no key and no marked text are needed. Prints a Markdown table and appends JSON rows to --out.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from script_inputs import named_key, script_parser

import dewmark
from dewmark.lab.measurements import retention_of_pairs
from dewmark.storage import append_jsonl

LEXICON = "lexicon"
LEAST_WORDS = 30


def main() -> None:
    """Run the benchmark."""
    parser = script_parser(__doc__)
    parser.add_argument("--originals", required=True)
    parser.add_argument("--rewrites", nargs="+", required=True)
    parser.add_argument("--rows", default="300:500")
    parser.add_argument(
        "--encoders", nargs="+", default=[LEXICON, "use-m3", "e5-small", "minilm", "all-mpnet"]
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    first, last = map(int, args.rows.split(":"))
    files = [texts_of(file)[first:last] for file in (args.originals, *args.rewrites)]
    rows = [row for row in zip(*files, strict=True) if min(len(text.split()) for text in row) >= LEAST_WORDS]
    originals, *rewritten = map(list, zip(*rows, strict=True))
    names = [Path(file).stem for file in args.rewrites]
    print(
        "| encoder |", " | ".join(f"{name} (unrelated)" for name in names), "| effective length | seconds |"
    )
    print("| --- " * (len(names) + 3) + "|")
    for encoder in args.encoders:
        begun = time.perf_counter()
        settings = {} if encoder == LEXICON else {"vocabulary": "open", "encoder": encoder}
        bound = dewmark.load_scheme("dew", key=named_key("encoders"), settings=settings)
        row: dict[str, object] = {"encoder": encoder, "texts": len(originals)}
        cells = []
        for name, rewrites in zip(names, rewritten, strict=True):
            found = retention_of_pairs(bound, list(zip(originals, rewrites, strict=True)))
            row[name] = found.to_dict()
            cells.append(f"{found.kept.value:.3f} ({found.unrelated.value:.3f})")
        tested = bound.detect_batch(originals)
        effective = float(np.mean([each.effective_length / max(each.tokens_scored, 1) for each in tested]))
        seconds = time.perf_counter() - begun
        row |= {"effective_length": effective, "seconds": seconds}
        print(f"| {encoder} |", " | ".join(cells), f"| {effective:.2f} | {seconds:.0f} |", flush=True)
        if args.out is not None:
            append_jsonl(args.out, [json.loads(json.dumps(row))])


def texts_of(file: str) -> list[str]:
    """The ``text`` or ``response`` of each row."""
    lines = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
    return [str(line.get("text", line.get("response", ""))) for line in lines]


if __name__ == "__main__":
    main()
