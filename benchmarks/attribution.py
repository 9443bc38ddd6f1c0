"""Rings, payloads, attribution and streams, measured (docs/rings.md).

    python benchmarks/attribution.py write --out texts.jsonl --device cuda
    python benchmarks/attribution.py score texts.jsonl attacked.jsonl --out scores.json
    python benchmarks/attribution.py speed --out speed.json
    python benchmarks/attribution.py streams [TEXTS.jsonl] --out streams.json

``write`` lets a host continue the package's openings at temperature 1 and answer its requests at 0.7, with
payloads below 16, so that the same texts are read with 4, 8 and 16 bits. ``score`` takes its file and copies
of it with changed texts and an ``attack`` per row (``dewmark attack`` makes such files). It prints per
condition and attack the share found under the plain mark and with payloads, attributable, read exactly and
read wrongly, the mean z of head and tail, and the words that a stream needs. ``speed`` times rings and many
keys. ``streams`` follows unmarked texts, by default the package's, under 24 keys: the share that ever
reaches e = 100 is at most 1%.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from script_inputs import named_key

import dewmark
from dewmark.batch.negatives import Negatives
from dewmark.core.keys import Key
from dewmark.lab.prompts import openings, requests
from dewmark.storage import append_jsonl
from dewmark.watermark import identify, load_scheme

BITS = (4, 8, 16)
LEVELS = (1e-2, 1e-4)


def main() -> None:
    """Run one of the parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    for name, run in (("write", write), ("score", score), ("speed", speed), ("streams", streams)):
        part = parts.add_parser(name)
        part.set_defaults(run=run)
        part.add_argument("--out", type=Path, required=True)
        part.add_argument("--set", action="append", default=[], metavar="NAME=JSON")
        if name in ("score", "streams"):
            part.add_argument("files", nargs="*", type=Path)
        if name == "write":
            part.add_argument("--host", default="smollm2-135m")
            part.add_argument("--device", default="auto")
            part.add_argument("--dtype", default="auto")
            part.add_argument("--texts", type=int, default=96, help="per key and condition")
            part.add_argument("--tokens", type=int, default=200)
            part.add_argument("--keys", type=int, default=3)
            part.add_argument("--batch-size", type=int, default=16, help="texts with one payload")
        if name == "streams":
            part.add_argument("--keys", type=int, default=24)
    args = parser.parse_args()
    args.settings = {n: json.loads(v) for n, _, v in (each.partition("=") for each in args.set)}
    args.run(args)


def _key(number: int) -> Key:
    return named_key(f"attribution-{number}")


def write(args: argparse.Namespace) -> None:
    """Marked texts with payloads."""
    host = dewmark.load_host(args.host, device=args.device, dtype=args.dtype)
    conditions: dict[str, dict[str, Any]] = {
        "openings T 1": {"prompts": [row["text"] for row in openings()[: args.texts]]},
        "chat T 0.7": {
            "messages": [[{"role": "user", "content": row["text"]}] for row in requests()[: args.texts]],
            "temperature": 0.7,
            "top_p": 0.9,
        },
    }
    for number in range(args.keys):
        wm = dewmark.Watermark(host, key=_key(number), settings=args.settings)
        for condition, asked in conditions.items():
            field = "prompts" if "prompts" in asked else "messages"
            options = {name: value for name, value in asked.items() if name != field}
            for start in range(0, len(asked[field]), args.batch_size):
                batch = asked[field][start : start + args.batch_size]
                payload = (7 * (start // args.batch_size) + 5 * number + 1) % 16
                made = wm.generate_batch(
                    **{field: batch},
                    seeds=[1000 * number + start + i for i in range(len(batch))],
                    payload=payload,
                    batch_size=args.batch_size,
                    max_new_tokens=args.tokens,
                    **options,
                )
                rows = [
                    {
                        "id": f"{number}-{condition}-{start + i}",
                        "key": number,
                        "condition": condition,
                        "payload": payload,
                        "text": each.text,
                    }
                    for i, each in enumerate(made)
                ]
                append_jsonl(args.out, rows)
                print(f"key {number}, {condition}: {start + len(batch)} texts", flush=True)


def _rows(files: Iterable[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def score(args: argparse.Namespace) -> None:
    """Shares found, attributable, read and misread."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in _rows(args.files):
        if row["text"].strip():
            groups[row["condition"], row.get("attack") or "none"].append(row)
    table = []
    for (condition, attack), rows in groups.items():
        found: dict[str, list[float]] = defaultdict(list)
        for number in sorted({row["key"] for row in rows}):
            bound = load_scheme("dew", key=_key(number), settings=args.settings)
            mine = [row for row in rows if row["key"] == number]
            texts = [row["text"] for row in mine]
            for bits in BITS:
                reader = bound.reading_payloads(bits)
                for row, each in zip(mine, reader.detect_batch(texts), strict=True):
                    for level in LEVELS:
                        found[f"found with {bits} bits, p < {level:g}"].append(each.p_value < level)
                    found[f"read with {bits} bits"].append(each.payload == row["payload"])
                    found[f"misread with {bits} bits"].append(each.payload not in (None, row["payload"]))
            for payload in sorted({row["payload"] for row in mine}):
                same = [row["text"] for row in mine if row["payload"] == payload]
                alone = bound.writing(payload=payload)
                for text, each in zip(same, alone.detect_batch(same), strict=True):
                    for level in LEVELS:
                        found[f"found, p < {level:g}"].append(each.p_value < level)
                    found["mean z"].append(each.z)
                    told = each.attribution
                    found["attributable"].append(bool(told and told.attributable))
                    if told is not None:
                        found["mean z_head"].append(told.z_head)
                        found["mean z_tail"].append(told.z_tail)
                        found["head and tail differ, p < 0.01"].append(told.p_alike < 0.01)
                    for level in LEVELS:
                        found[f"median words of a stream at {level:g}"].append(_stop(alone, text, level))
        row = {"condition": condition, "attack": attack, "texts": len(rows)}
        row |= {
            name: float(np.median(values) if name.startswith("median") else np.mean(values))
            for name, values in found.items()
        }
        table.append(row)
        print(json.dumps(row, indent=1), flush=True)
        args.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def _stop(bound: Any, text: str, level: float) -> float:  # noqa: ANN401 - a bound DEW
    """The number of words after which a stream is found to be marked; infinite if it never is."""
    watched = bound.follow(fpr=level)
    words = text.split(" ")
    for i in range(0, len(words), 5):
        watched.update(" ".join(words[i : i + 5]) + " ")
        if watched.is_marked:
            return float(watched.words)
    return float("inf")


def speed(args: argparse.Namespace) -> None:
    """Milliseconds per text for rings, and seconds for 1,000 keys."""
    texts = [text[:1200] for text in Negatives.packaged().texts if len(text) > 800][:64]
    table: dict[str, float] = {"texts": float(len(texts))}
    for members in (1, 16, 256, 4096):
        key = Key(bytes(range(32)), members=members)
        bound = load_scheme("dew", key=key, settings=args.settings)
        bound.detect_batch(texts)
        table[f"ring of {members}, batch, ms per text"] = 1e3 * _best(bound.detect_batch, texts) / len(texts)
        table[f"ring of {members}, single text, ms"] = 1e3 * _best(bound.detect, texts[0])
    plain = load_scheme("dew", key=Key(bytes(range(32))), settings=args.settings)
    for bits in BITS:
        reader = plain.reading_payloads(bits)
        reader.detect_batch(texts[:2])
        table[f"payload of {bits} bits, batch, ms per text"] = (
            1e3 * _best(reader.detect_batch, texts) / len(texts)
        )
    keys = [named_key(f"speed-{i}") for i in range(1000)]
    for call in ("first", "second"):
        started = time.perf_counter()
        identify(texts[:1], keys, settings=args.settings)
        table[f"1,000 keys, {call} call, s"] = time.perf_counter() - started
    table = {name: round(value, 3) for name, value in table.items()}
    print(json.dumps(table, indent=1), flush=True)
    args.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def _best(run: Callable[[Any], object], given: object) -> float:
    times = []
    for _ in range(3):
        started = time.perf_counter()
        run(given)
        times.append(time.perf_counter() - started)
    return min(times)


def streams(args: argparse.Namespace) -> None:
    """The share of unmarked texts that ever cross."""
    texts = [row["text"] for row in _rows(args.files)] if args.files else Negatives.packaged().texts
    crossed = dict.fromkeys(LEVELS, 0)
    done = 0
    for number in range(args.keys):
        bound = load_scheme("dew", key=named_key(f"streams-{number}"), settings=args.settings)
        for text in texts:
            watched = bound.follow()
            watched.update(text)
            watched.finish()
            for level in LEVELS:
                crossed[level] += watched.p_value <= level
        done += len(texts)
        table = {"texts": len(texts), "keys": number + 1}
        table |= {f"ever at {level:g}": crossed[level] / done for level in LEVELS}
        print(json.dumps(table), flush=True)
        args.out.write_text(json.dumps(table) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
