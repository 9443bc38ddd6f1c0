"""What a reader gains, and what it costs (docs/statistics.md, "A reader").

    python benchmarks/reader.py --out FOLDER --device cuda
    python benchmarks/reader.py --out FOLDER --device cuda --host gemma3-270m --reader none host smollm2-135m

Writes marked and unmarked answers to the package's requests (temperature 0.7, top-p 0.9) and continuations of
its openings (temperature 1), attacks both alike, and scores them with each reader, with and without their
prompts. ``--human NAME=TEXTS.jsonl`` adds human texts to the package's unmarked ones; all are scored under 24
keys. ``--attacked NAME=ROWS.jsonl`` adds rewrites made elsewhere: rows with ``condition``, ``key`` (null if
unmarked), ``number`` and ``text``. Every finished piece is a line of FOLDER/texts-HOST.jsonl,
cells-HOST.jsonl or rates-HOST.jsonl, and a run that is repeated goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from script_inputs import named_key, script_parser

import dewmark
from dewmark.attacks.base import load_attack
from dewmark.batch.negatives import Negatives
from dewmark.decoding import Decoding
from dewmark.errors import DewmarkError
from dewmark.hosts.base import Host
from dewmark.hosts.expectations import open_reader
from dewmark.lab.prompts import openings, requests
from dewmark.text.languages import LanguagePolicy
from dewmark.watermark import identify

Row = dict[str, Any]

CHAT, OPENINGS = "chat", "openings"
DECODING = {
    CHAT: {"temperature": 0.7, "top_p": 0.9},
    OPENINGS: {"temperature": 1.0, "no_repeat_ngram": 4},
}
ATTACKS: dict[str, Callable[[str], dict[str, object]]] = {
    "none": lambda device: {},
    "delete 0.3": lambda device: {"r": 0.3},
    "delete 0.5": lambda device: {"r": 0.5},
    "round-trip": lambda device: {"device": device},
    "translate": lambda device: {"device": device},
}
LEVELS = (0.01, 1e-3, 1e-4)
HUMAN_LEVELS = (0.01, 0.001)


class Lines:
    """A JSONL file of finished pieces, by the fields that name them."""

    def __init__(self, path: Path, fields: Sequence[str]) -> None:
        self._path, self._fields = path, fields
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.rows: list[Row] = [json.loads(line) for line in lines]
        self._done = {self._name(row) for row in self.rows}

    def _name(self, row: Row) -> tuple[object, ...]:
        return tuple(row[field] for field in self._fields)

    def __contains__(self, row: Row) -> bool:
        return self._name(row) in self._done

    def add(self, rows: Sequence[Row], *, show: bool = True) -> None:
        """Append finished pieces."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as stream:
            for row in rows:
                self.rows.append(row)
                self._done.add(self._name(row))
                stream.write(json.dumps(row) + "\n")
                if show:
                    print(json.dumps(row), flush=True)


def main() -> None:
    """Run the benchmark."""
    parser = script_parser(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--reader", nargs="+", default=["none", "host", "gemma3-270m"])
    parser.add_argument("--texts", type=int, default=200, help="per condition and key")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--fpr-keys", type=int, default=24)
    parser.add_argument("--attack", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--condition", nargs="+", default=list(DECODING), choices=list(DECODING))
    parser.add_argument("--human", action="append", default=[], metavar="NAME=TEXTS.jsonl")
    parser.add_argument("--attacked", action="append", default=[], metavar="NAME=ROWS.jsonl")
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    texts = Lines(args.out / f"texts-{args.host}.jsonl", ["condition", "key", "attack", "number"])
    write(texts, args)
    attack(texts, args)
    for name, _, file in (each.partition("=") for each in args.attacked):
        rows = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
        known = {(row["condition"], row["key"], row["number"]): row["prompt"] for row in texts.rows}
        made = [
            {**row, "attack": name, "prompt": known[row["condition"], row["key"], row["number"]]}
            for row in rows
        ]
        texts.add([row for row in made if row not in texts], show=False)
    cells = Lines(
        args.out / f"cells-{args.host}.jsonl", ["condition", "key", "attack", "reader", "prompted", "marked"]
    )
    rates = Lines(args.out / f"rates-{args.host}.jsonl", ["reader", "kind"])
    for name in args.reader:
        try:
            reader = open_reader(name, host=args.host, device=args.device)
            detect(cells, texts, name, reader, args)
            accuse(rates, name, reader, args)
        except DewmarkError as error:  # a reader that cannot be opened here must not end the others' run
            print(json.dumps({"reader": name, "error": str(error)}), flush=True)
    summarise(cells)


def write(texts: Lines, args: argparse.Namespace) -> None:
    """Marked texts of every key, and unmarked ones."""
    host: Host | None = None
    for condition in args.condition:
        for number in (None, *range(args.keys)):
            start = {"condition": condition, "key": number, "attack": "none"}
            if {**start, "number": args.texts - 1} in texts:
                continue
            key = named_key(f"reader-{number}")
            watermark = dewmark.Watermark(host or args.host, key=key, device=args.device)
            host = watermark.host
            prompts = [row["text"] for row in (requests() if condition == CHAT else openings())]
            prompts = (prompts * (args.texts // len(prompts) + 1))[: args.texts]
            if condition == CHAT:
                render = watermark.chat_format.render
                prompts = [render([{"role": "user", "content": prompt}]) for prompt in prompts]
            first = 0 if number is None else 1000 * (number + 1)
            made = host.generate(
                prompts,
                scheme=None if number is None else watermark.scheme,
                seeds=range(first, first + len(prompts)),
                decoding=Decoding(max_new_tokens=args.tokens, **DECODING[condition]),
                batch_size=args.batch_size,
            )
            texts.add(
                [
                    {**start, "number": i, "prompt": each.prompt, "text": each.text}
                    for i, each in enumerate(made)
                ],
                show=False,
            )
            print(f"wrote {condition}, key {number}", flush=True)


def attack(texts: Lines, args: argparse.Namespace) -> None:
    """The same attacks on marked and unmarked texts."""
    for name in args.attack:
        if name == "none":
            continue
        for condition, number, rows in groups(texts, "none", args):
            missing = [row for row in rows if {**row, "attack": name} not in texts]
            if not missing:
                continue
            try:
                chosen = load_attack(name.split()[0], **ATTACKS[name](args.device))
                made = chosen.apply(
                    [row["text"] for row in missing], seeds=[row["number"] for row in missing]
                )
            except DewmarkError as error:  # no translator in the cache
                print(json.dumps({"attack": name, "error": str(error)}), flush=True)
                break
            texts.add(
                [{**row, "attack": name, "text": text} for row, text in zip(missing, made, strict=True)],
                show=False,
            )
            print(f"attacked {condition}, key {number}: {name}", flush=True)


def groups(
    texts: Lines, attack_name: str, args: argparse.Namespace
) -> Iterator[tuple[str, int | None, list[Row]]]:
    for condition in args.condition:
        for number in (None, *range(args.keys)):
            rows = [
                row
                for row in texts.rows
                if (row["condition"], row["key"], row["attack"]) == (condition, number, attack_name)
            ]
            yield condition, number, rows[: args.texts]


def detect(cells: Lines, texts: Lines, name: str, reader: object, args: argparse.Namespace) -> None:
    """Marked and unmarked texts under each key."""
    attacks = dict.fromkeys(row["attack"] for row in texts.rows)
    bounds = [
        dewmark.load_scheme("dew", key=named_key(f"reader-{k}"), reader=reader) for k in range(args.keys)
    ]
    for attack_name in attacks:
        found = {(condition, number): rows for condition, number, rows in groups(texts, attack_name, args)}
        for condition in args.condition:
            for number, bound in enumerate(bounds):
                for prompted in (True, False):
                    for marked in (True, False):
                        rows = found[condition, number if marked else None]
                        cell = {
                            "condition": condition,
                            "key": number,
                            "attack": attack_name,
                            "reader": name,
                            "prompted": prompted,
                            "marked": marked,
                        }
                        if cell in cells or not rows:
                            continue
                        rows = [row for row in rows if row["text"].strip()]
                        made = bound.detect_batch(
                            [row["text"] for row in rows],
                            prompts=[row["prompt"] if prompted else None for row in rows],
                        )
                        z = np.array([each.z for each in made])
                        p = np.array([each.p_value for each in made])
                        cells.add(
                            [
                                {
                                    **cell,
                                    "texts": len(z),
                                    "mean_z": round(float(z.mean()), 3),
                                    "sd_z": round(float(z.std(ddof=1)), 3),
                                    "found": {f"{level:g}": float(np.mean(p < level)) for level in LEVELS},
                                    "too_short": float(np.mean([not d.verdict.conclusive for d in made])),
                                    "effective": round(
                                        float(np.mean([each.effective_length for each in made])), 1
                                    ),
                                }
                            ]
                        )


def accuse(rates: Lines, name: str, reader: object, args: argparse.Namespace) -> None:
    """Human texts under many keys, by kind, and the time that reading one takes."""
    kinds: dict[str, list[str]] = {}
    packaged = Negatives.packaged()
    for document, language in zip(packaged.documents, packaged.languages, strict=True):
        kinds.setdefault(f"{document.kind} {language}", []).append(document.text)
    for label, _, file in (each.partition("=") for each in args.human):
        rows = map(json.loads, Path(file).read_text(encoding="utf-8").splitlines())
        kinds[label] = [row["text"] for row in rows]
    keys = [named_key(f"reader-fpr-{i}") for i in range(args.fpr_keys)]
    for kind, mine in kinds.items():
        if {"reader": name, "kind": kind} in rates:
            continue
        read_ms = None
        if name != "none":
            timed = open_reader(name, host=args.host, device=args.device, on_disk=False)
            timed.read(mine[:1], [""])  # loads the model
            started = time.perf_counter()
            timed.read(mine[1:], [""] * len(mine[1:]))
            read_ms = round(1000.0 * (time.perf_counter() - started) / max(len(mine) - 1, 1), 1)
        rows = identify(mine, keys, reader=reader, languages=LanguagePolicy(every=True))
        judged = [each for row in rows for each in row.detections if each.verdict.conclusive]
        p = np.array([each.p_value for each in judged])
        z = np.array([each.z for each in judged])
        rates.add(
            [
                {
                    "reader": name,
                    "kind": kind,
                    "texts": len(mine),
                    "judged": len(judged),
                    "keys": len(keys),
                    "rates": {f"{level:g}": float(np.mean(p < level)) for level in HUMAN_LEVELS}
                    if len(p)
                    else None,
                    "mean_z": round(float(z.mean()), 3) if len(z) else None,
                    "sd_z": round(float(z.std()), 3) if len(z) else None,
                    "read_ms_per_text": read_ms,
                    "words_per_text": round(float(np.mean([len(text.split()) for text in mine]))),
                }
            ]
        )


def summarise(cells: Lines) -> None:
    """A table: the mean over keys of each cell, marked beside unmarked."""
    names = ("condition", "attack", "reader", "prompted")
    print(
        "| condition | attack | reader | prompt | z | p < 0.01 / 1e-3 / 1e-4 | unmarked: z (sd), p < 0.01 |"
    )
    print("| --- " * 7 + "|")
    for name in dict.fromkeys(tuple(row[field] for field in names) for row in cells.rows):
        mine = [row for row in cells.rows if tuple(row[field] for field in names) == name]
        marked, plain = ([row for row in mine if row["marked"] is kind] for kind in (True, False))
        if not marked or not plain:
            continue
        shares = " / ".join(
            f"{np.mean([row['found'][f'{level:g}'] for row in marked]):.3f}" for level in LEVELS
        )
        z, null, spread = (
            np.mean([row[field] for row in rows])
            for rows, field in ((marked, "mean_z"), (plain, "mean_z"), (plain, "sd_z"))
        )
        false = np.mean([row["found"]["0.01"] for row in plain])
        prompt = "known" if name[3] else "unknown"
        print(
            f"| {name[0]} | {name[1]} | {name[2]} | {prompt} | {z:.2f} | {shares} "
            f"| {null:+.2f} ({spread:.2f}), {false:.3f} |"
        )


if __name__ == "__main__":
    main()
