"""DEW after machine translation from English to Portuguese and back (docs/results/beyond.md).

    python benchmarks/detectability.py --out texts/ --config words: --config tokens: units=token
    python benchmarks/translation.py --texts texts/ --config words: --config tokens: units=token

Translates the texts that `detectability` wrote, with the neural engine of `dewmark attack translate`, and
saves the translations next to them. The key test scores marked and unmarked texts without prompts. Per
configuration, mean over keys: AUROC; the share found at the 1% and 5% thresholds of the unmarked translations
under the same key; the share with p < 0.01 of both; the mean z; and the AUROC on the half of the texts whose
translation copies the fewest words.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from script_inputs import named_key, parse_with_configs, script_parser

import dewmark
from dewmark.arrays import F64
from dewmark.attacks.translation.machine_translation import open_engine
from dewmark.scheme import BoundScheme
from dewmark.stats.metrics import auroc
from dewmark.storage import atomic_write
from dewmark.workspace import silent

Row = dict[str, str]
STAGES = {"text": "clean", "pt": "English→Portuguese", "en": "and back"}


def main() -> None:
    """Run the benchmark."""
    parser = script_parser(__doc__)
    parser.add_argument("--texts", type=Path, required=True, help="the --out folder of detectability.py")
    parser.add_argument("--host", default="smollm2-135m", help="host of configurations with units=token")
    args = parse_with_configs(parser)
    plain = translated(args.texts / "unmarked.jsonl")
    print(
        "| configuration | keys |", " | ".join(STAGES.values()), "| least copied half, English→Portuguese |"
    )
    print("| --- " * (3 + len(STAGES)) + "|")
    for name, settings in args.config:
        cells: dict[str, list[list[float]]] = {stage: [] for stage in STAGES}
        files = sorted(args.texts.glob(f"{name}-[0-9]*.jsonl"))
        for file in files:
            number = int(file.stem.rsplit("-", 1)[1])
            key = named_key(f"detectability-{number}")
            host = args.host if settings.get("units") == "token" else None
            scheme = dewmark.load_scheme("dew", key=key, host=host, **settings)
            marked = translated(file)
            for stage in STAGES:
                cells[stage].append(compared(scheme, marked, plain, stage))
        means = {stage: np.mean(rows, axis=0) for stage, rows in cells.items()}
        row = " | ".join(
            f"{m[0]:.3f}, {m[1]:.3f} / {m[2]:.3f}, p < 0.01: {m[3]:.3f} ({m[4]:.3f}), z {m[5]:.2f}"
            for m in means.values()
        )
        print(f"| {name} | {len(files)} | {row} | {means['pt'][6]:.3f} |", flush=True)


def translated(file: Path) -> list[Row]:
    """The rows of a file with their translations, which are added to the file if missing."""
    rows: list[Row] = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    if all("en" in row for row in rows):
        return rows
    texts = [row["text"] for row in rows]
    for name, direction in (("pt", ("en", "pt")), ("en", ("pt", "en"))):
        texts = open_engine("neural", *direction).translate(texts, task=f"into {name}", progress=silent)
        rows = [{**row, name: text} for row, text in zip(rows, texts, strict=True)]
    with atomic_write(file) as stream:
        stream.write("".join(json.dumps(row) + "\n" for row in rows).encode())
    return rows


def compared(scheme: BoundScheme, marked: list[Row], plain: list[Row], stage: str) -> list[float]:
    """AUROC, TPR at 1% and 5%, p < 0.01 of marked and unmarked, mean z, AUROC of the least copied half."""
    a, b = zs(scheme, marked, stage), zs(scheme, plain, stage)
    few_a, few_b = few_copied(marked), few_copied(plain)
    return [
        auroc(a, b),
        float(np.mean(a > np.quantile(b, 0.99))),
        float(np.mean(a > np.quantile(b, 0.95))),
        float(np.mean(a > 2.3263)),
        float(np.mean(b > 2.3263)),
        float(a.mean()),
        auroc(a[few_a], b[few_b]),
    ]


def zs(scheme: BoundScheme, rows: list[Row], stage: str) -> F64:
    """The key-test z of each row's text."""
    return np.array([found.z for found in scheme.detect_batch([row[stage] for row in rows])])


def few_copied(rows: list[Row]) -> NDArray[np.bool_]:
    """The half of the rows whose translation shares the fewest words with the text."""
    shares = []
    for row in rows:
        known, words = set(row["text"].lower().split()), row["pt"].lower().split()
        shares.append(np.mean([word in known for word in words]) if words else 0.0)
    return np.array(shares) <= np.median(shares)


if __name__ == "__main__":
    main()
